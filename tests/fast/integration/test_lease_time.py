"""The lease as seen by the holder, and the process that is the holder."""

from django_redislock import locks
from django_redislock.engine import renewer
from tests.tools import Child

FORKING = """
import os
from django_redislock import LockNotOwnedError, locks

lock = locks.lock("a", timeout=30)
assert lock.acquire()
if os.fork() == 0:
    try:
        lock.release()
    except LockNotOwnedError:
        os._exit(0)
    os._exit(1)
_, status = os.wait()
say(f"child {os.waitstatus_to_exitcode(status)}")
lock.release()
"""


def test_a_renewed_lease_counts_from_before_the_request(moving_clock, monkeypatch):
    run, sent = renewer.run, []

    def slow(*args):
        sent.append(moving_clock.now())
        answer = run(*args)
        moving_clock.pass_time(5)
        return answer

    monkeypatch.setattr(renewer, "run", slow)
    with locks.lock("a", timeout=30) as lock:
        moving_clock.forward(15)
        assert sent[0] < lock._visible_hold().deadline <= sent[0] + 30


def test_a_shorter_lease_does_not_end_at_least_for():
    lock = locks.lock("a", timeout=1, at_least_for=60)
    assert lock.acquire()
    lock.reacquire()
    lock.extend(5, replace_ttl=True)
    assert locks.get("a").ttl > 50
    lock.release()
    assert locks.force_release("a") == 1


def test_a_forked_child_is_not_the_holder():
    with Child(FORKING) as child:
        child.expect("child 0")
        assert child.wait() == 0


def test_a_lost_lock_is_not_entered_again(moving_clock):
    lost, again = (locks.lock("a", timeout=30, reentrant=True) for _ in range(2))
    assert lost.acquire()
    assert locks.force_release("a") == 1
    moving_clock.forward(15)
    assert lost.lost
    assert again.acquire()
    assert not again.lost
    assert locks.get("a").fence_token == again.fence_token
    again.release()
