"""The processes that use locks, and the process that forks them.

``python -m tests.faults.client FD`` is the process that forks. It has imported everything and
reads orders from the socket `FD` (see `crew`), so a new client takes milliseconds. A client has
its own socket, on which it reads orders, one line of JSON each, and answers each when it is done.
It exits when its socket is closed.

An order names one of the functions below, or any other function by path
(``"tests.faults.test_planted:plant"``). The function is called with the client and keyword
arguments, and returns a value that JSON can represent. An exception is logged and becomes the
answer.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from redis.exceptions import RedisError

from django_redislock.clock import now

from .events import Attempts, Log, at

T = TypeVar("T")

PR_SET_PDEATHSIG = 1

CHECK_INTERVAL_SECONDS = 0.05


class Client:
    def __init__(self, order: dict[str, Any], orders: socket.socket) -> None:
        self.who: str = order["who"]
        self.folder = Path(order["folder"])
        self.log = Log(self.folder, self.who)
        self.random = random.Random(order["seed"])
        self.orders = orders
        self.held: dict[str, Any] = {}
        """The lock objects that this client holds, by name."""
        self._registers: dict[str, Attempts] = {}
        self._reported: BaseException | None = None

    def serve(self) -> None:
        # The harness may close the socket.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for line in self.orders.makefile("r"):
                answer = self._do(**json.loads(line))
                self.orders.sendall(json.dumps(answer).encode() + b"\n")

    def _do(self, do: str, **arguments: Any) -> Any:
        try:
            return function_of(do)(self, **arguments)
        except Exception as error:
            if error is not self._reported:
                self.trouble(do, error, arguments.get("lock"))
            return {"error": type(error).__name__, "text": str(error)}
        finally:
            self._reported = None  # its traceback would keep objects alive, even event loops

    def trouble(self, during: str, error: BaseException, lock: str | None, **facts: Any) -> None:
        about = {"type": type(error).__name__, "text": str(error)}
        self.log.write("error", during=during, lock=lock, **about, **facts)
        self._reported = error

    def has_order(self) -> bool:
        """Return whether there is another order, or the socket was closed."""
        return bool(select.select([self.orders], [], [], 0)[0])

    def register(self, lock: str) -> Attempts:
        if lock not in self._registers:
            self._registers[lock] = Attempts(self.folder, lock)
        return self._registers[lock]


def function_of(path: str) -> Any:
    module, _, name = path.rpartition(":")
    return getattr(import_module(module or __name__), name)


# Orders. Sync and async clients share coroutines. A sync client blocks inside the calls and never
# awaits.


def run(what: Coroutine[Any, Any, T], is_async: bool) -> T:
    if is_async:
        return asyncio.run(what)
    try:
        what.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a sync client awaited")


async def do(thing: Any, name: str, *args: Any, is_async: bool, **how: Any) -> Any:
    if is_async:
        return await getattr(thing, f"a{name}")(*args, **how)
    return getattr(thing, name)(*args, **how)


async def pause(seconds: float, is_async: bool) -> None:
    if is_async:
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)  # noqa: ASYNC251  there is no loop


def acquire(client: Client, lock: str, **arguments: Any) -> bool:
    return run(aacquire(client, lock, is_async=False, **arguments), False)


async def aacquire(
    client: Client,
    lock: str,
    how: dict[str, Any] | None = None,
    is_async: bool = True,
    **options: Any,
) -> bool:
    """Acquire the lock, and return whether that succeeded. `how` is passed to `acquire()`, and
    `options` to the lock."""
    from django_redislock import locks

    lock_object = locks.lock(lock, **options)
    client.log.write("want", lock=lock)
    asked = now()
    try:
        acquired = await do(lock_object, "acquire", is_async=is_async, **how or {})
    except Exception as error:
        client.trouble("acquire", error, lock)
        raise
    if not acquired:
        client.log.write("refused", lock=lock, asked=asked)
        return False
    client.held[lock] = lock_object
    about = {"lock": lock, "fence": lock_object.fence_token}
    client.log.write("held", asked=asked, token=lock_object.token, **about)
    client.log.write("enter", **about)
    return True


def check(client: Client, lock: str) -> bool:
    """Return whether the lock is still held, as far as its holder knows."""
    held, began = client.held[lock], now()
    if held.lost:
        client.log.write("leave", lock=lock, how="looked")
        client.log.write("lost", lock=lock, token=held.token)
        return False
    client.log.write("checked", t=began, at=at(), lock=lock, token=held.token)
    return True


def write(client: Client, lock: str, stops: bool = False) -> dict[str, Any]:
    """Check the lock, and write to the register unless the lock is lost. With `stops`, this
    process stops itself in between."""
    if not check(client, lock):
        return {"wrote": False}
    if stops:
        os.kill(os.getpid(), signal.SIGSTOP)
    fence = client.held[lock].fence_token
    accepted = client.register(lock).write(client.who, fence)
    return {"wrote": True, "accepted": accepted}


def release(client: Client, lock: str) -> bool:
    return run(arelease(client, lock, is_async=False), False)


async def arelease(client: Client, lock: str, is_async: bool = True) -> bool:
    held = client.held.pop(lock)
    about = {"lock": lock, "token": held.token}
    client.log.write("leave", lock=lock, how="released")
    client.log.write("release", **about)
    try:
        await do(held, "release", is_async=is_async)
    except Exception as error:
        client.trouble("release", error, **about)
        raise
    client.log.write("released", **about)
    return True


def loop(client: Client, is_async: bool = False, **arguments: Any) -> None:
    run(_loop(client, is_async, **arguments), is_async)


async def _loop(
    client: Client, is_async: bool, rest: tuple[float, float] = (0, 0.01), **options: Any
) -> None:
    """Use the lock until there is another order. Errors are only logged."""
    while not client.has_order():
        try:
            await once(client, is_async=is_async, **options)
        except Exception:
            await pause(0.01, is_async)
        await pause(client.random.uniform(*rest), is_async)


async def once(
    client: Client,
    lock: str,
    is_async: bool,
    work: tuple[float, float] = (0, 0.01),
    **options: Any,
) -> None:
    """Acquire, write, work, write and release."""
    if not await aacquire(client, lock, is_async=is_async, **options):
        return
    write(client, lock)
    await pause(client.random.uniform(*work), is_async)
    write(client, lock)
    await arelease(client, lock, is_async)


def keep(client: Client, lock: str, **options: Any) -> str:
    """Acquire the lock, retrying on errors, then check it and write repeatedly until it is lost or
    there is another order. Release it in the second case, and return the outcome."""
    while not _acquires(client, lock, options):
        if client.has_order():
            return "failed"
        time.sleep(CHECK_INTERVAL_SECONDS)
    while write(client, lock)["wrote"]:
        if client.has_order():
            client.log.write("free", lock=lock)
            release(client, lock)
            return "released"
        time.sleep(CHECK_INTERVAL_SECONDS)
    return "lost"


def _acquires(client: Client, lock: str, options: dict[str, Any]) -> bool:
    try:
        return acquire(client, lock, **options)
    except RedisError:
        return False


def sleep(client: Client, seconds: float) -> None:
    time.sleep(seconds)


# The process that forks clients


def main(requests: socket.socket) -> None:
    _import_all()
    gc.freeze()  # a collection in a client would copy the shared memory pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the clients
    while True:
        line, sockets, _, _ = socket.recv_fds(requests, 65536, 1)
        if not line:
            return
        [own] = sockets
        pid = os.fork()
        if pid == 0:
            requests.close()
            _be_client(json.loads(line), socket.socket(fileno=own))
        os.close(own)
        requests.sendall(f"{pid}\n".encode())


def _import_all() -> None:
    import django

    django.setup()
    import django_redis.cache  # noqa: F401
    import redis.asyncio  # noqa: F401

    import django_redislock.manager  # noqa: F401
    import tests.faults.scenarios  # noqa: F401


def _be_client(order: dict[str, Any], orders: socket.socket) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        orders.setblocking(True)
        use_caches(order["caches"])
        client = Client(order, orders)
        logging.basicConfig(filename=client.folder / f"{client.who}.log")
        _watch(client)
        client.serve()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def use_caches(aliases: dict[str, Any]) -> None:
    from django.conf import settings
    from django.core.cache import caches

    settings.CACHES = aliases
    caches.settings = caches.configure_settings(None)


def _watch(client: Client) -> None:
    """Log the package's signals, and the renewals, which have no signal. Without the renewals, the
    end of a holder's belief would be unknown."""
    from django_redislock import signals
    from django_redislock.engine.lease import Lease

    def waiting(name: str, **_: Any) -> None:
        client.log.write("queued", lock=name)

    def lost(name: str, token: str, **_: Any) -> None:
        client.log.write("lost", lock=name, token=token)

    signals.lock_waiting.connect(waiting, weak=False)
    signals.lock_lost.connect(lost, weak=False)
    set_deadline = Lease.set_deadline

    def watched(lease: Lease, deadline: float) -> None:
        set_deadline(lease, deadline)
        if lease._is_lost:
            return  # a lost lease stays lost
        sent = deadline - lease.seconds  # unless the holder extended the lease
        about = {"lock": lease.keys.name, "token": lease.token, "deadline": lease.deadline}
        client.log.write("kept", sent=sent, **about)

    Lease.set_deadline = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    # Import the module instead of using `__main__`, so that functions found by path share it.
    from tests.faults import client

    client.main(socket.socket(fileno=int(sys.argv[1])))
