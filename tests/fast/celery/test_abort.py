"""on_lost="abort" in the main thread of a process raises `LockLost` in the task."""

import signal
import time

import pytest

from django_redislock import LockLost, locks, single_instance
from django_redislock.celery import current_lock
from tests.lock_tools import start
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
