"""The fuzz of forged messages covers every name that the package reads from a request."""

import sys

import pytest
from celery.app.task import Context

from django_redislock import locks
from django_redislock.celery.message import AGAIN, DUPLICATE, QUEUE_LOCK

from .test_messages import KEPT, KEPT_TASKS, READ, RETRIED, execute_forged


class RecordingContext(Context):
    """Records which of its attributes the package reads."""

    names: set = set()  # noqa: RUF012

    def __getattribute__(self, name):
        module = sys._getframe(1).f_globals.get("__name__", "")
        if module.startswith("django_redislock."):
            RecordingContext.names.add(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("task", [*KEPT_TASKS, RETRIED], ids=lambda task: task.name)
def test_the_fuzz_covers_every_name_that_is_read(monkeypatch, task):
    monkeypatch.setattr("celery.app.trace.Context", RecordingContext)
    monkeypatch.setattr(RecordingContext, "names", set())
    for attributes in [
        {},
        {DUPLICATE: "id"},
        {AGAIN: True, QUEUE_LOCK: KEPT},
        {"delivery_info": True},
    ]:
        execute_forged(task, attributes)
        locks.force_release(KEPT)
    with locks.lock(KEPT, timeout=30):
        execute_forged(task, {})
    for info in locks.active(f"{KEPT}*"):  # of a retry
        locks.force_release(info.name)
    assert "headers" in RecordingContext.names
    assert {name for name in RecordingContext.names if not name.startswith("__")} <= READ
