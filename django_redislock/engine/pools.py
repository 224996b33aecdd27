"""What locks ask of a client's connection pool, beyond what redis-py gives.

A seat: at most half of the connections that a pool can have wait in a blocking pop; the rest
is for other requests. A waiter without a seat asks again and again instead. The renewal does not
depend on the pool: see `connection.dedicated`.

A connection in time: to connect can hang as long as the client's own socket timeouts let it.

A connection soon: of a plain pool an idle one is taken and put back as the pool itself would do
it, under its own lock, but for what it keeps statistics of, which takes longer than all else.
"""

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import Parameter, signature
from typing import Any
from weakref import WeakKeyDictionary

from redis import Connection, ConnectionPool, UnixDomainSocketConnection, asyncio
from redis import connection as redis_connection
from redis.exceptions import ConnectionError, MaxConnectionsError
from redis.exceptions import TimeoutError as RedisTimeoutError

STANDING = 0.1
"""Seconds between two questions of a waiter without a seat."""

PATIENCE = 2.0
"""Seconds to wait for a connection where all that a pool may have are in use."""

PAUSE = 0.005
"""Seconds until it is asked again."""

POOL_ERRORS = "Too many connections", "No connection available"
"""How the messages of a pool and of a blocking pool begin if all connections are in use."""

_seated: WeakKeyDictionary[Any, set[object]] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_seated.clear)  # who sat in the parent does not sit here


@contextmanager
def seat(client: Any) -> Iterator[bool]:
    """Whether there is one, for the time of the block."""
    # No semaphore, which an interrupt inside of it could leave locked for ever.
    seated, seats = _seated.setdefault(client.connection_pool, set()), _seats(client)
    who = object()
    try:
        if len(seated) < seats:
            seated.add(who)
        # Of two who take the last one at the same time none may have it.
        yield who in seated and len(seated) <= seats
    finally:
        seated.discard(who)


def _seats(client: Any) -> int:
    sticks_to_one = getattr(client, "single_connection_client", False)  # that of asyncio
    if sticks_to_one or getattr(client, "connection", None):
        return 0  # its holders need that one
    return int(client.connection_pool.max_connections) // 2


def connection_of(pool: Any, until: float | None, patience: float = PATIENCE) -> Any:
    """A connection that is ready, by `until` on the monotonic clock (None: however long it
    takes to connect). Raises redis-py's errors. If all connections are in use, it waits up to
    `patience` seconds for one."""
    patience += time.monotonic()
    while True:
        try:
            return _get(pool) if until is None or _is_warm(pool) else _get_by(pool, until)
        except ConnectionError as error:
            if not is_exhausted(error) or time.monotonic() > min(patience, until or patience):
                raise
            time.sleep(PAUSE)


def give_back(pool: Any, lent: list[Any], plain: bool) -> None:
    """Let others have what was lent: then it is no longer in `lent`. Who was interrupted before
    may call it again."""
    [connection] = lent
    if not plain or _is_to_go(connection):
        del lent[:]
        pool.release(connection)
        return
    with pool._lock:
        # An interrupt strikes after a call; here that is when all is done.
        if connection in pool._in_use_connections:  # else somebody reset the pool meanwhile
            pool._available_connections += lent
            del lent[:]
            pool._in_use_connections.remove(connection)


def disconnect_idle(pool: Any) -> None:
    """Have the connections made anew that nobody uses."""
    if "inuse_connections" in signature(pool.disconnect).parameters:  # not a blocking one of old
        pool.disconnect(inuse_connections=False)


def is_plain(pool: Any) -> bool:
    """Whether what is idle in it may be had by `idle_of`, and be given back as soon."""
    return (
        type(pool) in (ConnectionPool, asyncio.ConnectionPool)
        and pool.connection_class in _LOOKED_AT
        and getattr(pool, "pid", None) in (None, os.getpid())  # in a child it is to be made anew
        and not pool.connection_kwargs.get("credential_provider")  # idle ones are told new ones
        and getattr(pool, "cache", None) is None  # its connections are proxies of others
        and hasattr(select, "poll")
        and all(hasattr(pool, name) for name in _PRIVATE)
        and (isinstance(pool, asyncio.ConnectionPool) or hasattr(pool, "_lock"))
    )


_PRIVATE = "_available_connections", "_in_use_connections"
"""What is used of a plain pool although redis-py may rename it. A pool without it is not plain."""


_LOOKED_AT = (
    Connection,
    UnixDomainSocketConnection,
    asyncio.Connection,
    asyncio.UnixDomainSocketConnection,
)
"""What comes in by others, those of TLS for one, may be no answer."""


def idle_of(pool: Any) -> Any:
    """A connection of a plain pool that is ready now; None if the next one is not."""
    lent: list[Any] = []
    try:
        with pool._lock:
            if not pool._available_connections:
                return None
            lent = pool._available_connections[-1:]
            del pool._available_connections[-1]  # and no pop(), after which one may strike
            pool._in_use_connections.update(lent)
        [connection] = lent
        if hasattr(connection, "_sock") and not _asks_first(connection):
            if _is_ready(connection):
                return connection
            connection.disconnect()
        give_back(pool, lent, plain=True)
    except BaseException:  # an interrupt, which may have struck inside of `give_back`
        if lent:
            give_back(pool, lent, plain=True)
        raise
    return None


def _is_ready(connection: Any) -> bool:
    """Whether it is connected, and nothing came in: neither its end nor an answer that nobody
    read."""
    return connection._sock is not None and _is_quiet(connection._sock)


