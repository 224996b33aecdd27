"""Redis does not respond."""

import threading

import pytest
from redis.exceptions import TimeoutError

from django_redislock import LockLost
from tests.lock_tools import free, hanging, within

ASKED_FIRST = {"health_check_interval": 0.001, "socket_timeout": None}
"""Options with which redis-py sends a PING to an unresponsive server and waits indefinitely."""


@pytest.mark.hurried
@pytest.mark.parametrize("options", [{}, ASKED_FIRST], ids=["", "asked first"])
def test_an_unresponsive_server_is_an_error_in_time_and_a_loss_is_reported(
    alias_on, own_server, options
):
    own_locks, reported = alias_on(own_server.url, **options), threading.Event()
    lock = own_locks.lock("held", timeout=1.5, on_lost=lambda lock: reported.set())
    assert lock.acquire()
    with hanging(own_server):
        with within(4), pytest.raises(TimeoutError):
            own_locks.lock("a", timeout=60).acquire(blocking_timeout=1)
        assert reported.wait(60)
    with pytest.raises(LockLost):
        lock.release()
    # The server may still read the request. A lock that is granted then is released.
    free(own_locks, "a")
    with own_locks.lock("a", blocking_timeout=5):
        pass
    free(own_locks, "a")
