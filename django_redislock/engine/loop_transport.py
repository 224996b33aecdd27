"""The connections of event loops: all tasks share one, and the replies come in order.

Only the public API of redis-py is used. An error that Redis replies with is a value like other
replies.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any
from weakref import ref

from redis.exceptions import ConnectionError, InvalidResponse, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..backends import Endpoint
from ..backends.cluster import is_readonly
from . import background_task
from .operations import Command
from .timing import CLEANUP_TIMEOUT_SECONDS, CLOSE_TIMEOUT_SECONDS, CONNECT_TIMEOUT_SECONDS
from .wire import PARSER_ERRORS, UNREADABLE, pack


class LoopLink:
    """The connections of one user, such as all callers or the renewal, in one event loop."""

    def __init__(self) -> None:
        self._by_node: dict[object, LoopConnection] = {}
        self._at_loop_end: AsyncGenerator[None, None] | None = None
        self.spares: list[LoopLink] = []
        """Links that are not in use, for calls that a shared connection must not wait for."""
        self.loop = asyncio.get_running_loop()

    def connection(self, node: Any) -> "LoopConnection":
        """Return the connection to the server of a client, or to a node of a Cluster."""
        key = getattr(node, "name", None)
        found = self._by_node.get(key)
        if found is None:
            found = self._by_node[key] = LoopConnection(Endpoint(node))
        return found

    def close(self) -> None:
        """Close the connections. The requests under way fail."""
        for connection in self._by_node.values():
            connection.close()
        self._by_node.clear()
        for spare in self.spares:
            spare.close()
        self.spares.clear()

    async def end_with_loop(self) -> None:
        """Have the connections closed when the event loop shuts down."""
        # A loop has no other hook for its end: it closes the async generators that were started on
        # it, after it has cancelled all tasks.
        if self._at_loop_end is None:
            self._at_loop_end = _close_at_loop_end(ref(self))
            await anext(self._at_loop_end)

    async def aclose(self) -> None:
        """Close the connections, and wait for that."""
        tasks = [task for each in self._by_node.values() for task in each.tasks()]
        for spare in self.spares:
            await spare.aclose()
        self.close()
        if tasks:
            await asyncio.wait(tasks)

    def __del__(self) -> None:
        # The client is garbage. Its connections would live as long as the event loop. An interrupt
        # may have ended `__init__`.
        for connection in getattr(self, "_by_node", {}).values():
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(connection.close)


async def _close_at_loop_end(link: "ref[LoopLink]") -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        ended = link()
        if ended:
            await ended.aclose()


class CancelledDuringCall(asyncio.CancelledError):
    """The task was cancelled during an urgent call, and the replies have arrived."""

    def __init__(self, replies: list[Any]) -> None:
        super().__init__()
        self.replies = replies


REPLIES_AT_A_TIME = 16
"""Then the callers go on. Their next requests leave while the other replies are read, or all would
travel in one wave, and the server and this process would wait for each other."""


class _Request:
    __slots__ = ("began", "count", "may_repeat", "packed", "replies")

    def __init__(self, commands: Sequence[Command], *, may_repeat: bool) -> None:
        self.packed = pack(commands)
        self.count = len(commands)
        self.replies: asyncio.Future[list[Any] | Exception] = (
            asyncio.get_running_loop().create_future()
        )
        self.may_repeat = may_repeat
        self.began = time.monotonic()

    def answer(self, replies: list[Any] | Exception) -> None:
        if not self.replies.done():  # else its caller no longer waits
            self.replies.set_result(replies)


class _Stream:
    """A connection of redis-py, and what was sent on it without a reply so far."""

    def __init__(self, connection: Any, primary: object) -> None:
        self.connection = connection
        self.primary = primary
        self.sent: deque[_Request] = deque()
        self.has_sent = asyncio.Event()
        self.reader: asyncio.Task[None] | None = None


class LoopConnection:
    """One connection to one server, which all tasks of an event loop use at the same time.

    A background task connects and sends, and another one reads. So a task that is cancelled only
    ignores its reply, and thousands of requests take few system calls.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._to_send: list[_Request] = []
        self._has_work = asyncio.Event()
        self.sender: asyncio.Task[None] | None = None
        self._stream: _Stream | None = None
        self._last_reply = 0.0
        self._is_closed = False

    async def call(
        self, commands: Sequence[Command], limit: float | None, *, once: bool, urgent: bool
    ) -> list[Any]:
        if once or limit is not None:
            return await self._call(commands, limit, urgent, may_repeat=not once)
        replies: list[Any] = await self._endpoint.retry.call_with_retry(
            partial(self._call, commands, self._endpoint.socket_timeout, urgent), _aignore
        )
        return replies

    def close(self) -> None:
        """Close the connection. The requests under way fail."""
        self._is_closed = True
        if self.sender and not _is_loop_closed():
            _cancel(self.sender)

    def tasks(self) -> "list[asyncio.Task[None]]":
        """Return the tasks that close the connection when they end."""
        return [task for task in (self.sender, self._stream and self._stream.reader) if task]

    async def _call(
        self,
        commands: Sequence[Command],
        limit: float | None,
        urgent: bool,
        *,
        may_repeat: bool = True,
    ) -> list[Any]:
        request = _Request(commands, may_repeat=may_repeat)
        self._to_send.append(request)
        self._wake_sender()
        timer = None
        if limit is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(limit, self._time_is_over, request, limit)
        try:
            outcome = await (asyncio.shield(request.replies) if urgent else request.replies)
        except asyncio.CancelledError as cancelled:
            if urgent:
                await asyncio.wait([request.replies], timeout=CLEANUP_TIMEOUT_SECONDS)
                late = request.replies.result() if request.replies.done() else None
                if isinstance(late, list):
                    raise CancelledDuringCall(late) from cancelled
                request.replies.cancel()  # so that it is not sent any more
            raise
        finally:
            if timer:
                timer.cancel()
        if isinstance(outcome, Exception):
            # Otherwise this frame, the request and the traceback of the error refer to each other,
            # and keep the lock object until the next garbage collection.
            del request
            try:
                raise outcome
            finally:
                del outcome
        return outcome

    def _time_is_over(self, request: _Request, limit: float) -> None:
        """Give up, but not at once if the event loop was busy: the reply may have arrived unread.
        Then the loop gets as long again as it was late, to read it."""
        late = max(0, time.monotonic() - request.began - limit)
        asyncio.get_running_loop().call_later(min(late, limit), self._give_up, request)

    def _give_up(self, request: _Request) -> None:
        if request.replies.done():
            return
        request.answer(RedisTimeoutError("Redis did not respond in time"))
        if self._last_reply < request.began and self._stream and self._stream.reader:
            _cancel(self._stream.reader)  # the connection is of no use to others either

    def _wake_sender(self) -> None:
        self._has_work.set()
        if self.sender is None:
            self.sender = background_task.start(self._send_all(), "redislock-sender")
            self.sender.add_done_callback(self._sender_ended)

    async def _send_all(self) -> None:
        if self.sender is not asyncio.current_task():  # an interrupt struck while it was started
            return
        connection: Any = None
        try:
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                self._to_send = self._awaited()
                if not self._to_send:
                    continue
                if self._stream is None:
                    try:
                        connection = await self._connect()
                    except Exception as error:  # noqa: BLE001  whatever it is, callers wait
                        self._fail(self._to_send, error)
                        self._to_send = []
                        continue
                    self._stream = self._new_stream(connection)
                packed = self._packed_requests(self._stream)
                if not packed:  # while it connected, all callers stopped waiting
                    continue
                with suppress(RedisError, OSError):  # the reader gets an error, too
                    await connection.send_packed_command([packed], check_health=False)
        finally:
            if connection and not _is_loop_closed():
                # The reader does it, too, unless it was cancelled before its first step.
                if self._stream and self._stream.reader:
                    _cancel(self._stream.reader)
                await _disconnect(connection)

    def _awaited(self) -> list[_Request]:
        """Return what is not sent yet and somebody still waits for."""
        return [each for each in self._to_send if not each.replies.done()]

    async def _connect(self) -> Any:
        connection = self._endpoint.new_connection()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                await connection.connect()
                background_task.raise_cancellation()
        except BaseException as error:
            if not _is_loop_closed():
                await _disconnect(connection)
            if isinstance(error, TimeoutError):
                raise RedisTimeoutError("Timed out while connecting to Redis") from None
            if isinstance(error, PARSER_ERRORS):
                raise InvalidResponse(UNREADABLE) from None
            raise
        # redis-py's own limits are a task for each request and a timer for each reply.
        connection.socket_timeout = None
        return connection

    def _new_stream(self, connection: Any) -> _Stream:
        stream = _Stream(connection, self._endpoint.primary)
        stream.reader = background_task.start(self._read_all(stream), "redislock-reader")
        return stream

    def _packed_requests(self, stream: _Stream) -> bytes:
        """Return what the sender has to send, and expect the replies from now on."""
        requests = self._awaited()
        self._to_send = []
        if requests:
            stream.sent.extend(requests)
            stream.has_sent.set()
        return b"".join([each.packed for each in requests])

    async def _read_all(self, stream: _Stream) -> None:
        problem: Exception = ConnectionError("The connection was closed during a request")
        count = 0
        try:
            while await self._may_read(stream):
                replies = await _read(stream.connection, stream.sent[0].count)
                self._last_reply = time.monotonic()
                stream.sent.popleft().answer(replies)
                if any(map(is_readonly, replies)):  # a new connection may lead to the new primary
                    return
                del replies  # an error among them refers to the frames of its caller
                count += 1
                if count % REPLIES_AT_A_TIME == 0:
                    await asyncio.sleep(0)
        except (RedisError, OSError) as error:
            problem = error
        except PARSER_ERRORS:
            # Or the sender has closed the connection after an error.
            if stream.connection.is_connected:
                problem = InvalidResponse(UNREADABLE)
        except Exception as error:  # noqa: BLE001
            # A signal handler raised it, for whatever task the event loop was running.
            self._fail(stream.sent, error)
        finally:
            if not _is_loop_closed():
                self._stream_ended(stream, problem)
                await _disconnect(stream.connection)

    async def _may_read(self, stream: _Stream) -> bool:
        """Wait for a request, and return whether its reply is still of use."""
        idle_since = time.monotonic()
        while not stream.sent:
            stream.has_sent.clear()
            await stream.has_sent.wait()
        is_fresh = time.monotonic() < idle_since + self._endpoint.max_idle
        return is_fresh and stream.primary == self._endpoint.primary

    def _stream_ended(self, stream: _Stream, problem: Exception) -> None:
        """Send again, once, what was sent without a reply."""
        if self._stream is stream:
            self._stream = None
        unanswered = [each for each in stream.sent if not each.replies.done()]
        stream.sent.clear()
        again = []
        for request in unanswered:
            if request.may_repeat:
                request.may_repeat = False
                again.append(request)
            else:
                self._fail([request], problem)
        self._to_send = [*again, *self._to_send]
        if self._is_closed:
            self._fail(self._to_send, problem)
        elif self._awaited():
            self._wake_sender()

    def _sender_ended(self, task: "asyncio.Task[None]") -> None:
        self.sender = None
        if self._is_closed:
            self._fail(self._to_send, ConnectionError("The connection was closed"))
        elif self._awaited():  # all tasks were cancelled, and some of them release their locks
            self._wake_sender()

    def _fail(self, requests: Sequence[_Request], error: Exception) -> None:
        for request in requests:
            # Each caller gets an error of its own, or they would share one traceback.
            own = copy(error)
            own.__cause__ = error.__cause__ or error.__context__
            request.answer(own)


def _cancel(task: "asyncio.Task[None]") -> None:
    """Cancel a task, but not while it closes its connection after an earlier cancellation."""
    if not task.cancelling():
        task.cancel()


async def _disconnect(connection: Any) -> None:
    """Close a connection, and wait a moment for that: with TLS, both sides say goodbye."""
    with suppress(TimeoutError, RedisError, OSError):
        async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
            await connection.disconnect()


def _is_loop_closed() -> bool:
    """Return whether a task ends because its loop was closed, so that nothing can be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


async def _read(connection: Any, count: int) -> list[Any]:
    replies: list[Any] = []
    for _ in range(count):
        try:
            replies.append(await connection.read_response(disable_decoding=True))
        except ResponseError as error:
            replies.append(error.with_traceback(None))  # its frames would keep a lock alive
    return replies


async def _aignore(error: Exception) -> None:
    """The connection was closed already."""
