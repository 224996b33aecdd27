"""Perform the operations of a flow: `run()` in sync code, `arun()` in async code."""

import asyncio
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from threading import Lock, Thread
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import NoScriptError

from ..backends import AsyncClient, Client, Server
from ..backends.cluster import shared_by_locks
from ..keys import LockKeys
from . import transport
from .inbox import LoopInbox, ThreadInbox
from .loop_transport import CancelledDuringCall, LoopLink
from .operations import (
    Batch,
    Call,
    Command,
    Flow,
    Join,
    OnServer,
    Op,
    RawCommands,
    Sleep,
    Wait,
)
from .thread_transport import ThreadLink
from .timing import (
    CLEANUP_TIMEOUT_SECONDS,
    REPLICA_SHARE_OF_LIMIT,
    REPLICA_WAIT_SECONDS,
    REPLY_TIMEOUT_SECONDS,
)

T = TypeVar("T")


def run(client: Client, flow: Flow[T], link: ThreadLink | None = None) -> T:
    """Run a flow, and return its result.

    An exception of an operation is raised inside the flow, and so is an interrupt.

    Args:
        client: The client of the server.
        flow: The flow.
        link: The connections to use. None means those that all callers share.
    """
    reply: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                op = flow.send(reply) if error is None else flow.throw(error)
                reply, error = _perform(client, op, link), None
            except StopIteration as stop:
                result: T = stop.value
                return result
            except BaseException as raised:
                if getgeneratorstate(flow) == GEN_CLOSED:  # the flow itself raised it
                    raise
                error = raised
    finally:
        # The traceback of the error refers to this frame. If this frame referred to the error,
        # both would keep the lock object until the next garbage collection.
        error = None


async def arun(client: AsyncClient, flow: Flow[T], link: LoopLink | None = None) -> T:
    """Async version of `run()`.

    If the task is cancelled during an urgent call, the flow gets the reply first, and then the
    cancellation. If Redis does not reply in time, or after a second cancellation, the flow gets
    the cancellation at once.
    """
    cancelled = False
    try:
        op = next(flow)
        while True:
            if cancelled:
                if not (isinstance(op, Call) and op.urgent):
                    op = flow.throw(asyncio.CancelledError())
                    continue
                op = replace(op, limit=min(op.limit or math.inf, CLEANUP_TIMEOUT_SECONDS))
            try:
                reply = await _aperform(client, op, link)
            except CancelledDuringCall as late:
                cancelled = True
                [reply] = late.replies
                op = flow.throw(late) if isinstance(reply, Exception) else flow.send(reply)
            except BaseException as error:
                op = flow.throw(error)
            else:
                op = flow.send(reply)
    except StopIteration as stop:
        if cancelled:
            raise asyncio.CancelledError from None
        result: T = stop.value
        return result
    except Exception:
        if cancelled:
            raise asyncio.CancelledError from None
        raise


def _perform(client: Client, op: Op, link: ThreadLink | None = None) -> Any:
    match op:
        case Call():
            return _run_script(client, op, link)
        case Batch():
            return _run_batch(client, op, link)
        case Join():
            return _thread_inbox(client, op.keys).join(op.keys, op.token)
        case Wait():
            return op.waiter.inbox.wait(client, op.waiter, op.seconds)
        case Sleep():
            return time.sleep(op.seconds)
        case RawCommands():
            return transport.call(client, op.commands, op.limit, link=link)
        case _:
            return _run_concurrently(op.flows)


async def _aperform(client: AsyncClient, op: Op, link: LoopLink | None = None) -> Any:
    match op:
        case Call():
            return await _arun_script(client, op, link)
        case Batch():
            return await _arun_batch(client, op, link)
        case Join():
            return _loop_inbox(client, op.keys).join(op.keys, op.token)
        case Wait():
            return await op.waiter.inbox.wait(client, op.waiter, op.seconds)
        case Sleep():
            return await asyncio.sleep(op.seconds)
        case RawCommands():
            return await transport.acall(client, op.commands, op.limit, link=link)
        case _:
            flows = [_arun_on_server(server, flow) for server, flow in op.flows]
            return _checked(await asyncio.gather(*flows, return_exceptions=True))


# The inboxes of waiters

_thread_inboxes: WeakKeyDictionary[Any, dict[Any, ThreadInbox]] = WeakKeyDictionary()
_loop_inboxes: WeakKeyDictionary[Any, dict[Any, LoopInbox]] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_thread_inboxes.clear)
os.register_at_fork(after_in_child=_loop_inboxes.clear)


def _thread_inbox(client: Client, keys: LockKeys) -> ThreadInbox:
    """Return the inbox of the threads of this process for a lock."""
    inboxes = _thread_inboxes.setdefault(shared_by_locks(client), {})
    # The pid, because uWSGI forks without Python's hooks.
    key = os.getpid(), keys.inboxes
    return inboxes.get(key) or inboxes.setdefault(key, ThreadInbox(keys.inboxes, run))


