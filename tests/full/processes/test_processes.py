"""Several processes, and what becomes of their locks when they are killed or stopped."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from django_redislock import locks
from django_redislock.engine import forks
from tests.lock_tools import free, start, waiting
from tests.tools import ROOT, Child, wait_until


@pytest.mark.parametrize(
    ("using", "seconds"),
    [
        ("default", 4),
        pytest.param("django_redis", 2, marks=pytest.mark.slow),
        pytest.param("default", 20, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
def test_no_update_is_lost(using, seconds):
    outcome = hammer("--using", using, "--seconds", str(seconds))
    print(outcome)
    assert outcome["troubles"] == []
    assert outcome["found"] == sum(outcome["added"])
    assert all(added > seconds for added in outcome["added"])


@pytest.mark.slow
def test_no_update_is_lost_when_leases_are_short():
    outcome = hammer("--timeout", "1", "--seconds", "2")
    assert outcome["troubles"] == []
    assert outcome["found"] == sum(outcome["added"])


def hammer(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tests.full.processes.hammer", *arguments],
        cwd=ROOT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdout=subprocess.PIPE,
        check=False,
    )
    return json.loads(done.stdout)


HOLDER = """
import threading
from django_redislock import locks
from django_redislock.signals import lock_lost

told, both = [], threading.Event()
def tell(what):
    told.append(what)
    if len(told) == 2:
        both.set()

lock = locks.lock("a", timeout=float(sys.argv[1]), on_lost=lambda lock: tell("on_lost"))
def heard(sender, **about):
    tell("signal")
lock_lost.connect(heard)
lock.acquire()
say(f"holds {lock.fence_token}")
hear()
say(f"lost {lock.lost}")
both.wait(60)
say(f"told {sorted(told)}")
hear()
"""


def test_a_killed_holders_lock_goes_to_who_waits_within_its_lease():
    with Child(HOLDER, "2") as holder:
        holder.expect("holds")
        waiter = start(_hold_for_a_moment)
        waiting(locks, "a", 1)
        holder.kill()
        began = time.monotonic()
        assert waiter.result(60)
        assert time.monotonic() - began < 3


@pytest.mark.slow
def test_a_killed_holders_lock_goes_to_a_newcomer_within_its_lease():
    with Child(HOLDER, "2") as holder:
        holder.expect("holds")
        holder.kill()
        began = time.monotonic()
        wait_until(_hold_at_once)
        assert time.monotonic() - began < 3


def _hold_for_a_moment():
    with locks.lock("a"):
        return True


def _hold_at_once():
    lock = locks.lock("a", blocking=False)
    if lock.acquire():
        lock.release()
        return True
    return False


MANY = """
import os
from django_redislock import locks

group = 0
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, group)
        locks.lock("a").acquire()
        os._exit(1)
    group = group or pid
    os.setpgid(pid, group)  # in both, for the next child finds the group or it doesn't
say(f"group {group}")
killed = 0
for _ in range(int(sys.argv[1])):
    _, status = os.wait()
    killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == 9
say(f"killed {killed}")
hear()
"""


@pytest.mark.slow
def test_a_hundred_dead_waiters_are_passed_over_within_seconds():
    lock = locks.lock("a")
    assert lock.acquire()
    with Child(MANY, "100") as child:
        group = int(child.expect("group", timeout=60))
        try:
            waiting(locks, "a", 100, timeout=60)
            alive = start(_hold_for_a_moment)
            waiting(locks, "a", 101)
        finally:
            os.killpg(group, signal.SIGKILL)
        lock.release()
        began = time.monotonic()
        assert alive.result(60)
        took = time.monotonic() - began
        print(f"{took:.2f} s")
        assert took < 5
        assert child.expect("killed") == "100"
    free(locks, "a")


def test_a_holder_that_was_stopped_past_its_lease_knows_that_it_lost_it():
    with Child(HOLDER, "1") as holder:
        first = int(holder.expect("holds"))
        psutil.Process(holder.pid).suspend()
        lock = locks.lock("a", blocking_timeout=20)
        with lock:
            assert lock.fence_token > first
            holder.tell()
            psutil.Process(holder.pid).resume()
            assert holder.expect("lost") == "True"
            assert holder.expect("told") == "['on_lost', 'signal']"
            # What the late one does to renew its own leaves the new holder alone.
            assert lock.owned()


@pytest.mark.slow
def test_a_holder_that_was_stopped_for_less_keeps_it():
    with Child(HOLDER, "4") as holder:
        holder.expect("holds")
        before = locks.get("a")
        psutil.Process(holder.pid).suspend()
        wait_until(lambda: locks.get("a").ttl < 2)
        psutil.Process(holder.pid).resume()
        wait_until(lambda: locks.get("a").ttl > 3)
        holder.tell()
        assert holder.expect("lost") == "False"
        assert locks.get("a").token == before.token
    assert locks.force_release("a") == 1


FORKED = """
import os, threading
from django_redislock import LockNotOwnedError, locks
from tests.tools import wait_until

def say(text):  # in one piece, as two processes share the pipe
    os.write(1, f"{text}\\n".encode())

