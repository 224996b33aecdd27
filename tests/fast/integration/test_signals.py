"""The signals of a lock. Each acquisition that is signalled has an end."""

import asyncio
import contextlib
import time
from collections import defaultdict
from functools import partial

import pytest
from django.db import transaction
from redis.exceptions import ConnectionError

from django_redislock import LockLost, locks, signals
from django_redislock.engine import timing
from tests.lock_tools import free, listening, start, waiting
from tests.tools import wait_until

LIFE = ("waiting", "acquired", "refused", "failed", "released", "lost")


class Heard:
    def __init__(self):
        self.names = []
        self.facts = []

    def note(self, name, /, signal, **facts):
        self.facts.append(facts)
        self.names.append(name)

    def by_acquisition(self):
        names = defaultdict(list)
        for name, facts in zip(self.names, self.facts, strict=True):
            names[facts["acquisition"]].append(name)
        return list(names.values())


@pytest.fixture
def heard():
    heard = Heard()
    with contextlib.ExitStack() as stack:
        for name in LIFE:
            listener = partial(heard.note, name)
            stack.enter_context(listening(getattr(signals, f"lock_{name}"), listener))
        yield heard


def test_signals_of_acquisition_and_release(manager, heard):
    lock = manager.lock("a")
    began = time.monotonic()
    with lock:
        fence = lock.fence_token
        inside = time.monotonic()
        time.sleep(0.05)
    ended = time.monotonic()
    assert heard.names == ["acquired", "released"]
    acquired, released = heard.facts
    assert 0 <= acquired.pop("waited") <= inside - began
    assert 0.05 <= released.pop("held") <= ended - began
    assert acquired == released
    assert acquired == {
        "sender": type(lock),
        "lock": lock,
        "using": manager.alias,
        "name": "a",
        "kind": "mutex",
        "acquisition": acquired["acquisition"],
        "fence_token": fence,
    }
    assert repr(acquired["acquisition"]) == "<Acquisition of 'a'>"


def test_a_wait_is_signalled_once_and_at_once(heard, hold):
    holder = hold("a")
    waiter = locks.lock("a")
    waits = start(lambda: waiter.acquire() and waiter.release())
    wait_until(lambda: "waiting" in heard.names)
    time.sleep(2 * timing.HEARTBEAT_SECONDS)  # the waiter sends another request in this time
    assert heard.names == ["acquired", "waiting"]
    holder.release()
    waits.result(60)
    assert ["waiting", "acquired", "released"] in heard.by_acquisition()
    [acquired] = [each for each in heard.facts if each["lock"] is waiter and "waited" in each]
    assert acquired["waited"] >= 2 * timing.HEARTBEAT_SECONDS


def test_an_acquisition_in_vain_sends_refused(heard, hold):
    hold("a")
    for options in ({"blocking": False}, {"blocking_timeout": 0.2}):
        assert start(locks.lock("a", **options).acquire).result(60) is False
    assert heard.names == ["acquired", "refused", "waiting", "refused"]
    assert heard.facts[1]["waited"] < 0.2 <= heard.facts[-1]["waited"]


def test_several_locks_and_servers_send_one_signal(three_servers, heard):
    with locks.lock_many(["b", "a"]):
        pass
    for facts in heard.facts:
        assert (facts["name"], facts["kind"], facts["fence_token"]) == ("a, b", "mutex", None)
    with locks.quorum("a", three_servers) as lock:
        fence = lock.fence_token
    assert heard.names == ["acquired", "released"] * 2
    for facts in heard.facts[2:]:
        assert (facts["using"], facts["kind"]) == ("default, second, third", "quorum")
        assert facts["fence_token"] == fence


# Acquisitions that end with an error


def test_a_wait_that_ends_with_an_error_sends_failed(own_locks, own_server, heard):
    holder = own_locks.lock("a")
    assert holder.acquire()
    waits = start(own_locks.lock("a", blocking_timeout=1.5).acquire)
    waiting(own_locks, "a", 1)
    own_server.stop()
    with pytest.raises(ConnectionError):
        waits.result(60)
    assert heard.facts[-1]["error"].__class__ is ConnectionError
    with pytest.raises(ConnectionError):
        holder.release()
    assert heard.by_acquisition() == [["acquired", "released"], ["waiting", "failed"]]


# Failing receivers


def many_of_one(name, **options):
    return locks.lock_many([name], **options)


@pytest.mark.parametrize("make", [locks.lock, many_of_one])
def test_an_interrupt_in_a_receiver_releases_the_lock(heard, make):
    def interrupt(**about):
        raise Stop

    lock = make("a", timeout=60)
    with listening(signals.lock_acquired, interrupt), pytest.raises(Stop):
        lock.acquire()
    free(locks, "a")
    assert heard.names == ["acquired", "released"]
    with locks.lock("a"), listening(signals.lock_waiting, interrupt):
        with pytest.raises(Stop):
            start(lock.acquire).result(60)
        assert locks.get("a").waiters == 0


class Stop(BaseException):
    """An exception that `send_robust()` does not catch."""


def test_a_failing_receiver_has_no_effect(caplog):
    def fail(signal, **about):
        raise ValueError

    async def listen(**about):
        pass

    with contextlib.ExitStack() as stack:
        for name in LIFE:
            stack.enter_context(listening(getattr(signals, f"lock_{name}"), fail))
        stack.enter_context(listening(signals.lock_acquired, listen))
        with locks.lock("a"):
            assert start(locks.lock("a", blocking_timeout=0.1).acquire).result(60) is False
    assert caplog.text.count("ValueError") >= 4
    assert locks.get("a") is None


# The end of a hold


def test_a_loss_is_signalled_before_the_release(manager, heard):
    lock = manager.lock("a", timeout=1)
    assert lock.acquire()
    manager.force_release("a")
    wait_until(lambda: "lost" in heard.names)
    assert heard.names == ["acquired", "lost"]
    with pytest.raises(LockLost):
        lock.release()
    assert heard.names == ["acquired", "lost", "released"]
    assert len({facts["acquisition"] for facts in heard.facts}) == 1
    assert {(facts["using"], facts["kind"]) for facts in heard.facts} == {(manager.alias, "mutex")}


@pytest.mark.django_db(transaction=True)
def test_a_lock_with_release_on_commit_sends_released_at_the_commit(heard):
    with transaction.atomic():
        with locks.lock("a", release_on_commit=True):
            pass
        with locks.lock("a"):  # entered again
            pass
        assert heard.names == ["acquired"]
    assert heard.names == ["acquired", "released"]


async def test_a_wait_that_is_cancelled_sends_failed(heard):
    async with locks.lock("a"):
        waits = asyncio.create_task(locks.lock("a").aacquire())
        await asyncio.to_thread(wait_until, lambda: "waiting" in heard.names)
        waits.cancel()
        await asyncio.wait([waits])
    assert heard.by_acquisition() == [["acquired", "released"], ["waiting", "failed"]]
