"""An operator removes a task from the queue of a lock on the page of the lock."""

import pytest
from django.contrib.admin.models import LogEntry

from django_redislock import locks
from django_redislock.admin import ActiveLockAdmin
from django_redislock.lock_types import QueueLock
from django_redislock.lock_types.stored_task import Outbox, store
from tests.pages import LIST, forms_of, lock_page, messages_of, words_of

pytestmark = pytest.mark.django_db

REMOVE = LIST + "remove/"


@pytest.fixture
def queue():
    """Two tasks in the queue of the lock `orders`, which a third one holds."""
    outbox = Outbox(locks.alias)
    times = {"lease": 60, "starts_in": 0, "expires_in": 0}
    for task_id in ("one", "two", "three"):
        queue_lock = QueueLock(
            locks.lock("orders"), f"queued-{task_id}", ("shop.ship", f"id-{task_id}")
        )
        stored = store(queue_lock, "message", most=0, arrival=0, **times)
        if stored.claim:
            outbox.confirm(queue_lock.token, stored.claim)
    yield
    for waiter in locks.queue("orders"):
        locks.force_release("orders", waiter.stored_token)
    for message in outbox.take():
        outbox.confirm(message.token, message.claim)
    locks.force_release("orders")


def waiting():
    return [each.holder.task_id for each in locks.queue("orders")]


def test_a_task_is_removed_after_a_confirmation(queue, releaser):
    shown = lock_page(releaser, "orders")
    first, _second = forms_of(shown, REMOVE)

    page = releaser.post(REMOVE, first)

    assert "id-two" in words_of(page)
    assert waiting() == ["id-two", "id-three"]
    [confirmed] = forms_of(page, REMOVE)
    [message] = messages_of(releaser.post(REMOVE, confirmed))

    assert "id-two" in message
    assert waiting() == ["id-three"]
    assert locks.get("orders").holder.task_id == "id-one"
    assert "id-two" in LogEntry.objects.get().change_message


def test_a_task_that_waits_no_more_is_left_alone(queue, releaser):
    first, _second = forms_of(lock_page(releaser, "orders"), REMOVE)
    assert QueueLock(locks.lock("orders"), "queued-one", (None, None)).release()

    releaser.post(REMOVE, {**first, "confirmed": "yes"})

    assert locks.get("orders").holder.task_id == "id-two"
    assert not LogEntry.objects.exists()


def test_nothing_is_removed_without_the_permission_a_log_or_a_right_form(
    queue, viewer, releaser, monkeypatch
):
    def fail(*args, **kwargs):
        raise ValueError("full")

    [form, _] = forms_of(lock_page(releaser, "orders"), REMOVE)
    form["confirmed"] = "yes"
    assert forms_of(lock_page(viewer, "orders"), REMOVE) == []
    assert viewer.post(REMOVE, form).status_code == 403
    assert releaser.post(REMOVE, {**form, "name": ""}).status_code == 400
    monkeypatch.setattr(ActiveLockAdmin, "log_change", fail)
    releaser.post(REMOVE, form)
    assert waiting() == ["id-two", "id-three"]
