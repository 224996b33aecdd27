"""A task that loses its lock is stopped, where that was asked for."""

import signal
import threading
import time
from contextlib import suppress

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from django_redislock import LockLost, locks, single_instance
from django_redislock.celery import current_lock
from django_redislock.signals import lock_acquired, lock_lost
from tests import celery_app as tasks
from tests.celery_worker import outcome
from tests.tools import wait_until

NAME = "tests:aborted"

pytestmark = [
    pytest.mark.celery,
    # Celery 5.4 with redis-py 8, in a chord.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


def lose(name):
    wait_until(lambda: locks.force_release(name) == 1)


def test_a_task_that_lost_its_lock_ends_with_the_loss(worker, run):
    result = worker.send(tasks.aborted, run.id)
    run.wait_for("begin")
    lose(f"long:{run.id}")
    error = outcome(result)
    assert isinstance(error, LockLost)
    assert result.state == "FAILURE"
    assert run.notes("limited") == []
    again = worker.send(tasks.aborted, run.id)
    wait_until(lambda: len(run.notes("begin")) == 2)
    run.go()
    assert outcome(again) == "ran"


def test_a_soft_time_limit_is_none_by_a_lost_lock(worker, run):
    result = worker.send(tasks.aborted, run.id, soft_time_limit=1)
    assert isinstance(outcome(result), SoftTimeLimitExceeded)
    assert run.notes("limited") == ["limited"]
    wait_until(lambda: locks.get(f"long:{run.id}") is None)


@single_instance(key=NAME, timeout=1, on_lost="abort")
def work(until):
    while not until():
        time.sleep(0.001)
    return current_lock().lost


def test_the_main_thread_is_stopped_and_the_signal_is_given_back():
    before = signal.getsignal(signal.SIGUSR1)
    threading.Thread(target=lose, args=[NAME]).start()
    with pytest.raises(LockLost, match=NAME):
        work(lambda: False)
    assert signal.getsignal(signal.SIGUSR1) == before
    assert locks.get(NAME) is None
    assert work(lambda: True) is False


def test_who_had_another_handler_for_the_signal_is_told_at_its_end():
    def lose_it_meanwhile():
        came = []
        before = signal.signal(signal.SIGUSR1, lambda *_: came.append(True))
        lose(NAME)
        wait_until(lambda: came)
        signal.signal(signal.SIGUSR1, before)
        return True

    with pytest.raises(LockLost):
        work(lose_it_meanwhile)


def test_who_ends_just_then_is_not_struck_later():
    for _ in range(20):
        threading.Thread(target=lose, args=[NAME]).start()
        with suppress(LockLost):
            assert work(lambda: current_lock().lost) is True


@pytest.mark.parametrize("told", [False, True])
def test_what_was_lost_before_it_began_does_not_begin(told):
    has_ended = threading.Event()

    def lose_at_once(name, lock, **about):
        if name == NAME:
            lose(NAME)
            wait_until(lambda: lock.lost)

    def tell_late(name, **about):
        if name == NAME and not told:
            has_ended.wait(60)

    before = signal.getsignal(signal.SIGUSR1)
    lock_acquired.connect(lose_at_once)
    lock_lost.connect(tell_late)
    try:
        with pytest.raises(LockLost, match=NAME):
            work(lambda: pytest.fail("it began"))
    finally:
        has_ended.set()
        lock_acquired.disconnect(lose_at_once)
        lock_lost.disconnect(tell_late)
    assert signal.getsignal(signal.SIGUSR1) == before


def test_another_thread_has_to_look():
    told = []

    def use():
        told.append(work(lambda: current_lock().lost))

    thread = threading.Thread(target=use)
    thread.start()
    lose(NAME)
    thread.join(60)
    assert told == [True]


def test_the_signal_of_somebody_else_is_passed_on():
    told = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
    try:
        work(lambda: signal.raise_signal(signal.SIGUSR1) or told)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told == [signal.SIGUSR1]
