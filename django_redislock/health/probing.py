"""Acquiring and releasing for the sake of it, under names that nobody else uses."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, TypeVar

from redis.exceptions import ConnectionError, TimeoutError

from .. import clock
from ..backends import Server
from ..engine import protocol, queries
from ..engine.lease import Lease
from ..engine.operations import Call, Flow, Op
from ..engine.renewer import Book
from ..exceptions import LockLost
from ..identity import current_owner, info_text

T = TypeVar("T")
BookOf: TypeAlias = Callable[[Server, str], Book]

PREFIX = "django-redislock:probe:"
"""What the name of every probe's lock begins with."""

SPARE = 1.0
"""Seconds by which a probe's lease is longer than what it waits for its answers."""

LATE = 60.0
"""Seconds for which a server that did not answer may still read what it was asked."""


def ping(server: Server, book: BookOf, limit: float) -> Flow[float]:
    """Hold a lock of a name of its own and release it; the seconds that this took.

    It does not go down in the history, which who pings each second would fill.
    """
    return _without_history(_ping(server, book, limit))


def _ping(server: Server, book: BookOf, limit: float) -> Flow[float]:
    began = clock.now()
    want = _want(server, limit)
    try:
        yield from protocol.hold_for(want)
        kept = yield from _release(want, began + limit)
    except GeneratorExit:
        raise
    except BaseException as error:  # an interrupt too
        yield from _tidy(server, book, [want], error)
        raise
    if not kept:
        raise _lost(want)
    return clock.now() - began


class Rehearsal:
    """All that locks do in their daily life, once: a second one waits, and is handed the lock. It
    does not go down in the history either."""

    def __init__(self, server: Server, book: BookOf, limit: float) -> None:
        self.step = "acquire"
        """What was done last, or is to blame."""

        self._server, self._book = server, book
        self._until = clock.now() + limit
        self._first = _want(server, limit)
        self._second = _want(server, limit, self._first.keys.name)

    def run(self) -> Flow[None]:
        """Raises redis-py's errors; `step` says then what was refused."""
        try:
            yield from _without_history(self._steps())
        except GeneratorExit:
            raise
        except BaseException as error:
            wants = [self._second, self._first]  # who waits goes first, or it is handed the lock
            yield from _tidy(self._server, self._book, wants, error)
            raise

    def _steps(self) -> Flow[None]:
        first, second = self._first, self._second
        yield from protocol.hold_for(first)
        self.step = "renew"
        yield from protocol.renew(first.keys, first.token, 0, "renew", limit=_left(self._until))
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


def _want(server: Server, limit: float, name: str | None = None) -> protocol.Want:
    name = name or next(filter(server.stores, iter(_probe_name, None)))
    return protocol.Want(
        keys=server.keys.of(name),
        token=uuid.uuid4().hex,
        kind="mutex",
        capacity=1,
        weight=1,
        lease=limit + SPARE,
        info=info_text({}, renewed=False),
        renewed=False,
        patience=limit,
    )


def _probe_name() -> str:
    return PREFIX + uuid.uuid4().hex


def _release(want: protocol.Want, until: float) -> Flow[bool]:
    return protocol.release(want.keys, want.token, limit=_left(until))


def _left(until: float) -> float:
    return max(until - clock.now(), protocol.GRACE)


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
    """Go on with a flow that was begun by hand, and wants `op` next."""
    try:
        while True:
            op = flow.send((yield op))
    except StopIteration as stop:
        result: T = stop.value
        return result


def _tidy(
    server: Server, book: BookOf, wants: list[protocol.Want], error: BaseException
) -> Flow[None]:
    """Leave nothing behind: now, or, where Redis may yet read what it did not answer, later."""
    for want in wants:
        gone = yield from protocol.give_up(want, error)
        if not gone and isinstance(error, ConnectionError | TimeoutError):
            of_name = book(server.parent, want.keys.name)
            of_name.give_back(_lease(of_name, want))


def _lease(book: Book, want: protocol.Want) -> Lease:
    return Lease(
        book,
        want.keys,
        want.token,
        LATE,
        owner=current_owner(),
        kind=want.kind,
        weight=want.weight,
        renewed=False,
    )


def _lost(want: protocol.Want) -> LockLost:
    return LockLost(
        "The test lock disappeared before it was released: the server deleted it",
        lock_name=want.keys.name,
    )
