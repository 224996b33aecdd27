"""The Celery app of the table of cases: `celery -A tests.full.workers.cases_app worker`.

It has one function, and a task for each kind of task and each mode that runs it.
"""

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from django.conf import settings
from django.test import override_settings

from django_redislock import single_instance
from django_redislock.celery import current_lock
from tests.celery_app import note, notes, wait_for_go

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.full.workers.cases_settings")

app = Celery("tests.cases", set_as_current=False)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(worker_prefetch_multiplier=4, task_track_started=True)

MODES = ("while_executing", "until_executing", "until_executed", "until_and_while_executing")

PAUSE = 0.5
"""Seconds between two executions of a task that retries itself."""

SHORT_LEASE = 2
"""In seconds."""


def failing(make_error: Callable[[str], Exception]) -> Callable[[Task, str], str]:
    def fail(task: Task, run: str) -> str:
        raise make_error(run)

    return fail


def requeue(task: Task, run: str) -> str:
    if is_first(run):
        raise Reject(run, requeue=True)
    return "ran"


def retry(task: Task, run: str) -> str:
    if task.request.retries == 0:
        raise task.retry(countdown=PAUSE)
    return "ran"


def error_once(task: Task, run: str) -> str:
    if task.request.retries == 0:
        raise LookupError(run)
    return "ran"


def lose(task: Task, run: str) -> str:
    """Run until the lock is lost, and write a note about it."""
    lock = current_lock()
    with notes() as client:
        for _ in range(100):
            if lock is None or lock.lost:
                break
            client.blpop([f"{run}:never"], 0.05)
    wait_for_go(run, "lost", lock is not None and lock.lost)
    return "ran"


ENDS = {
    "end": lambda task, run: "ran",
    "error": failing(LookupError),
    "ignore": failing(Ignore),
    "reject": failing(functools.partial(Reject, requeue=False)),
    "requeue": requeue,
    "retry": retry,
    "error_once": error_once,
    "lose": lose,
}


def is_first(run: str) -> bool:
    with notes() as client:
        return [text.split()[0] for text in client.lrange(run, 0, -1)].count("begin") < 2


def body(self: Task, run: str, how: str = "end") -> str:
    """Wait for the permission to continue, and end in the way `how`."""
    if how == "stuck":  # as in a C function, during which no signal handler runs
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    wait_for_go(run, "begin", self.request.id, os.getpid())
    note(run, "end", self.request.id)
    return ENDS[how](self, run)


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {"timeout": 60}),
    "late": ({"acks_late": True}, {"timeout": 60}),
    "late_short": ({"acks_late": True}, {"timeout": SHORT_LEASE}),
    "stubborn": ({"acks_late": True, "reject_on_worker_lost": True}, {"timeout": 60}),
    "autoretry": (
        {"autoretry_for": (LookupError,), "default_retry_delay": PAUSE, "max_retries": 3},
        {"timeout": 60},
    ),
    "holding": ({}, {"timeout": 60, "hold_on_retry": True}),
    "restarted": ({}, {"timeout": SHORT_LEASE, "using": "restarted"}),
}
"""The options of the task, and of `single_instance`."""


def make(kind: str, mode: str) -> Any:
    of_task, options = KINDS[kind]
    as_task = app.task(bind=True, name=f"cases.{kind}.{mode}", **of_task)
    single = single_instance(mode=mode, key="case:{run}", **options)
    return as_task(single(body)) if mode == "while_executing" else single(as_task(body))


# In the process of the tests, the alias "restarted" exists only while a fixture adds it.
with override_settings(CACHES={"restarted": settings.CACHES["default"]} | settings.CACHES):
    TASKS = {
        (kind, mode): make(kind, mode)
        for kind in KINDS
        for mode in MODES
        # This combination is refused, because the mode holds no lock during the retry.
        if (kind, mode) != ("holding", "until_executing")
    }


@app.task
def ready() -> int:
    return os.getpid()


@app.task
def collect(results: list[Any]) -> list[Any]:
    return results
