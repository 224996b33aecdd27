"""Helpers for tests of the subcommands."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery

from django_redislock import locks
from tests.commands import TerminalStream, call
from tests.lock_fixtures import (  # noqa: F401  fixtures
    alias_on,
    default_sigterm,
    own_locks,
    own_server,
)


@pytest.fixture
def empty_history(redis_server) -> None:
    redis_server.flushdb()


@pytest.fixture
def redis_away(settings) -> None:
    """Make the server of the default alias unreachable."""
    away = {**settings.CACHES["default"], "LOCATION": "redis://me:s3cret@127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "default": away}


@pytest.fixture
def answer(monkeypatch) -> Callable[[str | Callable[[str], str]], None]:
    """Return a function that answers the questions of the command, as at a terminal."""

    def answer_with(answer: str | Callable[[str], str]) -> None:
        monkeypatch.setattr("sys.stdin", TerminalStream())
        monkeypatch.setattr("builtins.input", answer if callable(answer) else lambda _: answer)

    return answer_with


def facts(*arguments: str) -> dict:
    return json.loads(call(*arguments, "--format", "json"))


def acquire_and_release(lock) -> bool:
    with lock:
        return lock.locked()


@contextmanager
def held_by_task(name: str, **options: Any) -> Iterator[None]:
    """A lock whose holder is a task of the name "sync"."""
    lock = locks.lock(name, timeout=90, auto_renewal=False, **options)

    @Celery(set_as_current=False).task(name="sync", shared=False)
    def acquire() -> None:
        lock.acquire()

    acquire.apply(task_id="id-1").get()
    yield
    lock.release()
