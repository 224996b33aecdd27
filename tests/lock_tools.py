"""Helpers of tests of locks: threads with a result, interrupts, a server that hangs, counts of
commands."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from threading import Thread
from types import CodeType, FrameType
from typing import Any, TypeVar

import redis
from django.dispatch import Signal

from django_redislock.manager import LockManager

from .servers import Node
from .tools import wait_until

T = TypeVar("T")


def start(function: Callable[..., Any], *args: Any) -> "Future[Any]":
    """Run `function` in a thread of its own, which ends with it."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    return future


def waiting(manager: LockManager, name: str, count: int, *, timeout: float = 60) -> None:
    """Return when `count` wait for `name`."""

    def so_many() -> bool:
        info = manager.get(name)
        return (info.waiters if info else 0) == count

    wait_until(so_many, timeout=timeout)


def free(manager: LockManager, name: str, *, timeout: float = 60) -> None:
    """Return when nobody holds `name` or waits for it."""
    wait_until(lambda: manager.get(name) is None, timeout=timeout)


def renewed(manager: LockManager, name: str, *, times: int = 1) -> None:
    """Return when `name`, which is held, was renewed so often from now on.

    A lease that has to be kept is 1.5 seconds long, so that it bears a machine that stalls.
    """

    def moved() -> bool:
        info = manager.get(name)
        assert info is not None, f"{name} is not held any more"
        return info.expires_at > last

    for _ in range(times):
        held = manager.get(name)
        assert held is not None, f"{name} is not held"
        last = held.expires_at
        wait_until(moved)


async def arenewed(manager: LockManager, name: str, *, times: int = 1) -> None:
    """Async version of `renewed()`."""
    await asyncio.to_thread(renewed, manager, name, times=times)


def calls(client: redis.Redis) -> Counter[str]:
    """Return how often each command was called since the server started, without INFO."""
    stats = client.info("commandstats")
    return Counter(
        {
            name.removeprefix("cmdstat_"): facts["calls"]
            for name, facts in stats.items()
            if name != "cmdstat_info"
        }
    )


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@contextlib.contextmanager
def listening(signal: Signal, receiver: Callable[..., Any]) -> Iterator[None]:
    """Connect the receiver in the block."""
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@contextlib.contextmanager
def warnings_of_block() -> Iterator[list[str]]:
    """Record the warnings of the block, and of what it leaves to the garbage collection. Read the
    list after it."""
    texts: list[str] = []
    gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
        gc.collect()
    texts += [str(each.message) for each in caught]


@contextlib.contextmanager
def commands(client: redis.Redis) -> Iterator[Counter[str]]:
    """Count the commands that are called in the block. Read the counter after it."""
    called: Counter[str] = Counter()
    before = calls(client)
    yield called
    called.update(calls(client) - before)


def hold_of(lock: Any) -> Any:
    """The hold that the caller has by a lock object."""
    return lock._holds.of(lock._owner())


def lease_of(lock: Any) -> Any:
    """The lease that the caller has by a lock object, or the first of several."""
    return hold_of(lock).parts[0].lease


async def until(predicate: Callable[[], Awaitable[T]]) -> T:
    """The first true answer of an asynchronous `predicate`."""
    async with asyncio.timeout(10):
        while not (answer := await predicate()):  # noqa: ASYNC110  Redis sets no event
            await asyncio.sleep(0.01)
        return answer


@contextlib.asynccontextmanager
async def held_by_another_task(lock: Any) -> AsyncIterator[None]:
    held, may_end = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with lock:
            held.set()
            await may_end.wait()
            lock.assert_held()

    task = asyncio.create_task(hold())
    await held.wait()
    yield
    may_end.set()
    await task


async def awaiting(manager: LockManager, name: str, count: int) -> None:
    """Async version of `waiting()`."""
    await asyncio.to_thread(waiting, manager, name, count)


async def afree(manager: LockManager, name: str) -> None:
    """Async version of `free()`."""
    await asyncio.to_thread(free, manager, name)


def cut_connections(client: redis.Redis) -> None:
    """Close all connections to the database of `client` but its own; Celery's are to others."""
    own = client.client_info()
    for other in client.client_list():
        if other["db"] == str(own["db"]) and other["id"] != str(own["id"]):
            client.client_kill_filter(_id=other["id"])


SWALLOWING = ("_remove", "__del__")  # a WeakSet's callback, a finalizer


@contextlib.contextmanager
def interrupt_at(step: int, began: CodeType, *files: str) -> Iterator[list[str]]:
    """Raise KeyboardInterrupt where a signal handler may run: at the start of a Python function,
    or after a C function. It is raised at the given step of these while `began` runs, counted from
    1, in any of `files` (in all if there are none), but not where Python ignores it. Yield a list,
    to which the interrupted function is added."""
    passed, under_way, struck = 0, False, []

    def look(frame: FrameType, event: str, about: object) -> None:
        nonlocal passed, under_way
        code = frame.f_code
        if code is began and event in ("call", "return"):
            under_way = event == "call"
        looked_at = under_way and (not files or code.co_filename in files)
        if looked_at and event in ("call", "c_return") and code.co_name not in SWALLOWING:
            passed += 1
            if passed == step:
                struck.append(code.co_qualname)
                raise KeyboardInterrupt

    before = sys.getprofile()
    gc.disable()  # or it may strike in the finalizer of a generator, where Python ignores it
    sys.setprofile(look)
    try:
        yield struck
    finally:
        sys.setprofile(before)
        gc.enable()


@contextlib.contextmanager
def hanging(server: Node) -> Iterator[None]:
    """The server neither reads nor answers."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)
