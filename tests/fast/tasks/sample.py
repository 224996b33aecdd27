"""Tasks of Django's own framework. Importing it needs Django 6."""

import asyncio
from collections.abc import Callable
from typing import Any

from django.tasks import TaskContext, task

from django_redislock import locks, single_instance
from django_redislock.tasks import current_lock

inside: list[Callable[[], Any]] = []
"""Calls that the tasks make while they hold their lock, once each."""


def holder() -> list[str | None]:
    info = locks.get(current_lock().name)
    return [info.holder.task_name, info.holder.task_id]


def work() -> list[str | None]:
    while inside:
        inside.pop()()
    return holder()


@task
@single_instance(unique_on=["account_id"])
def sync(account_id, full=False):
    return work()


@task
@single_instance(unique_on=["account_id"], on_conflict="raise")
def strict(account_id):
    return work()


@task
@single_instance(unique_on=["account_id"], on_conflict="wait", blocking_timeout=0.1)
def patient(account_id):
    return work()


@task(takes_context=True)
@single_instance(unique_on="*")
def with_context(context: TaskContext, account_id):
    return [context.task_result.id, current_lock().name]


@task
@single_instance(unique_on=["account_id"])
async def async_sync(account_id):
    await asyncio.sleep(0)
    info = await locks.aget(current_lock().name)
    return [info.holder.task_name, info.holder.task_id]


@single_instance(key="above:{account_id}")
@task
def above(account_id):
    return holder()


@task
def takes_a_lock():
    with locks.lock("sample:inner", timeout=5):
        info = locks.get("sample:inner")
        return [info.holder.task_name, info.holder.task_id]