def _loop_inbox(client: AsyncClient, keys: LockKeys) -> LoopInbox:
    """Return the inbox of the tasks of the running event loop for a lock."""
    inboxes = _loop_inboxes.setdefault(shared_by_locks(client), {})
    inbox = inboxes.get(keys.inboxes)
    if inbox is None or inbox.loop is not asyncio.get_running_loop():
        inbox = inboxes[keys.inboxes] = LoopInbox(keys.inboxes, arun)
    return inbox


# A call, and a batch of calls


def _run_script(client: Client, call: Call, link: ThreadLink | None) -> Any:
    send = partial(transport.call, client, limit=call.limit, once=call.once, link=link)
    replies = send([_by_digest(call)])
    if isinstance(replies[0], NoScriptError):  # after a restart or SCRIPT FLUSH
        replies = send([_by_source(call)])
    return _without_errors(replies).pop()


async def _arun_script(client: AsyncClient, call: Call, link: LoopLink | None) -> Any:
    send = partial(
        transport.acall, client, limit=call.limit, once=call.once, urgent=call.urgent, link=link
    )
    replies = await send([_by_digest(call)])
    if isinstance(replies[0], NoScriptError):
        replies = await send([_by_source(call)])
    return _without_errors(replies).pop()


def _run_batch(client: Client, batch: Batch, link: ThreadLink | None) -> list[Any]:
    wait, limit = _wait_for_replicas(batch)
    commands = [*map(_by_digest, batch.calls), *wait]
    replies = transport.call(client, commands, limit, link=link)
    if NoScriptError in map(type, replies):  # calls that were executed may be repeated
        commands = [*map(_by_source, batch.calls), *wait]
        replies = transport.call(client, commands, limit, link=link)
    return replies if batch.apart else _without_errors(replies)


async def _arun_batch(client: AsyncClient, batch: Batch, link: LoopLink | None) -> list[Any]:
    wait, limit = _wait_for_replicas(batch)
    commands = [*map(_by_digest, batch.calls), *wait]
    replies = await transport.acall(client, commands, limit, link=link)
    if NoScriptError in map(type, replies):
        commands = [*map(_by_source, batch.calls), *wait]
        replies = await transport.acall(client, commands, limit, link=link)
    return replies if batch.apart else _without_errors(replies)


def _without_errors(replies: list[Any]) -> list[Any]:
    """Return replies. If there is an error among them, raise the first one."""
    for reply in replies:
        if isinstance(reply, Exception):
            replies.clear()  # because of the references: see `run()`
            try:
                raise reply
            finally:
                del reply
    return replies


def _by_digest(call: Call) -> Command:
    return ("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)


def _by_source(call: Call) -> Command:
    return ("EVAL", call.script.source, len(call.keys), *call.keys, *call.args)


def _wait_for_replicas(batch: Batch) -> tuple[list[Command], float | None]:
    """Return the command that counts the replicas that have the writes before it on its
    connection, and the limit of the request."""
    if not batch.replicas:
        return [], batch.limit
    seconds = REPLICA_WAIT_SECONDS
    limit = batch.limit
    if limit is None:  # the client's own limit may be shorter than the wait
        limit = seconds + REPLY_TIMEOUT_SECONDS
    seconds = min(seconds, limit * REPLICA_SHARE_OF_LIMIT)
    return [("WAIT", batch.replicas, max(1, round(seconds * 1000)))], limit  # 0 has no limit


# Flows on several servers


def _run_concurrently(flows: Sequence[OnServer[Any]]) -> list[Any]:
    """Run flows in threads, and the first one in this thread. All have ended when this returns.

    A single flow has no thread, so that an interrupt ends it.
    """
    threads = [_FlowThread(server, flow) for server, flow in flows]
    try:
        for thread in [each for each in threads[1:] if not each.try_start()] + threads[:1]:
            thread.run()
    finally:
        for thread in threads:
            thread.finish()
    return _checked([thread.outcome for thread in threads])


def _checked(outcomes: list[Any]) -> list[Any]:
    """Raise an error in the settings: other servers cannot make up for it."""
    for outcome in outcomes:
        if isinstance(outcome, ImproperlyConfigured):
            raise outcome
    return outcomes


class _FlowThread(Thread):
    def __init__(self, server: Server, flow: Flow[Any]) -> None:
        super().__init__(daemon=True)
        self.outcome: Any = None
        self._server = server
        self._flow = flow
        self._may_run = Lock()

    def try_start(self) -> bool:
        try:
            self.start()
        except RuntimeError:  # the interpreter is shutting down
            return False
        return True

    def run(self) -> None:
        if not self._may_run.acquire(blocking=False):
            return
        try:
            self.outcome = run(self._server.client, self._flow)
        except Exception as error:
            self.outcome = error.with_traceback(None)  # its frames would keep a lock alive

    def finish(self) -> None:
        """Wait for the thread. A thread that has not begun to run, because an interrupt struck
        while it was started, never does."""
        has_begun = not self._may_run.acquire(blocking=False)
        if has_begun and self.ident:
            self.join()


async def _arun_on_server(server: Server, flow: Flow[T]) -> T:
    return await arun(await server.async_client(), flow)
