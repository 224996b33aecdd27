"""Interrupt a lock at every step of its requests, and look for what that leaves behind.

>>> with Proxy("127.0.0.1", server.port) as proxy:
...     proxy.delay(0.005)
...     case = Case(lambda: make_client(proxy.through(server.url)), observer)
...     interrupt_everywhere(case)
"""

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dis import opmap
from functools import cache
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redislock import AsyncLock, Lock

from .tools import wait_until

SIGNALS = "signals"
"""Interrupt where Python may run a signal handler: at the start of a Python function, and before
or after a C function."""

LINES = "lines"
"""Interrupt before every line of this package and of redis-py. Python runs no signal handler
before most of them. In Python's own modules, that could leave a lock of `threading` locked."""

STANDARD_LIBRARY = Path(threading.__file__).parent

IGNORED = ("_remove", "__del__")
"""Functions in which Python ignores an exception: a callback of a `WeakSet`, a finalizer."""


@contextmanager
def interrupt(step: int, began: CodeType, where: str = SIGNALS) -> Iterator[list[str]]:
    """Raise `KeyboardInterrupt` at the given step in this thread while `began` runs, counted from
    1. Yield a list, to which the place is added."""
    passed, under_way = 0, 0
    struck: list[str] = []

    def pass_step(frame: FrameType) -> None:
        nonlocal passed
        if struck:
            return
        passed += 1
        if passed >= step and not is_ignored(frame):
            struck.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            raise KeyboardInterrupt

    def profile(frame: FrameType, event: str, about: Any) -> None:
        nonlocal under_way
        if frame.f_code is began and event in ("call", "return"):
            under_way += 1 if event == "call" else -1
        if under_way <= 0 or (event == "call" and continues_generator(frame)):
            return
        if event == "c_call" and about.__name__ in ("__exit__", "release"):
            return  # only a C function that blocks runs a handler before its end
        if event in ("call", "c_call", "c_return"):
            pass_step(frame)

    def trace(frame: FrameType, event: str, about: object) -> Any:
        nonlocal under_way
        if frame.f_code is began:
            under_way += {"call": 1, "return": -1}.get(event, 0)
        if under_way > 0 and event == "line" and not is_standard(frame.f_code.co_filename):
            pass_step(frame)
        return trace

    before = sys.getprofile(), sys.gettrace()
    gc.disable()  # Python ignores what is raised in the finalizer of a generator
    if where == SIGNALS:
        sys.setprofile(profile)
    else:
        sys.settrace(trace)
    try:
        yield struck
    finally:
        sys.setprofile(before[0])
        sys.settrace(before[1])
        gc.enable()


def is_ignored(frame: FrameType | None) -> bool:
    """Return whether the frame, or one that called it, is of a function in `IGNORED`."""
    while frame:
        if frame.f_code.co_name in IGNORED:
            return True
        frame = frame.f_back
    return False


@cache
def is_standard(file: str) -> bool:
    return Path(file).is_relative_to(STANDARD_LIBRARY) and "site-packages" not in file


def continues_generator(frame: FrameType) -> bool:
    """Return whether the frame passes a value on to another generator. Python runs no signal
    handler there."""
    code = frame.f_code.co_code
    return (code[frame.f_lasti], code[frame.f_lasti + 1] & 3 >= 2) == (opmap["RESUME"], True)


@dataclass
class Case:
    """A client whose lock is interrupted.

    Args:
        make: Returns a new client that may have one connection, so that no lock works if the
            interrupt has cost it.
        observer: A client of the same server, with other connections.
        is_warm: Whether there is a connection before the interrupt.
    """

    make: Callable[[], Any]
    observer: Any
    is_warm: bool = False
    lock: Callable[..., Any] = Lock
    where: str = SIGNALS


def interrupt_everywhere(case: Case, *, every: int = 1, first: int = 1) -> list[str]:
    """Interrupt `acquire()` at each step, or at some of them. Return the places."""
    places: list[str] = []
    taken = Lock(case.observer, "taken", timeout=600)
    assert taken.acquire()
    try:
        for step in count(first, every):
            struck = interrupt_once(case, step)
            if not struck:
                return places
            places += struck
    finally:
        taken.release()
    raise AssertionError  # not reached


