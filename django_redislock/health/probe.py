"""Acquire and release a test lock, under a name that nothing else uses."""

import math
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias
from weakref import ref

from redis.exceptions import ConnectionError, TimeoutError

from .. import clock
from ..backends import Server
from ..engine import protocol, queries, store
from ..engine.leases import Lease
from ..engine.operations import Call, Flow, Join, Op, Wait, changed
from ..engine.renewer import Renewer
from ..exceptions import LockLost
from ..identity import current_owner, info_text

RenewerFor: TypeAlias = Callable[[Server, str], Renewer]

NAME_PREFIX = "django-redislock:probe:"

SPARE_LEASE_SECONDS = 1.0
"""How much longer the lease of a test lock is than the time limit of its check."""

LATE_RELEASE_SECONDS = 60.0
"""For how long a server that did not reply may still execute a request."""


def ping(server: Server, renewer: RenewerFor, limit: float) -> Flow[float]:
    """Acquire and release a test lock, and return how many seconds that took.

    A test lock has no event in the history, which frequent pings would fill.
    """
    started_at = clock.now()
    request = _request(server, limit)

    def steps() -> Flow[None]:
        yield from protocol.acquire(request, -math.inf)
        yield from _release(request, started_at + limit)

    yield from _without_trace(steps(), server, renewer, [request])
    return clock.now() - started_at


def exercise(server: Server, renewer: RenewerFor, limit: float, log: list[str]) -> Flow[None]:
    """Run each operation of a lock once, including a waiter and a handover.

    Args:
        server: The server.
        renewer: Returns the renewer that releases a test lock later if the server hangs.
        limit: The maximum duration in seconds, approximately.
        log: Gets the name of each step before the step begins.
    """
    deadline = clock.now() + limit
    left = partial(remaining_seconds, deadline)
    holder = _request(server, limit)
    waiter = replace(holder, token=uuid.uuid4().hex, may_arrive_late=True)
    keys = holder.keys

    def steps() -> Flow[None]:
        log.append("acquire")
        yield from protocol.acquire(holder, -math.inf)
        log.append("renew")
        yield from protocol.renew(keys, holder.token, 0, "renew", reply_timeout=left())
        log.append("queue")
        place = yield Join(keys, waiter.token)
        try:
            yield store.acquire(waiter, place.address, left())
            place.is_waiting = True
            yield from place.inbox.heartbeat()
            log.append("inspect")
            yield from queries.get(server.keys, keys.name, left())
            log.append("hand over")
            yield from _release(holder, deadline)
            log.append("wait")
            yield Wait(place, left())
        finally:
            place.inbox.waiters.pop(place.ticket, None)
        yield from protocol.acquire(waiter, -math.inf)  # confirms the grant
        log.append("release")
        yield from _release(waiter, deadline)

    # The waiter is removed first. Otherwise it would be granted the lock.
    return _without_trace(steps(), server, renewer, [waiter, holder])


def remaining_seconds(deadline: float) -> float:
    """Return how long to wait for a reply. The last reply gets a minimum."""
    return max(deadline - clock.now(), protocol.FINAL_REPLY_TIMEOUT_SECONDS)


def _request(server: Server, limit: float) -> store.AcquireRequest:
    names = iter(lambda: NAME_PREFIX + uuid.uuid4().hex, None)
    return store.AcquireRequest(
        keys=server.keys.of(next(filter(server.stores, names))),
        token=uuid.uuid4().hex,
        kind="mutex",
        capacity=1,
        weight=1,
        lease=limit + SPARE_LEASE_SECONDS,
        info=info_text({}, renewed=False),
        is_renewed=False,
        reply_timeout=limit,
    )


def _release(request: store.AcquireRequest, deadline: float) -> Flow[None]:
    limit = remaining_seconds(deadline)
    if not (yield from protocol.release(request.keys, request.token, reply_timeout=limit)):
        message = "The test lock disappeared before it was released: the server deleted it"
        raise LockLost(message, lock_name=request.keys.name)


def _without_trace(
    steps: Flow[None], server: Server, renewer: RenewerFor, requests: list[store.AcquireRequest]
) -> Flow[None]:
    """Run the steps without history. If one fails, release the locks: now, or later if Redis may
    still execute a request that got no reply."""
    try:
        yield from changed(steps, _without_history)
    except GeneratorExit:
        raise
    except BaseException as error:  # also an interrupt
        for request in requests:
            cleanup = protocol.cleanup_failed_acquire(request, error)
            is_clean = yield from changed(cleanup, _without_history)
            if not is_clean and isinstance(error, ConnectionError | TimeoutError):
                lease = Lease(
                    server.parent,
                    request.keys,
                    request.token,
                    LATE_RELEASE_SECONDS,
                    owner=ref(current_owner()),
                    kind=request.kind,
                    weight=request.weight,
                    is_renewed=False,
                )
                renewer(server.parent, request.keys.name).release_later(lease)
        raise


def _without_history(op: Op) -> Op:
    """Let a script keep no history. Its last argument is the number of events to keep."""
    if isinstance(op, Call):
        # All grants are pushed, so that the wait reads one.
        return replace(op, args=(*op.args[:-1], 0), inbox_of=None)
    return op
