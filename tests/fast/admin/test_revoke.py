"""An operator revokes the Celery task of a holder on the page of its lock."""

import json
import logging
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
from tests.pages import LIST, forms_of, lock_page, messages_of, text_of, user_with, words_of

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
    """The hidden fields of the form that revokes."""
    [form] = forms_of(page, REVOKE)
    return form


def confirm(client, page, **changed: str):
    """Send the form of the page of a lock, with a confirmation."""
    return client.post(REVOKE, form_of(page) | {"confirmed": "yes"} | changed)


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
    for fact in (f"name='{name}'", "user='view_activelock-release_activelock'", "terminate=True"):
        assert fact in line
    entry = LogEntry.objects.get()
    assert entry.object_id == name
    assert entry.change_message.startswith("Revocation of the task of the holder sent. Held by ")
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

    changed = confirm(releaser, page)
    confirm(releaser, page, task="")

    assert messages_of(changed) == ["Not revoked: the task of the holder has changed."]
    assert not LogEntry.objects.exists()


def test_a_task_with_another_name_than_its_worker_knows_is_not_revoked(
    hold, releaser, foreign, redis_server
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


def test_a_queued_task_is_never_terminated(hold, releaser, foreign) -> None:
    lock = locks.lock("x", timeout=30)
    assert QueueLock(lock, "its-token", (celery_app.long.name, foreign.id)).acquire(60)

    confirm(releaser, lock_page(releaser, "x"), terminate="yes")

    assert LogEntry.objects.get().change_message.startswith("Revocation")
    locks.force_release("x")


@pytest.mark.parametrize(
    ("broker", "message", "entry"),
    [
        ("memory://", "The revocation of task some-task was sent: 0 workers replied. ", "sent"),
        ("redis://127.0.0.1:1/0", "The task was not revoked: ", "requested"),
    ],
)
def test_a_task_that_no_worker_ends_is_reported(hold, releaser, broker, message, entry) -> None:
    held_by_task(hold, "x")
    with Celery(broker=broker) as app:
        app.conf.broker_transport_options = {"max_retries": 0}
        app.set_current()
        response = confirm(releaser, lock_page(releaser, "x"))

    assert response.url == f"{LIST}x/change/"
    assert messages_of(response)[0].startswith(message)
    assert locks.get("x")
    text = f"Revocation of the task of the holder {entry}. Held by "
    assert LogEntry.objects.get().change_message.startswith(text)


def test_only_those_who_may_release_the_lock_may_revoke(hold, releaser, serve) -> None:
    serve(ActiveLockAdmin)
    held_by_task(hold, "x")
    page, viewer = lock_page(releaser, "x"), user_with("view_activelock")
    assert "Revoke task" not in text_of(lock_page(viewer, "x"))
    assert confirm(viewer, page).status_code == 403

    class ReleasesNoLock(ActiveLockAdmin):
        def has_release_permission(self, request, obj=None):
            return obj is None

    serve(ReleasesNoLock)
    assert "Revoke task" not in text_of(lock_page(releaser, "x"))
    assert confirm(releaser, page).status_code == 403
    assert not LogEntry.objects.exists()


def test_only_the_task_of_a_holder_can_be_revoked(hold, releaser, monkeypatch) -> None:
    hold("no task")
    page = lock_page(releaser, "no task")
    assert "Revoke task" not in text_of(page)
    assert releaser.post(REVOKE, {"seen": page.context["seen"]}).status_code == 400
    assert releaser.get(REVOKE).url == LIST

    held_by_task(hold, "x")
    page = lock_page(releaser, "x")
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "find_spec", lambda name: None)
        assert "Revoke task" not in text_of(lock_page(releaser, "x"))
    locks.force_release("x")
    assert messages_of(confirm(releaser, page))[0] == "Nothing to revoke."
