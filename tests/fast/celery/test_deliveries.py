"""Each delivery in each mode and with each holder of the lock, by the table in the code."""

import pytest
from celery.exceptions import Ignore, Retry

from django_redislock import locks, single_instance
from django_redislock.celery.message import AGAIN, DUPLICATE, QUEUE_LOCK
from django_redislock.lock_types import QueueLock
from django_redislock.tasks.deliveries import Action, Claim, Delivery, Holder, action_at_start
from django_redislock.tasks.options import MODES
from django_redislock.tasks.single import queue_lock_token

from .tools import elsewhere, held_by, make_task, run_message

MESSAGES = {
    Delivery.DUPLICATE: {"headers": {DUPLICATE: "first"}},
    Delivery.FIRST: {},
    Delivery.RETRY: {"retries": 1},
    Delivery.RETURNED: {"redelivered": True},
    Delivery.SENT_AGAIN: {"headers": {AGAIN: True}},
    Delivery.REDELIVERED: {"redelivered": True},
}


def action(delivery, mode, holder):
    """Return the action when a task starts that was sent in this mode."""
    locking = MODES[mode]
    claim = Claim.QUEUE_LOCK if locking.when_sent else Claim.NONE
    found = action_at_start(delivery, claim, holder, is_behind_running=locking.separate)
    if found in (Action.RUN_LATER, Action.TAKE_OVER) and not locking.while_running:
        return Action.RUN  # no lock is held while the task runs
    return found


def modes_of(delivery):
    """Return the modes in which there is this delivery."""
    return [each for each in MODES if MODES[each].when_sent or delivery is not Delivery.DUPLICATE]


@pytest.fixture
def deliver(app, name, mode, delivery):
    """Return a function that delivers the message, and returns what happened to it."""
    bodies = []

    def body():
        if bodies:
            return bodies.pop()()
        return "ran"

    options = {"task": {"acks_late": delivery is Delivery.REDELIVERED}, "body": body}
    if MODES[mode].when_sent:
        task = make_task(app, name, mode, **options)
    else:
        made = app.task(name=f"tests.{name}", **options["task"])
        task = made(single_instance(key=name)(body))

    def deliver_now(**more):
        if delivery is Delivery.CALLED:
            return happened(task.apply().get())
        message = MESSAGES[delivery] | more
        headers = dict(message.pop("headers", {}))
        if MODES[mode].when_sent and delivery is not Delivery.DUPLICATE:
            headers[QUEUE_LOCK] = f"{name}:queued" if MODES[mode].separate else name
        return happened(run_message(app, task, headers=headers, **message))

    deliver_now.task = task
    deliver_now.bodies = bodies
    return deliver_now


def happened(result):
    if result is None:
        return Action.POLICY
    if result == "ran":
        return Action.RUN
    if result.type is Ignore:
        return Action.IGNORE
    assert result.type is Retry
    return Action.RUN_LATER


ALL = pytest.mark.parametrize(
    ("delivery", "mode"), [(each, mode) for each in Delivery for mode in modes_of(each)]
)
WITH_A_LOCK = pytest.mark.parametrize(
    ("delivery", "mode"),
    [(each, mode) for each in MESSAGES for mode in modes_of(each) if MODES[mode].while_running],
)


@ALL
def test_with_a_free_lock(app, name, deliver, mode, delivery):
    assert deliver() is action(delivery, mode, Holder.NOBODY)
    assert held_by(name) == {}


@ALL
def test_with_another_holder(name, deliver, mode, delivery):
    with locks.lock(name):
        assert deliver() is action(delivery, mode, Holder.OTHER)


@ALL
def test_with_the_queue_lock_of_a_task_that_has_ended(app, name, deliver, mode, delivery):
    app.backend.store_result("ended", "ran", "SUCCESS")
    assert QueueLock(locks.lock(name), queue_lock_token("ended"), (None, "ended")).acquire(60)
    expected = action(delivery, mode, Holder.ENDED)
    is_taken_over = expected is Action.TAKE_OVER
    assert deliver() is (Action.RUN if is_taken_over else expected)
    if is_taken_over:
        assert held_by(name) == {}


@WITH_A_LOCK
def test_with_its_own_earlier_execution(app, name, deliver, mode, delivery):
    seen = []
    deliver.bodies.append(lambda: seen.append(elsewhere(deliver)))
    run_message(app, deliver.task)
    assert seen == [action(delivery, mode, Holder.ITSELF)]


@WITH_A_LOCK
def test_after_the_message_has_succeeded(app, deliver, mode, delivery):
    app.backend.store_result("own", "ran", "SUCCESS")
    begun = delivery in (Delivery.SENT_AGAIN, Delivery.REDELIVERED)
    deliver.bodies.append(lambda: "ran")
    deliver()
    assert bool(deliver.bodies) is (begun or delivery is Delivery.DUPLICATE)
