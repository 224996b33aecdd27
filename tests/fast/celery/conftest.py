"""Fixtures of the tests in this folder."""

import uuid
from importlib.util import find_spec

import pytest
from celery.signals import after_task_publish

from django_redislock import locks
from django_redislock.signals import task_replaced, task_skipped
from tests.celery_worker import run, worker  # noqa: F401
from tests.lock_fixtures import alias_on, moving_clock, skipped  # noqa: F401
from tests.lock_tools import listening

from .beats import make_beat  # noqa: F401
from .tools import held_by, own_app

# django-celery-beat supports a new version of Django some months later.
collect_ignore = [] if find_spec("django_celery_beat") else ["test_database_beat.py"]


@pytest.fixture
def app():
    app = own_app()
    app.backend.forget("own")  # all apps share the results in memory
    yield app
    app.close()


@pytest.fixture
def eager(app):
    app.conf.task_always_eager = True
    return app


@pytest.fixture
def name():
    """A lock name of this test's own, which is released at the end."""
    name = f"sent-{uuid.uuid4().hex}"
    yield name
    for each in held_by(name):
        locks.force_release(each)


@pytest.fixture
def sent():
    """The headers of the messages that were sent."""
    messages = []
    with listening(after_task_publish, lambda headers, **_: messages.append(headers)):
        yield messages


@pytest.fixture
def signals():
    """The tasks that the signals reported as skipped or replaced, and because of which task."""
    received = []

    def note_skipped(task_id, holder_task_id, **_):
        received.append(("skipped", task_id, holder_task_id))

    def note_replaced(task_id, by_task_id, **_):
        received.append(("replaced", task_id, by_task_id))

    with listening(task_skipped, note_skipped), listening(task_replaced, note_replaced):
        yield received


@pytest.fixture
def revoked(monkeypatch):
    """The ids of the tasks that workers were asked to revoke."""
    ids = []
    monkeypatch.setattr(
        "celery.app.control.Control.revoke", lambda self, task_id: ids.append(task_id)
    )
    return ids
