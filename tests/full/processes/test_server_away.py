"""Redis does not respond, or restarts."""

import threading

import pytest
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError, TimeoutError
from redis.retry import Retry

from django_redislock import LockLost
from tests.lock_tools import free, hanging, start, waiting, within

ASKED_FIRST = {"health_check_interval": 0.001, "socket_timeout": None}
"""Options with which redis-py sends a PING to an unresponsive server and waits indefinitely."""


@pytest.mark.hurried
@pytest.mark.parametrize("options", [{}, ASKED_FIRST], ids=["", "asked first"])
def test_an_unresponsive_server_is_an_error_after_the_timeout(alias_on, own_server, options):
    own_locks = alias_on(own_server.url, **options)
    with own_locks.lock("warm"):
        pass
    with hanging(own_server), within(4), pytest.raises(TimeoutError):
        own_locks.lock("a", timeout=60).acquire(blocking_timeout=1)
    # The server may still read the request. A lock that is granted then is released.
    free(own_locks, "a")
    with own_locks.lock("a", blocking_timeout=5):
        pass
    free(own_locks, "a")


def test_a_waiter_whose_alias_retries_survives_a_restart(alias_on, own_server):
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
    # The server has lost its data, including the lock.
    waiter.result(60)
    assert entered.is_set()
    with pytest.raises(LockLost):
        holder.release()


@pytest.mark.parametrize("options", [{}, ASKED_FIRST], ids=["", "asked first"])
def test_a_loss_is_reported_while_the_server_does_not_respond(alias_on, own_server, options):
    own_locks, reported = alias_on(own_server.url, **options), threading.Event()
    lock = own_locks.lock("a", timeout=1.5, on_lost=lambda lock: reported.set())
    assert lock.acquire()
    with hanging(own_server):
        assert reported.wait(60)
    with pytest.raises(LockLost):
        lock.release()
