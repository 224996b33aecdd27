"""An operator revokes the Celery task of a holder on the page of its lock."""

import html
import json
import logging
import re
from collections.abc import Iterator

import pytest
import redis
from celery import Celery, current_app
from django.contrib.admin.models import LogEntry

from django_redislock import locks
from django_redislock.admin import ActiveLockAdmin, tasks
from django_redislock.lock_types import QueueLock
from tests import celery_app
from tests.celery_worker import freed, outcome, run, worker  # noqa: F401
from tests.pages import LIST, lock_page, text_of, user_with, words_of

from .test_admin import messages_of
from .test_restrictions import serve  # noqa: F401

pytestmark = [pytest.mark.django_db, pytest.mark.celery]

REVOKE = LIST + "revoke/"


@pytest.fixture(autouse=True)
def current() -> Iterator[None]:
    """Make the app of the worker the current one, as a project's own app is."""
    before = current_app._get_current_object()
    celery_app.app.set_current()
    yield
    before.set_current()


def form_of(page) -> dict[str, str]:
    """The hidden fields of the form that revokes, without the token."""
    found = re.search(rf'<form method="post" action="{REVOKE}">(.*?)</form>', text_of(page), re.S)
    fields = re.findall(r'name="(\w+)" value="([^"]*)"', found[1])
    return {name: html.unescape(value) for name, value in fields if "csrf" not in name}


def held_by_task(hold, name: str) -> None:
    """Hold the lock as an eager task does."""

    def acquire() -> None:
        hold(name)

    task = Celery(set_as_current=False).task(acquire, name="shop.pay", shared=False)
    task.apply(task_id="some-task").get()


def test_a_running_task_is_ended_and_its_lock_is_released(
    worker,  # noqa: F811
    run,  # noqa: F811
    releaser,
    caplog,
) -> None:
    name = f"long:{run.id}"
    result = worker.send(celery_app.long, run.id)
    run.wait_for("begin")
    page = releaser.post(REVOKE, form_of(lock_page(releaser, name)))
    assert result.id in words_of(page)
    assert "ends the pool process" in text_of(page)
    assert locks.get(name).holder.task_id == result.id

    with caplog.at_level(logging.WARNING, "django_redislock"):
        response = releaser.post(REVOKE, form_of(page))

    assert messages_of(response) == [
        f"The revocation of task {result.id} was sent: 1 worker replied."
    ]
    assert freed(name)
    assert [event.outcome for event in locks.history(name)] == ["killed"]
    outcome(result)
    assert result.state == "REVOKED"
    [line] = [text for text in caplog.messages if result.id in text]
    fence = re.search(r"fence_token=(\d+)", line)[1]
    assert line == (
        f"Revoking a task in the admin: task={celery_app.long.name}[{result.id}] name='{name}'"
        " using='default' user='view_activelock-release_activelock'"
        f" fence_token={fence} terminate=True"
    )
    entry = LogEntry.objects.get()
    assert entry.object_id == name
    sent = "Revocation of the task of the holder sent. Held by "
    assert entry.change_message.startswith(sent)
    assert entry.change_message.endswith("; workers that replied: 1.")


def test_a_queued_task_does_not_run(worker, run, releaser) -> None:  # noqa: F811
    result = worker.send(celery_app.queued["until_executed"], run.id, countdown=60)
    [lock] = [info.name for info in locks.active() if info.name.startswith(f"queued:{run.id}")]
    page = releaser.post(REVOKE, form_of(lock_page(releaser, lock)))
    assert "The task has not started." in text_of(page)
    assert "terminate" not in form_of(page)

    releaser.post(REVOKE, form_of(page))

    assert freed(lock)  # long before the task is due
    assert worker.logged(result.id, "revoked")
    assert not run.notes("begin")


def forge_task(server: redis.Redis, name: str, **parts: str) -> None:
    """Replace parts of the record of the only holder, as anybody can who may write to Redis."""
    [key] = server.scan_iter(f"*:lock:{name}")
    [field] = [each for each in server.hkeys(key) if each.startswith("h:")]
    *numbers, payload = server.hget(key, field).split(" ", 6)
    record = json.dumps(json.loads(payload) | parts)
    server.hset(key, field, " ".join([*numbers, record]))


@pytest.fixture
def foreign(worker, run):  # noqa: F811
    """A task that runs, which no record names yet."""
    result = worker.send(celery_app.long, run.id)
    run.wait_for("begin")
    yield result
    assert result.id in worker.active()
    run.go()
    assert outcome(result) == "ran"