def _asks_first(connection: Any) -> bool:
    """Whether redis-py is to ask whether the server is there before anything else is sent, as its
    `health_check_interval` has it."""
    interval = getattr(connection, "health_check_interval", 0)
    return bool(interval) and _clock() > connection.next_health_check


_time: Any = getattr(redis_connection, "time", time)  # a module, or before redis-py 6 a function
_clock = getattr(_time, "monotonic", _time)
"""That of redis-py's health checks, which was the time of day."""


def _is_quiet(socket: Any) -> bool:
    look = select.poll()
    look.register(socket, select.POLLIN)
    return not look.poll(0)


def _is_to_go(connection: Any) -> bool:
    return getattr(connection, "_should_reconnect", False)


async def idle_on_loop(pool: Any) -> Any:
    """The same of a pool of asyncio: None where it has to be asked itself."""
    if not is_plain(pool) or not pool._available_connections:
        return None
    connection = pool._available_connections[-1]
    if not (hasattr(connection, "_reader") and hasattr(connection, "_writer")):
        return None  # this release of redis-py has other names for them
    if not _is_ready_on_loop(connection):
        # redis-py 8 itself would not see that it was closed, where it listens for maintenance.
        await connection.disconnect(nowait=True)
        return None
    pool._in_use_connections.add(pool._available_connections.pop())
    return connection


def _is_ready_on_loop(connection: Any) -> bool:
    if not connection.is_connected:
        return False
    reader = connection._reader
    came_in = reader._buffer or reader.at_eof() or reader.exception()
    return not came_in and _is_quiet(connection._writer.get_extra_info("socket"))


async def connection_on_loop(pool: Any) -> Any:
    """A connection of any pool of asyncio. Raises redis-py's errors."""
    return await _get(pool)


async def agive_back(pool: Any, connection: Any) -> None:
    """Let others have what `idle_on_loop` gave."""
    if _is_to_go(connection):
        await pool.release(connection)
    elif connection in pool._in_use_connections:  # else somebody reset the pool meanwhile
        pool._in_use_connections.remove(connection)
        pool._available_connections.append(connection)


def is_exhausted(error: ConnectionError) -> bool:
    """Whether the pool had no connection left. Such an error says nothing about the server."""
    # redis-py has a class for this error, but not all of its releases and pools use it.
    return isinstance(error, MaxConnectionsError) or str(error).startswith(POOL_ERRORS)


def _get(pool: Any) -> Any:
    return pool.get_connection(*_ARGUMENTS)


def _is_warm(pool: Any) -> bool:
    """Whether the next connection is surely connected already, and is not asked first. A look at
    what redis-py keeps to itself, so only to save a thread: where it finds nothing, it says no."""
    idle = getattr(pool, "_available_connections", None)
    if idle is None:  # a blocking pool
        idle = getattr(getattr(pool, "pool", None), "queue", [])
    next_one = next(iter(idle[-1:]), None)
    return bool(getattr(next_one, "_sock", None)) and not _asks_first(next_one)


def _get_by(pool: Any, until: float) -> Any:
    # In a thread, as nothing else ends a handshake with a server that does not answer, or a
    # question whether it is there. A connection that comes too late goes back to its pool.
    fetched = _Fetched(pool)
    try:
        try:
            threading.Thread(target=_fetch, args=(fetched,), daemon=True).start()
        except RuntimeError:  # the interpreter shuts down: then without a limit
            return _get(pool)
        fetched.wait(max(0.0, until - time.monotonic()))
        if not fetched.outcome:
            raise RedisTimeoutError("Timed out while connecting to Redis")
        if isinstance(fetched.outcome[0], Exception):
            raise fetched.outcome.pop()
        return fetched.outcome[0]
    except BaseException:  # its own error; or an interrupt, and then nobody waits for it any more
        fetched.is_wanted = False
        fetched.put_back()
        raise


class _Fetched:
    """What a thread fetches for another. It is no `Future`: each step is one of C, and an
    interrupt inside of a Future could leave that locked for ever, and the connection in it."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.outcome: list[Any] = []
        self.is_wanted = True
        self._is_away = threading.Lock()
        self._is_away.acquire()

    def come(self, outcome: Any) -> None:
        self.outcome.append(outcome)
        self._is_away.release()
        if not self.is_wanted:
            self.put_back()

    def wait(self, seconds: float) -> None:
        due = time.monotonic() + seconds
        if not self._is_away.acquire(timeout=seconds):
            # If this process was stopped meanwhile, so was the thread that connects. It gets as
            # long again as this wait ended late.
            self._is_away.acquire(timeout=min(time.monotonic() - due, seconds))

    def put_back(self) -> None:
        """If it has come. Who waited and who fetched may both do it, and one of them does."""
        with suppress(IndexError):
            outcome = self.outcome.pop()
            if not isinstance(outcome, Exception):
                self.pool.release(outcome)


def _fetch(fetched: _Fetched) -> None:
    try:
        connection = _get_asked(fetched.pool)
    except Exception as error:
        fetched.come(error)
    else:
        fetched.come(connection)


def _get_asked(pool: Any) -> Any:
    connection = _get(pool)
    try:
        connection.check_health()
    except BaseException:
        pool.release(connection)
        raise
    return connection


def _arguments() -> tuple[str, ...]:
    # Before redis-py 5.3 the name of a command must be given, since then it must not.
    name = signature(ConnectionPool.get_connection).parameters["command_name"]
    return ("EVALSHA",) if name.default is Parameter.empty else ()


_ARGUMENTS = _arguments()
