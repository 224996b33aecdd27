"""The gate that keeps a fork away from threads that talk to Redis."""

import threading

import pytest

from django_redislock.engine import fork_safety


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_safety, "LONGEST", 0.02)


def test_a_thread_may_pass_after_a_fork() -> None:
    gate = fork_safety.Gate()
    with gate:
        gate.close()
        gate.open()
        with gate:
            pass


def test_a_fork_whose_end_is_never_reported_does_not_block_threads_forever() -> None:
    gate = fork_safety.Gate()
    gate.open()  # an interrupt may also keep the gate from learning that a fork began
    with gate:
        pass
    gate.close()
    with gate:
        pass


def test_a_thread_waits_while_a_fork_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = fork_safety.Gate()
    order: list[str] = []

    def enter() -> None:
        with gate:
            order.append("entered")

    monkeypatch.setattr(fork_safety, "LONGEST", 10.0)
    gate.close()
    thread = threading.Thread(target=enter)
    thread.start()
    order.append("forked")
    gate.open()
    thread.join()
    assert order == ["forked", "entered"]
