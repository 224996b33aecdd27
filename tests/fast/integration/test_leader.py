"""One process leads. The others stand by, and one of them takes over."""

import asyncio
import signal
import threading

import pytest
from redis.exceptions import ConnectionError

from django_redislock import LockNotAcquired, locks
from django_redislock.testing import alose, held_elsewhere
from tests.lock_tools import start, waiting, within
from tests.tools import wait_until

SECONDS = 60
"""A wait that only a bug can exceed."""


pytestmark = pytest.mark.usefixtures("default_sigterm")


def lead_once(leads):
    for term in locks.leader("poller"):
        leads(term)
        break


def lead(leads):
    for term in locks.leader("poller"):
        leads(term)
        term.wait(SECONDS)


async def alead(leads):
    async for term in locks.aleader("poller"):
        leads(term)
        await term.wait(SECONDS)


BOTH = pytest.mark.parametrize(
    "lead", [lead, lambda leads: asyncio.run(alead(leads))], ids=["sync", "async"]
)


async def test_each_iteration_is_a_term_with_a_larger_fencing_token():
    tokens = []
    for term in locks.leader("poller"):
        term.assert_held()
        locks.assert_held("poller")
        tokens.append(term.fence_token)
        if len(tokens) == 3:
            break
    assert locks.get("poller") is None
    async for term in locks.aleader("poller"):
        await term.aassert_held()
        await locks.aassert_held("poller")
        tokens.append(term.fence_token)
        if len(tokens) == 6:
            break
    assert tokens == sorted(set(tokens))
    assert locks.get("poller") is None


@BOTH
def test_an_exception_steps_down(lead):
    """In async code, the event loop steps down at its end."""

    def leads(term):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lead(leads)
    assert locks.get("poller") is None


def test_close_in_another_thread_ends_the_loop():
    terms = locks.leader("poller")
    leads = threading.Event()

    def lead():
        for term in terms:
            leads.set()
            assert term.wait(SECONDS)

    leading = start(lead)
    assert leads.wait(SECONDS)
    candidate = locks.leader("poller")
    standing = start(next, candidate, None)
    waiting(locks, "poller", 1)
    assert locks.queue("poller")[0].metadata == {"role": "leader"}
    with pytest.raises(LockNotAcquired, match=r"within 0.1 s: held by"):
        next(locks.leader("poller", blocking_timeout=0.1))
    candidate.close()
    terms.close()
    leading.result(SECONDS)
    assert standing.result(SECONDS) is None, "a candidate that is closed does not lead"
    assert locks.get("poller") is None
    assert next(terms, None) is None
    terms.close()


async def test_a_cancelled_task_steps_down():
    leads = asyncio.Event()
    task = asyncio.create_task(alead(lambda term: leads.set()))
    await leads.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await locks.aget("poller") is None


def test_a_leader_that_stands_again_goes_to_the_end_of_the_queue():
    order = []
    terms = locks.leader("poller")
    next(terms)
    others = []
    for name in "first", "second":
        others.append(start(lead_once, lambda term, name=name: order.append(name)))
        waiting(locks, "poller", len(others))
    next(terms)
    assert order == ["first", "second"]
    terms.close()
    for each in others:
        each.result(60)


def test_wait_returns_early_when_the_term_ends():
    heard = []
    terms = locks.leader("poller", timeout=1.5, on_lost=heard.append, metadata={"site": 7})
    term = next(terms)
    assert locks.get("poller").metadata == {"role": "leader", "site": 7}
    for wrong in (-1, "5"):
        with pytest.raises((TypeError, ValueError), match="seconds"):
            term.wait(wrong)
    assert term.wait(0.1) is False
    locks.force_release("poller")
    with within(20):
        assert term.wait(SECONDS) is True
    wait_until(lambda: heard == [term])  # it is called after the end of the wait
    again = next(terms)
    assert again.wait(0) is False
    assert again is not term
    again.release()
    assert again.lost
    assert again.wait(SECONDS) is True  # at once
    terms.close()
    assert heard == [term]


async def test_wait_returns_early_in_async_code():
    terms = locks.aleader("poller", timeout=30)
    term = await anext(terms)
    assert await term.wait(0) is False
    wait = asyncio.create_task(term.wait(SECONDS))
    await alose("poller")
    assert await wait is True
    again = await anext(terms)
    wait = asyncio.create_task(again.wait(SECONDS))
    await again.arelease()
    assert await wait is True
    assert again.lost
    await terms.aclose()


# Outages


def test_a_leader_stands_again_in_an_outage(proxied, caplog, alias_on):
    manager, proxy = proxied
    tokens = []
    with pytest.raises(ConnectionError):  # a wrong address is an error at once
        next(alias_on("redis://127.0.0.1:1/0", alias="away").leader("poller"))

    def lead():
        for term in manager.leader("poller", timeout=1):
            tokens.append(term.fence_token)
            if len(tokens) == 2:
                return
            assert term.wait(SECONDS)

    leading = start(lead)
    wait_until(lambda: tokens)
    proxy.refuse()
    proxy.cut()
    wait_until(lambda: "through an outage: name='poller'" in caplog.text or leading.done())
    proxy.accept()
    leading.result(60)
    assert tokens == sorted(set(tokens))


# SIGTERM


@BOTH
def test_sigterm_exits_after_the_leader_has_stepped_down(lead):
    with pytest.raises(SystemExit) as ended:
        lead(lambda term: signal.raise_signal(signal.SIGTERM))
    assert ended.value.code == 143
    assert locks.get("poller") is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_ends_the_wait_of_a_candidate():
    with held_elsewhere("poller"):
        main = threading.get_ident()

        def strike():
            waiting(locks, "poller", 1)
            signal.pthread_kill(main, signal.SIGTERM)

        striking = start(strike)
        with pytest.raises(SystemExit):
            next(locks.leader("poller"))
        striking.result(60)
        assert not locks.queue("poller")


def test_the_end_of_a_loop_leaves_the_handler_to_the_others():
    first, second = locks.leader("first"), locks.leader("second")
    next(first)
    next(second)
    first.close()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    second.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_your_own_stays_in_place():
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    for _ in locks.leader("poller"):
        signal.raise_signal(signal.SIGTERM)
        break
    assert heard == [signal.SIGTERM]
