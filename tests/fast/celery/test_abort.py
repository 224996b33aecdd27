"""on_lost="abort" in the main thread of a process raises `LockLost` in the task."""

import signal
import time
from contextlib import suppress

import pytest

from django_redislock import LockLost, locks, single_instance
from django_redislock.celery import current_lock
from django_redislock.signals import lock_acquired
from tests.lock_tools import listening, start
from tests.tools import wait_until

NAME = "tests:aborted"


def lose():
    wait_until(lambda: locks.force_release(NAME) == 1)


@single_instance(key=NAME, timeout=1.5, on_lost="abort")
def work(until):
    while not until():
        time.sleep(0.001)
    return current_lock().lost


def test_the_main_thread_is_interrupted_and_the_signal_handler_restored():
    before = signal.getsignal(signal.SIGUSR1)
    start(lose)
    with pytest.raises(LockLost, match=NAME):
        work(lambda: False)
    assert signal.getsignal(signal.SIGUSR1) == before
    assert locks.get(NAME) is None
    assert work(lambda: True) is False


def test_a_function_with_its_own_signal_handler_fails_at_its_end():
    def lose_the_lock():
        received = []
        before = signal.signal(signal.SIGUSR1, lambda *_: received.append(True))
        lose()
        wait_until(lambda: received)
        signal.signal(signal.SIGUSR1, before)
        return True

    with pytest.raises(LockLost):
        work(lose_the_lock)


def test_a_function_that_ends_at_that_moment_is_not_interrupted_later():
    for _ in range(5):
        start(lose)
        with suppress(LockLost):
            assert work(lambda: current_lock().lost) is True


def test_a_function_does_not_begin_if_its_lock_is_lost_before():
    def lose_at_once(name, lock, **about):
        if name == NAME:
            lose()
            wait_until(lambda: lock.lost)

    with listening(lock_acquired, lose_at_once), pytest.raises(LockLost, match=NAME):
        work(lambda: pytest.fail("it began"))


def test_another_thread_is_not_interrupted():
    result = start(work, lambda: current_lock().lost)
    lose()
    assert result.result(60) is True


def test_a_signal_with_another_cause_is_passed_on():
    received = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        work(lambda: signal.raise_signal(signal.SIGUSR1) or received)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received == [signal.SIGUSR1]
