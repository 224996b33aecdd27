"""Acquiring and releasing for the sake of it, under names that nobody else uses."""

import math
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, TypeVar
from weakref import ref

from redis.exceptions import ConnectionError, TimeoutError

from .. import clock
from ..backends import Server
from ..engine import protocol, queries
from ..engine.leases import Lease
from ..engine.operations import Call, Flow, Op
from ..engine.renewer import Renewer
from ..engine.store import AcquireRequest
from ..exceptions import LockLost
from ..identity import current_owner, info_text

T = TypeVar("T")
RenewerOf: TypeAlias = Callable[[Server, str], Renewer]

PREFIX = "django-redislock:probe:"
"""What the name of every probe's lock begins with."""

SPARE = 1.0
"""Seconds by which a probe's lease is longer than what it waits for its answers."""

LATE = 60.0
"""Seconds for which a server that did not answer may still read what it was asked."""


def ping(server: Server, renewer: RenewerOf, limit: float) -> Flow[float]:
    """Hold a lock of a name of its own and release it; the seconds that this took.

    It does not go down in the history, which who pings each second would fill.
    """
    return _without_history(_ping(server, renewer, limit))


def _ping(server: Server, renewer: RenewerOf, limit: float) -> Flow[float]:
    began = clock.now()
    request = _request(server, limit)
    try:
        yield from protocol.acquire(request, -math.inf)
        kept = yield from _release(request, began + limit)
    except GeneratorExit:
        raise
    except BaseException as error:  # an interrupt too
        yield from _tidy(server, renewer, [request], error)
        raise
    if not kept:
        raise _lost(request)
    return clock.now() - began


class Rehearsal:
    """All that locks do in their daily life, once: a second one waits, and is handed the lock. It
    does not go down in the history either."""

    def __init__(self, server: Server, renewer: RenewerOf, limit: float) -> None:
        self.step = "acquire"
        """What was done last, or is to blame."""

        self._server, self._renewer = server, renewer
        self._until = clock.now() + limit
        self._first = _request(server, limit)
        self._second = _request(server, limit, self._first.keys.name)

    def run(self) -> Flow[None]:
        """Raises redis-py's errors; `step` says then what was refused."""
        try:
            yield from _without_history(self._steps())
        except GeneratorExit:
            raise
        except BaseException as error:
            requests = [
                self._second,
                self._first,
            ]  # who waits goes first, or it is handed the lock
            yield from _tidy(self._server, self._renewer, requests, error)
            raise

    def _steps(self) -> Flow[None]:
        first, second = self._first, self._second
        yield from protocol.acquire(first, -math.inf)
        self.step = "renew"
        yield from protocol.renew(
            first.keys, first.token, 0, "renew", reply_timeout=_left(self._until)
        )
        self.step = "queue"
        turn = protocol.acquire(second, self._until)
        asked = yield next(turn)
        try:
            wait = turn.send(asked)
        except StopIteration as over:  # it does not wait
            if over.value:
                raise _lost(first) from None
            raise TimeoutError("Redis did not complete the test in time") from None
        self.step = "inspect"  # while somebody waits, who is told of too
        yield from queries.get(self._server.keys, first.keys.name, _left(self._until))
        self.step = "hand over"
        yield from _release(first, self._until)
        self.step = "wait"
        granted = yield from _resume(turn, wait)
        self.step = "release"
        kept = yield from _release(second, self._until)
        if not (granted and kept):
            raise _lost(second)


def _request(server: Server, limit: float, name: str | None = None) -> AcquireRequest:
    name = name or next(filter(server.stores, iter(_probe_name, None)))
    return AcquireRequest(
        keys=server.keys.of(name),
        token=uuid.uuid4().hex,
        kind="mutex",
        capacity=1,
        weight=1,
        lease=limit + SPARE,
        info=info_text({}, renewed=False),
        is_renewed=False,
        reply_timeout=limit,
    )


def _probe_name() -> str:
    return PREFIX + uuid.uuid4().hex


def _release(request: AcquireRequest, until: float) -> Flow[bool]:
    return protocol.release(request.keys, request.token, reply_timeout=_left(until))


def _left(until: float) -> float:
    return max(until - clock.now(), protocol.FINAL_REPLY_TIMEOUT_SECONDS)


def _without_history(flow: Flow[T]) -> Flow[T]:
    """A flow whose scripts keep none: how much they keep is the last argument of each."""
    try:
        op = next(flow)
        while True:
            if isinstance(op, Call):
                op = replace(op, args=(*op.args[:-1], 0))
            try:
                answer = yield op
            except BaseException as error:  # an interrupt too
                op = flow.throw(error)
            else:
                op = flow.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _resume(flow: Flow[T], op: Op) -> Flow[T]:
    """Go on with a flow that was begun by hand, and requests `op` next."""
    try:
        while True:
            op = flow.send((yield op))
    except StopIteration as stop:
        result: T = stop.value
        return result


def _tidy(
    server: Server, renewer: RenewerOf, requests: list[AcquireRequest], error: BaseException
) -> Flow[None]:
    """Leave nothing behind: now, or, where Redis may yet read what it did not answer, later."""
    for request in requests:
        gone = yield from protocol.cleanup_failed_acquire(request, error)
        if not gone and isinstance(error, ConnectionError | TimeoutError):
            renewer(server.parent, request.keys.name).release_later(_lease(server.parent, request))


def _lease(server: Server, request: AcquireRequest) -> Lease:
    return Lease(
        server,
        request.keys,
        request.token,
        LATE,
        owner=ref(current_owner()),
        kind=request.kind,
        weight=request.weight,
        is_renewed=False,
    )


def _lost(request: AcquireRequest) -> LockLost:
    return LockLost(
        "The test lock disappeared before it was released: the server deleted it",
        lock_name=request.keys.name,
    )
