"""A TCP proxy that injects network faults: it delays, cuts or freezes connections, and loses or
delays the reply to a single command.

>>> with Proxy(*node.address) as proxy:
...     dropped = proxy.drop_reply(runs(ACQUIRE))
...     ...  # a client at proxy.url
...     wait_until(dropped.is_done)
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from django_redislock.lua import Script

Command = list[bytes]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
AT_ONCE = 1 << 16
LAG_CHECK_SECONDS = 0.01  # a changed lag takes effect within this time


def runs(script: Script) -> Callable[[Command], bool]:
    """Return a function that matches a command that runs this script, by digest or in full."""
    texts = (script.sha.encode(), script.source.encode())
    return lambda command: command[0].startswith(b"EVAL") and command[1] in texts


def named(*names: str) -> Callable[[Command], bool]:
    """Return a function that matches commands with these names."""
    return lambda command: command[0].upper().decode() in names


@dataclass(eq=False)
class ReplyFault:
    """A fault in the replies to matching commands, and how often it was injected. See
    `Proxy.drop_reply` and `Proxy.delay_reply`."""

    matches: Callable[[Command], bool]
    times: int
    before: bool = False
    seconds: float | None = None
    taken: int = 0
    began: int = 0
    done: int = 0

    def takes(self, commands: list[Command]) -> bool:
        if self.taken == self.times or not any(map(self.matches, commands)):
            return False
        self.taken += 1
        return True

    def has_begun(self) -> bool:
        """Return whether the server has answered, and the reply is being delayed."""
        return self.began == self.times

    def is_done(self) -> bool:
        return self.done == self.times

    async def hold_up(self) -> None:
        if self.seconds is None:
            return
        self.began += 1
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:  # the client no longer waits for the reply
            self.began -= 1
            raise


class Proxy:
    """A proxy on its own port of 127.0.0.1 for the server at `host` and `port`. It runs in its own
    thread. Each method returns when it has taken effect."""

    port: int

    network: ClassVar[float] = 0.0
    """Seconds by which all proxies delay all data in each direction, like a network."""

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._links: set[_Link] = set()
        self._faults: list[ReplyFault] = []
        self._delay = 0.0
        self._lag = 0.0
        self._refuses = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def through(self, url: str) -> str:
        """Return the address of a server with this proxy in its place."""
        parts = urlsplit(url)
        user = f"{parts.username or ''}:{parts.password}@" if parts.password else ""
        return parts._replace(netloc=f"{user}127.0.0.1:{self.port}").geturl()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def delay(self, seconds: float) -> None:
        """Delay all data by `seconds`, in each direction."""
        self._delay = seconds

    def lag(self, seconds: float) -> None:
        """Delay only the data that the server sends to its replicas by `seconds`. With `math.inf`,
        delay it until the next call."""
        self._lag = seconds

    def cut(self) -> int:
        """Close all connections and return their number. New connections are possible."""
        return self._do(self._cut())

    def refuse(self) -> None:
        """Close new connections at once."""
        self._refuses = True

    def accept(self) -> None:
        self._refuses = False

    def freeze(self) -> None:
        """Hold back all data in both directions. Connections stay open and can be made."""
        self._do(self._set(flows=False))

    def thaw(self) -> None:
        """Pass on the data that was held back, and all later data."""
        self._do(self._set(flows=True))

    def drop_reply(
        self, matches: Callable[[Command], bool], *, times: int = 1, before: bool = False
    ) -> ReplyFault:
        """Lose the server's reply to the next command that `matches`, and cut the connection. The
        server receives the command, unless `before` is true."""
        self._faults.append(ReplyFault(matches, times, before))
        return self._faults[-1]

    def delay_reply(
        self, matches: Callable[[Command], bool], seconds: float, *, times: int = 1
    ) -> ReplyFault:
        """Delay the server's reply to the next command that `matches` by `seconds`. A reply whose
        client no longer waits does not count."""
        self._faults.append(ReplyFault(matches, times, seconds=seconds))
        return self._faults[-1]

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._open())
        return self

    def __exit__(self, *error: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(20)

    # The rest runs in the thread

    async def _open(self) -> None:
        self._flows = asyncio.Event()
        self._flows.set()
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._flows.set()
        self._refuses = True
        # A connection that is being made has a task that starts another one.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await self._cut()
            _, late = await asyncio.wait(others, timeout=1)
            for task in late:
                task.cancel()
        # Only now: Python 3.11 leaves a connection open that is being made while this happens.
        self._listener.close()
        await asyncio.sleep(0)  # the step in which the connections that were aborted are closed

    async def _cut(self) -> int:
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    async def _set(self, *, flows: bool) -> None:
        self._flows.set() if flows else self._flows.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.CancelledError):  # Python 3.11 reports it as an error
                await self._link(reader, writer)
        finally:
            writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        await self._flows.wait()
        try:
            server = await asyncio.open_connection(*self._server)
        except OSError:
            writer.transport.abort()
            return
        if self._refuses:  # since a moment ago: `cut()` did not know of this connection
            writer.transport.abort()
            server[1].transport.abort()
            return
        link = _Link(self, (reader, writer), server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def _pass(self, *, to_replica: bool = False) -> None:
        since = time.monotonic()
        while to_replica and time.monotonic() < since + self._lag:  # noqa: ASYNC110  no event
            await asyncio.sleep(min(self._lag, LAG_CHECK_SECONDS))
        if self._delay or self.network:
            await asyncio.sleep(self._delay + self.network)
        await self._flows.wait()

    def _fault_for(self, commands: list[Command]) -> ReplyFault | None:
        return next((fault for fault in self._faults if fault.takes(commands)), None)


class _Link:
    """One connection to the proxy, and the matching connection to the server."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._due: ReplyFault | None = None
        self._to_replica = False

    async def run(self) -> None:
        ways = [asyncio.create_task(way) for way in (self._requests(), self._replies())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.cut()
            if self._due:
                self._due.taken -= 1  # the client no longer waited for the reply

    def cut(self) -> None:
        for _, writer in (self._client, self._server):
            writer.transport.abort()

    async def _requests(self) -> None:
        reader, writer = self._client[0], self._server[1]
        unread = b""
        while data := await reader.read(AT_ONCE):
            if not self._to_replica:  # a replica also sends line ends between commands
                commands, unread = split(unread + data)
                fault = self._proxy._fault_for(commands)
                if fault and fault.before:
                    fault.done += 1
                    return
                if fault and self._due:
                    fault.taken -= 1  # a reply has at most one fault
                self._due = self._due or fault
                self._to_replica = any(map(_SYNCS, commands))
            await self._proxy._pass()
            writer.write(data)
            await writer.drain()

    async def _replies(self) -> None:
        reader, writer = self._server[0], self._client[1]
        while data := await reader.read(AT_ONCE):
            if self._due:
                await self._due.hold_up()
            due, self._due = self._due, None
            if due:
                due.done += 1
                if due.seconds is None:
                    return
            await self._proxy._pass(to_replica=self._to_replica)
            writer.write(data)
            await writer.drain()


_SYNCS = named("PSYNC", "SYNC")


def split(data: bytes) -> tuple[list[Command], bytes]:
    """Split data from a client into complete commands and the rest."""
    commands = []
    while data:
        command, rest = _first(data)
        if command is None:
            break
        commands.append(command)
        data = rest
    return commands, data


def _first(data: bytes) -> tuple[Command | None, bytes]:
    head, end, rest = data.partition(b"\r\n")
    if not end:
        return None, data
    command = []
    for _ in range(int(head[1:])):
        size, end, rest = rest.partition(b"\r\n")
        length = int(size[1:]) if end else 0
        if not end or len(rest) < length + 2:
            return None, data
        command.append(rest[:length])
        rest = rest[length + 2 :]
    return command, rest