@pytest.mark.parametrize("since", ["lock", "confirmation"])
def test_only_the_task_that_a_page_showed_is_revoked(
    hold, releaser, foreign, redis_server, since: str
) -> None:
    held_by_task(hold, "x")
    page = lock_page(releaser, "x")
    if since == "confirmation":
        page = releaser.post(REVOKE, form_of(page))
        assert "some-task" in text_of(page)
    forge_task(redis_server, "x", task_id=foreign.id, task_name=celery_app.long.name)

    response = releaser.post(REVOKE, form_of(page) | {"confirmed": "yes"})

    assert messages_of(response) == ["Not revoked: the task of the holder has changed."]
    assert not LogEntry.objects.exists()
    without_task = {name: text for name, text in form_of(page).items() if name != "task"}
    releaser.post(REVOKE, without_task | {"confirmed": "yes"})
    assert not LogEntry.objects.exists()


def test_a_task_with_another_name_than_its_worker_knows_is_not_revoked(
    hold, releaser, foreign, redis_server, caplog
) -> None:
    held_by_task(hold, "x")
    forge_task(redis_server, "x", task_id=foreign.id)
    page = releaser.post(REVOKE, form_of(lock_page(releaser, "x")))
    assert "shop.pay" in text_of(page)

    response = releaser.post(REVOKE, form_of(page))

    [message] = messages_of(response)
    assert message.startswith("Not revoked: a worker knows the task ")
    assert celery_app.long.name in message
    assert LogEntry.objects.get().change_message.startswith("Task of the holder not revoked")
    assert "Task not revoked in the admin, a worker knows it" in caplog.text


def test_a_queued_task_is_never_terminated(hold, releaser, foreign, redis_server) -> None:
    lock = locks.lock("x", timeout=30)
    assert QueueLock(lock, "its-token", (celery_app.long.name, foreign.id)).acquire(60)
    page = releaser.post(REVOKE, form_of(lock_page(releaser, "x")))
    assert "The task has not started." in text_of(page)

    releaser.post(REVOKE, form_of(page) | {"terminate": "yes"})

    assert LogEntry.objects.get().change_message.startswith("Revocation")
    locks.force_release("x")


def test_a_task_that_no_worker_knows_of_is_reported(hold, releaser) -> None:
    held_by_task(hold, "x")
    with Celery(broker="memory://") as app:
        app.set_current()
        response = releaser.post(REVOKE, form_of(lock_page(releaser, "x")) | {"confirmed": "yes"})

    assert messages_of(response) == [
        "The revocation of task some-task was sent: 0 workers replied. "
        "No worker that replied runs the task, so no process was ended."
    ]
    assert response.url == f"{LIST}x/change/"
    assert locks.get("x")
    assert LogEntry.objects.get().change_message.endswith("; workers that replied: 0.")


def test_an_unreachable_broker_is_reported(hold, releaser, caplog) -> None:
    held_by_task(hold, "x")
    with Celery(broker="redis://127.0.0.1:1/0") as app:
        app.conf.broker_transport_options = {"max_retries": 0}
        app.set_current()
        response = releaser.post(REVOKE, form_of(lock_page(releaser, "x")) | {"confirmed": "yes"})

    [message] = messages_of(response)
    assert message.startswith("The task was not revoked: ")
    text = LogEntry.objects.get().change_message
    assert text.startswith("Revocation of the task of the holder requested. Held by ")
    assert "Task not revoked in the admin: task=shop.pay[some-task]" in caplog.messages


class ReleasesNoLock(ActiveLockAdmin):
    def has_release_permission(self, request, obj=None):
        return obj is None


def test_only_those_who_may_release_the_lock_may_revoke(hold, releaser, serve) -> None:  # noqa: F811
    serve(ActiveLockAdmin)
    held_by_task(hold, "x")
    form = form_of(lock_page(releaser, "x")) | {"confirmed": "yes"}
    viewer = user_with("view_activelock")
    assert "Revoke task" not in text_of(lock_page(viewer, "x"))
    assert viewer.post(REVOKE, form).status_code == 403
    assert releaser.get(REVOKE).url == LIST

    serve(ReleasesNoLock)
    assert "Revoke task" not in text_of(lock_page(releaser, "x"))
    assert releaser.post(REVOKE, form).status_code == 403
    assert not LogEntry.objects.exists()


def test_only_a_task_can_be_revoked(hold, releaser, monkeypatch) -> None:
    hold("x")
    page = lock_page(releaser, "x")
    assert "Revoke task" not in text_of(page)
    assert releaser.post(REVOKE, {"seen": page.context["seen"]}).status_code == 400

    held_by_task(hold, "y")
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    assert "Revoke task" not in text_of(lock_page(releaser, "y"))


def test_a_holder_that_is_gone_is_not_revoked(hold, releaser) -> None:
    held_by_task(hold, "x")
    form = form_of(lock_page(releaser, "x")) | {"confirmed": "yes"}
    locks.force_release("x")

    response = releaser.post(REVOKE, form)

    assert messages_of(response)[0] == "Nothing to revoke."