def interrupt_once(case: Case, step: int) -> list[str]:
    """Interrupt `acquire()` at a step, and check what it leaves behind."""
    client = case.make()
    options = {"timeout": 30, "blocking": False, "auto_renewal": False}
    try:
        if case.is_warm:
            free(case, client, options)
        lock = case.lock(client, "interrupted", **options | {"blocking": True})
        acquired = False
        with suppress(KeyboardInterrupt), interrupt(step, Lock.acquire.__code__, case.where) as at:
            acquired = lock.acquire()
        assert acquired or at, "a free lock was refused"
        # Not interrupted in time: after the last step, or in `Thread.start()`, which can lose an
        # interrupt.
        if acquired or lock.token:
            lock.release()
        try:
            check(case, client, options)
        except BaseException as error:
            error.add_note(f"interrupted at step {step}, {at}")
            raise
        return at
    finally:
        client.close()


def check(case: Case, client: Any, options: dict[str, Any]) -> None:
    # First the locks: a connection with an unread reply is the next one that is used.
    other = case.lock(client, "taken", **options)
    assert not other.acquire(), "a second holder"
    free(case, client, options)
    if isinstance(client, redis.Redis):
        for text in ("one", "two", "three"):
            assert client.echo(text) in (text, text.encode()), "the reply to another command"
    again = Lock(case.observer, "interrupted", **options)
    wait_until(again.acquire, timeout=20)
    again.release()


def free(case: Case, client: Any, options: dict[str, Any]) -> None:
    """Acquire and release a free lock, and look at it from outside."""
    lock, seen = case.lock(client, "free", **options), Lock(case.observer, "free", **options)
    assert lock.acquire(), "a free lock was refused"
    assert not seen.acquire(), "a lock that was acquired is free"
    lock.release()
    assert seen.acquire(), "a lock that was released is held"
    seen.release()


def make_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, max_connections=1, retry=Retry(NoBackoff(), 0))


# Cancellations in asyncio


class Cancelled:
    """Awaits a coroutine, and cancels its task at the given await point, counted from 1."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], step: int) -> None:
        self.was_reached = False
        self._coroutine = coroutine
        self._step = step

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        awaits = self._coroutine.__await__()
        passed = 0
        try:
            while True:
                future = awaits.send(None)
                passed += 1
                if passed == self._step:
                    self.was_reached = True
                    asyncio.get_running_loop().call_soon(task.cancel)
                while True:
                    try:
                        yield future
                        break
                    except BaseException as error:
                        future = awaits.throw(error)
        except StopIteration as end:
            return end.value


async def cancel_everywhere(url: str, observer: Any, *, is_warm: bool = False) -> int:
    """Cancel `acquire()` at each await point, and check what that leaves behind."""
    taken = Lock(observer, "taken", timeout=600)
    assert await asyncio.to_thread(taken.acquire)
    try:
        for step in count(1):
            try:
                if not await cancel_once(url, observer, step, is_warm=is_warm):
                    return step
            except BaseException as error:
                error.add_note(f"cancelled at await point {step}")
                raise
    finally:
        await afree_at_last(observer, "taken")
    raise AssertionError  # not reached


async def afree_at_last(observer: Any, name: str) -> None:
    for key in observer.scan_iter(f"*lock:{name}"):
        observer.delete(key)


async def cancel_once(url: str, observer: Any, step: int, *, is_warm: bool) -> bool:
    client = redis.asyncio.Redis.from_url(url, max_connections=1)
    options = {"timeout": 30, "blocking": False, "auto_renewal": False}
    try:
        if is_warm:
            await AsyncLock(client, "free", **options).locked()
        lock = AsyncLock(client, "interrupted", **options)
        cancelled = Cancelled(lock.acquire(), step)
        task = asyncio.create_task(wait_for(cancelled))
        await asyncio.wait([task])
        if not task.cancelled():
            assert task.result(), "a free lock was refused"
            await lock.release()
        assert not await AsyncLock(client, "taken", **options).acquire(), "a second holder"
        free, seen = AsyncLock(client, "free", **options), Lock(observer, "free", **options)
        assert await free.acquire(), "a free lock was refused"
        assert not await asyncio.to_thread(seen.acquire), "a lock that was acquired is free"
        await free.release()
        for text in ("one", "two", "three"):
            assert await client.echo(text) == text.encode(), "the reply to another command"
        async with asyncio.timeout(20):
            lock = AsyncLock(client, "interrupted", **options)
            while not await lock.acquire():  # noqa: ASYNC110  nothing sets an event
                await asyncio.sleep(0.01)
        for key in observer.scan_iter("*lock:interrupted"):
            observer.delete(key)
        return cancelled.was_reached
    finally:
        await client.connection_pool.disconnect()


async def wait_for(awaitable: Any) -> Any:
    return await awaitable
