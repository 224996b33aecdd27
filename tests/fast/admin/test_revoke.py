"""An operator revokes the Celery task of a holder on the page of its lock."""

import html
import logging
import re
from collections.abc import Iterator

import pytest
from celery import Celery, current_app
from django.contrib.admin.models import LogEntry

from django_redislock import locks
from django_redislock.admin import ActiveLockAdmin, tasks
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
    [line] = caplog.messages
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
    result = worker.send(celery_app.queued["until_executed"], run.id, countdown=2)
    [lock] = [info.name for info in locks.active() if info.name.startswith(f"queued:{run.id}")]
    page = releaser.post(REVOKE, form_of(lock_page(releaser, lock)))
    assert "The task has not started." in text_of(page)
    assert "terminate" not in form_of(page)

    releaser.post(REVOKE, form_of(page))

    assert freed(lock, within=10)
    outcome(result)
    assert result.state == "REVOKED"
    assert not run.notes("begin")


def test_a_task_that_no_worker_knows_of_is_reported(hold, releaser) -> None:
    held_by_task(hold, "x")
    with Celery(broker="memory://") as app:
        app.set_current()
        response = releaser.post(REVOKE, form_of(lock_page(releaser, "x")) | {"confirmed": "yes"})

    text = "The revocation of task some-task was sent: 0 workers replied."
    assert messages_of(response) == [text]
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
    assert caplog.messages[-1] == "Task not revoked in the admin: task=shop.pay[some-task]"


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
