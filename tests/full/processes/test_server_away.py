"""Redis does not respond, or restarts with its data."""

import asyncio
import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError, TimeoutError
from redis.retry import Retry

from django_redislock import LockLost
from django_redislock.testing import EmbeddedServer
from tests.lock_tools import (
    awaiting,
    connecting,
    free,
    hanging,
    start,
    waiting,
)
from tests.tools import wait_until


@contextmanager
def within(seconds):
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def test_a_release_that_could_not_be_sent_is_repeated(alias_on, own_server, own_redis):
    own_redis.config_set("appendonly", "yes")  # so that a restart loses nothing
    own_redis.config_set("appendfsync", "always")
    wait_until(lambda: own_redis.info("persistence")["aof_rewrite_in_progress"] == 0)
    own_server.config |= {"appendonly": "yes"}
    # Nobody answers at that port until the server is there again.
    own = alias_on(own_server.url)
    lock = own.lock("a", timeout=60)
    assert lock.acquire()
    own_server.stop()
    with pytest.raises(ConnectionError):
        lock.release()
    own_server.start()
    free(own, "a", timeout=10)


ASKED_FIRST = {"health_check_interval": 0.001, "socket_timeout": None}
"""Options with which redis-py asks a server that hangs whether it is there, and waits for ever."""


@pytest.mark.hurried
@pytest.mark.parametrize("options", [{}, ASKED_FIRST], ids=["", "asked first"])
def test_a_hanging_server_is_an_error_when_the_wait_is_over(alias_on, own_server, options):
    own_locks = alias_on(own_server.url, **options)
    with own_locks.lock("warm"):
        pass
    with hanging(own_server), within(2), pytest.raises(TimeoutError):
        own_locks.lock("a", timeout=60).acquire(blocking_timeout=1)
    # The request may be read yet; what it was granted is given back.
    free(own_locks, "a")
    with own_locks.lock("a", blocking_timeout=5):
        pass
    free(own_locks, "a")


@pytest.mark.hurried
def test_a_server_that_hangs_while_one_waits_is_an_error_when_the_wait_is_over(
    own_locks, own_server
):
    with own_locks.lock("a"):
        waiter = start(own_locks.lock("a", timeout=60, blocking_timeout=1.5).acquire)
        waiting(own_locks, "a", 1)
        with hanging(own_server), within(3), pytest.raises(TimeoutError):
            waiter.result(60)
        waiting(own_locks, "a", 0)
    free(own_locks, "a")


@pytest.mark.hurried
def test_a_server_that_hangs_while_a_task_waits_is_an_error_when_the_wait_is_over(
    own_locks, own_server
):
    async def use():
        holder = own_locks.lock("a")
        await holder.aacquire()
        waiter = asyncio.create_task(
            own_locks.lock("a", timeout=60, blocking_timeout=1.5).aacquire()
        )
        await awaiting(own_locks, "a", 1)
        with hanging(own_server), within(3), pytest.raises(TimeoutError):
            await waiter
        await holder.arelease()

    asyncio.run(use())
    free(own_locks, "a")


def test_a_waiter_whose_alias_retries_goes_on_through_a_restart(alias_on, own_server):
    retry = Retry(ConstantBackoff(0.1), 100, supported_errors=(ConnectionError, OSError))
    own = alias_on(own_server.url, retry=retry, retry_on_error=[ConnectionError])
    holder = own.lock("a", timeout=30)
    assert holder.acquire()
    entered = threading.Event()

    def hold():
        with own.lock("a"):
            entered.set()

    waiter = start(hold)
    waiting(own, "a", 1)
    own_server.stop()
    own_server.start()
    # Its data is gone, and with it the lock that was waited for.
    waiter.result(60)
    assert entered.is_set()
    with pytest.raises(LockLost):
        holder.release()


@pytest.mark.hurried
def test_a_server_that_lets_nobody_connect_is_an_error_when_the_wait_is_over(
    own_locks, own_server, own_redis
):
    assert own_redis.ping()
    with hanging(own_server), within(2), pytest.raises(TimeoutError):
        own_locks.lock("a", blocking_timeout=1).acquire()


@pytest.mark.parametrize("options", [{}, ASKED_FIRST], ids=["", "asked first"])
def test_a_loss_is_told_while_the_server_still_hangs(alias_on, own_server, options):
    own_locks, told = alias_on(own_server.url, **options), threading.Event()
    lock = own_locks.lock("a", timeout=1.5, on_lost=lambda lock: told.set())
    assert lock.acquire()
    with hanging(own_server):
        assert told.wait(4)
    with pytest.raises(LockLost):
        lock.release()


def test_a_connect_that_fails_after_its_wait_is_over_harms_nobody(alias_on):
    with EmbeddedServer() as server:
        own = alias_on(server.url, max_connections=1)
        with hanging(server):
            with pytest.raises(TimeoutError):
                own.lock("a", blocking_timeout=1).acquire()
            assert connecting()
            os.kill(server.pid, signal.SIGKILL)
        server.stop()
        wait_until(lambda: not connecting())
        server.start()
        free(own, "a")
        with own.lock("a", blocking_timeout=5):
            pass
