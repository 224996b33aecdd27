"""A fork waits for threads that talk to Redis."""

import threading

import pytest

from django_redislock.engine import fork_safety


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_safety, "MAX_DELAY_SECONDS", 0.02)


def test_a_thread_may_pass_after_a_fork() -> None:
    guard = fork_safety.ForkGuard()
    with guard:
        guard.before_fork()
        guard.after_fork()
        with guard:
            pass


def test_a_fork_whose_end_is_never_reported_does_not_block_threads_forever() -> None:
    guard = fork_safety.ForkGuard()
    guard.after_fork()  # an interrupt may also keep the guard from learning that a fork began
    with guard:
        pass
    guard.before_fork()
    with guard:
        pass


def test_a_thread_waits_while_a_fork_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = fork_safety.ForkGuard()
    order: list[str] = []

    def enter() -> None:
        with guard:
            order.append("entered")

    monkeypatch.setattr(fork_safety, "MAX_DELAY_SECONDS", 10.0)
    guard.before_fork()
    thread = threading.Thread(target=enter)
    thread.start()
    order.append("forked")
    guard.after_fork()
    thread.join()
    assert order == ["forked", "entered"]
