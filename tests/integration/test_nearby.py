"""Waiting awake for answers that come soon."""

import asyncio
import socket
from collections import defaultdict
from threading import current_thread
from weakref import WeakKeyDictionary

import pytest

from django_redislock import locks
from django_redislock.engine import nearby
from django_redislock.engine.nearby import RARELY, Distance, look_out
from tests.faults.proxy import Proxy

from .tools import start, waiting


@pytest.fixture
def looks(monkeypatch):
    """By thread: of each answer that it looked out for, whether it came soon."""
    with locks.lock("first"):  # so that the server knows the scripts
        pass
    looks = defaultdict(list)

    def looking(socket):
        soon = comes_soon(socket)
        looks[current_thread()].append(soon)
        return soon

    comes_soon = nearby._comes_soon
    monkeypatch.setattr(nearby, "_comes_soon", looking)
    monkeypatch.setattr(nearby, "_distances", WeakKeyDictionary())
    return looks


@pytest.fixture
def own_looks(looks):
    """This thread's."""
    return looks[current_thread()]


@pytest.fixture
def patient(monkeypatch):
    """As if any answer came soon that comes at all."""
    monkeypatch.setattr(nearby, "AWAKE", 60)


def looked_out(distance, short, questions):
    """For how many of so many questions, if all answers come soon, or none."""
    count = 0
    for _ in range(questions):
        if distance.is_worth_a_look():
            count += 1
            distance.was(short)
    return count


def test_each_answer_of_a_server_that_is_near_is_looked_out_for():
    assert looked_out(Distance(), True, 1000) == 1000


def test_of_one_that_is_far_few_are():
    distance = Distance()

    assert looked_out(distance, False, 1 + 1 + 1 + 2 + 1 + 4 + 1) == 4
    looked_out(distance, False, 1000)
    assert looked_out(distance, False, 10 * (RARELY + 1)) == 10


def test_one_that_is_near_again_is_found_to_be():
    distance = Distance()
    looked_out(distance, False, 1000)

    looked_out(distance, True, RARELY + 1)

    assert looked_out(distance, True, 1000) == 1000


def test_an_answer_that_is_late_now_and_then_does_not_keep_the_others_from_it():
    distance = Distance()

    for _ in range(100):
        assert looked_out(distance, False, 1) == 1
        assert looked_out(distance, True, 10) == 9


class Connection:
    def __init__(self, socket):
        self._sock = socket


@pytest.fixture
def ends():
    """Of one connection: who looks out for what comes in, and who sends it."""
    here, there = socket.socketpair()
    with here, there:
        yield Connection(here), there


def test_it_ends_as_the_answer_comes_and_leaves_it_to_be_read(ends, patient):
    connection, there = ends
    looking = start(look_out, connection)

    there.send(b"+")

    looking.result(timeout=60)
    assert connection._sock.recv(2) == b"+"


def test_it_ends_where_none_comes(ends, own_looks):
    look_out(ends[0])

    assert own_looks == [False]


def test_a_connection_that_ends_is_left_to_who_reads(ends, patient):
    connection, there = ends
    looking = start(look_out, connection)
    there.close()
    looking.result(timeout=60)

    connection._sock.close()
    look_out(connection)
    connection._sock = None
    look_out(connection)


def test_acquire_and_release_are_looked_out_for(own_looks, patient):
    with locks.lock("a"):
        assert own_looks == [True]
    assert own_looks == [True, True]


def test_who_waits_for_its_turn_sleeps(looks, patient):
    def acquire():
        assert locks.lock("a").acquire()
        return current_thread()

    with locks.lock("a"):
        acquired = start(acquire)
        waiting(locks, "a", 1)
    assert looks[acquired.result(timeout=60)] == [True]  # whether it has to wait


def test_a_server_that_is_far_is_seldom_looked_out_for(alias_on, own_server, own_looks):
    with Proxy("127.0.0.1", own_server.port) as proxy:
        proxy.delay(0.1)  # so long that no machine stalls for it
        lock = alias_on(proxy.url).lock("a")
        for _ in range(6):
            assert lock.acquire()
            lock.release()

    assert own_looks == [False] * 4  # of 12


async def aused():
    async with locks.lock("a"):
        pass


def test_a_loop_that_has_nothing_else_to_do_looks_out_too(own_looks, patient):
    async def again_and_again():
        await aused()  # which connects
        own_looks.clear()
        for _ in range(20):
            await aused()

    asyncio.run(again_and_again())

    assert own_looks  # but for moments in which the renewal has something to do
    assert all(own_looks)


def test_who_else_is_on_the_loop_is_not_held_up(looks, patient):
    async def beside_another():
        always_ready()
        await aused()

    def always_ready():
        asyncio.get_running_loop().call_soon(always_ready)

    asyncio.run(beside_another())

    assert not looks