lock = locks.lock("a", timeout=2)
lock.acquire()
say("holds")
hear()
pid = os.fork()
if pid == 0:
    try:
        lock.release()
    except LockNotOwnedError:
        say("child may not release")
    try:
        locks.assert_held("a")
    except LockNotOwnedError:
        say("child does not hold")
    say(f"child has {lock.token} {lock.fence_token} {lock.owned()} {lock.lost}")
    own = locks.lock("b", timeout=2)
    own.acquire()
    names = [thread.name for thread in threading.enumerate()]
    say(f"child renews {names.count('redislock-renewal')}")
    say(f"child asks {lock.acquire(blocking=False)}")
    wait_until(lambda: locks.get("a") is None)
    say(f"child lost {own.lost}")
    own.release()
    say("child released")
    os._exit(0)
say(f"parent {lock.owned()}")
os.waitpid(pid, 0)
hear()
"""


def test_a_forked_child_has_no_part_in_its_parents_locks():
    with Child(FORKED, PYTHONWARNINGS="ignore") as parent:
        parent.expect("holds")
        parent.tell()
        said = sorted(parent.expect("") for _ in range(6))
        assert said == [
            "child asks False",
            "child does not hold",
            "child has None None False False",
            "child may not release",
            "child renews 1",
            "parent True",
        ]
        # The parent still renews, whatever its child does.
        renewed = locks.get("a").expires_at
        wait_until(lambda: locks.get("a").expires_at > renewed)
        parent.kill()
        # Nobody renews any more, although the child lives.
        free(locks, "a", timeout=4)
        free(locks, "b")


FORKED_UNTOLD = """
import ctypes, os, time
from django_redislock import locks
from tests.tools import wait_until

with locks.lock("a"):
    pass
time.sleep(0.2)  # until the renewal sleeps: it must not be about to ask for the interpreter's lock
if pid := ctypes.PyDLL(None).fork():
    os.waitpid(pid, 0)
    hear()
lock = locks.lock("a", timeout=1)
lock.acquire()
begun = locks.get("a").expires_at
wait_until(lambda: lock.lost or locks.get("a").expires_at > begun, timeout=10)
say(f"lost {lock.lost}")
os._exit(0)
"""


def test_a_child_of_whose_fork_python_is_not_told_renews_too():  # as uWSGI forks
    with Child(FORKED_UNTOLD, PYTHONWARNINGS="ignore") as parent:
        parent.expect("lost False")


FORK_FIRST = """
import os
from django_redislock import locks

def say(text):  # in one piece, as two processes share the pipe
    os.write(1, f"{text}\\n".encode())

with locks.lock("a"):
    pass
pid = os.fork()
me = "parent" if pid else "child"
for _ in range(50):
    with locks.lock("a", blocking_timeout=20) as lock:
        assert lock.owned()
say(me)
if not pid:
    os._exit(0)
os.waitpid(pid, 0)
hear()
"""


@pytest.mark.slow
def test_after_a_fork_both_use_locks_over_connections_of_their_own():
    with Child(FORK_FIRST, PYTHONWARNINGS="ignore") as parent:
        assert sorted(parent.expect("") for _ in range(2)) == ["child", "parent"]


FORK_MEANWHILE = """
import os, threading
from django_redislock import locks
from django_redislock.connection import server
from django_redislock.engine import forks

def say(text):  # in one piece, as two processes share the pipe
    os.write(1, f"{text}\\n".encode())

pool = server("default").client.connection_pool
inside = threading.Event()

def talk():
    with forks.gate, pool._lock:  # as a renewal does for a moment
        inside.set()
        threading.Event().wait(0.3)

thread = threading.Thread(target=talk)
thread.start()
inside.wait()
pid = os.fork()
with locks.lock("a", blocking_timeout=20):
    say("parent" if pid else "child")
if not pid:
    os._exit(0)
thread.join()
with forks.gate:
    say("parent goes on")
os.waitpid(pid, 0)
hear()
"""


def test_a_fork_waits_for_a_thread_of_ours_that_talks_to_redis():
    with Child(FORK_MEANWHILE, PYTHONWARNINGS="ignore") as parent:
        said = sorted(parent.expect("") for _ in range(3))
        assert said == ["child", "parent", "parent goes on"]


def test_a_fork_does_not_wait_for_ever():
    gate = forks.Gate()
    with gate:
        gate.close()
        gate.open()
        with gate:
            pass


def test_a_fork_that_an_interrupt_keeps_from_being_told_of_holds_nobody_up_for_ever(monkeypatch):
    monkeypatch.setattr(forks, "LONGEST", 0.02)
    gate = forks.Gate()
    gate.open()  # it was not told that it began
    with gate:
        pass
    gate.close()  # nor, here, that it is over
    with gate:
        pass


def test_whoever_comes_while_a_fork_is_under_way_waits():
    gate, order = forks.Gate(), []

    def come():
        with gate:
            order.append("came")

    gate.close()
    thread = threading.Thread(target=come)
    thread.start()
    order.append("forked")
    gate.open()
    thread.join()
    assert order == ["forked", "came"]
