"""The two ways to do what a flow wants. But for `exchange` below, sync and async differ nowhere
else in how they talk to Redis."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from inspect import GEN_CLOSED, getgeneratorstate
from threading import Lock, Thread
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError, NoScriptError

from ..backends import AsyncClient, Client
from ..backends.dedicated import aclose, close, dedicated
from ..exceptions import LockError
from .exchange import aask, ask, is_elsewhere, keeper
from .operations import (
    CLEANUP_TIMEOUT_SECONDS,
    REPLICA_WAIT_SECONDS,
    Batch,
    BlockingPop,
    Call,
    Command,
    Flow,
    OnServer,
    Op,
    RawCommands,
    Sleep,
)
from .pools import PATIENCE, STANDING, is_exhausted, seat

T = TypeVar("T")

MOST = 10
"""Keys of a call that are likely to come again: not those of many locks."""

IN_TIME = 0.8
"""The part of the time for an answer that the server may take to wait for something."""


def run(client: Client, flow: Flow[T]) -> T:
    """Drive a flow to its end. What an operation raises is raised inside the flow, and so is an
    interrupt, wherever it strikes."""
    answer, error = None, None
    while True:
        try:
            op = flow.send(answer) if error is None else flow.throw(error)
            answer, error = _perform(client, op), None
        except StopIteration as stop:
            result: T = stop.value
            return result
        except BaseException as trouble:
            if getgeneratorstate(flow) == GEN_CLOSED:  # it is the flow's own
                raise
            error = trouble


async def arun(client: AsyncClient, flow: Flow[T]) -> T:
    """Async version of `run()`. If the task is cancelled while a vital call is under way, the flow
    gets the answer first, and then the cancellation. Without an answer in that time,
    or at a second cancellation, the flow gets the cancellation at once."""
    cancelled = False
    try:
        op = next(flow)
        while True:
            if cancelled and not _is_vital(op):
                op = flow.throw(asyncio.CancelledError())
                continue
            try:
                answer = await _aperform(client, op)
            except _CancelledMeanwhile as late:
                cancelled = True
                op = flow.send(late.answer)
            except BaseException as error:
                op = flow.throw(error)
            else:
                op = flow.send(answer)
    except StopIteration as stop:
        if cancelled:
            raise asyncio.CancelledError from None
        result: T = stop.value
        return result
    except LockError:
        if cancelled:
            raise asyncio.CancelledError from None
        raise


class _CancelledMeanwhile(asyncio.CancelledError):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


def _is_vital(op: Op) -> bool:
    return isinstance(op, Call) and op.vital


def _perform(client: Client, op: Op) -> Any:
    match op:
        case Call():
            return _call(client, op)
        case Batch(calls, limit):
            commands, synced = [_by_digest(call) for call in calls], _synced(client, op)
            answers = ask(client, [*commands, *synced], limit)
            if unknown := _unknown(answers):
                full = [_in_full(calls[at]) for at in unknown]
                _put_in(answers, unknown, ask(client, [*full, *synced], limit))
            return answers if op.apart else [_good(answer) for answer in answers]
        case RawCommands(commands, limit, key):
            return ask(keeper(client, key), [(parts,) for parts in commands], limit)
        case BlockingPop():
            there = keeper(client, op.key)
            with seat(there) as seated:
                if seated:
                    [answer] = ask(there, [_pop(there, op)], op.limit)
                    return _popped(answer)
            return time.sleep(min(op.seconds, STANDING))
        case Sleep(seconds):
            return time.sleep(seconds)
    return _at_the_same_time(op.flows)


async def _aperform(client: AsyncClient, op: Op) -> Any:
    match op:
        case Call(vital=True, once=True):
            return await _to_the_end(client, op)
        case Call(vital=True):
            return await _again_if_cancelled(client, op)
        case Call():
            return await _acall(client, op)
        case Batch(calls, limit):
            commands, synced = [_by_digest(call) for call in calls], _synced(client, op)
            answers = await aask(client, [*commands, *synced], limit)
            if unknown := _unknown(answers):
                full = [_in_full(calls[at]) for at in unknown]
                _put_in(answers, unknown, await aask(client, [*full, *synced], limit))
            return answers if op.apart else [_good(answer) for answer in answers]
        case RawCommands(commands, limit, key):
            return await aask(keeper(client, key), [(parts,) for parts in commands], limit)
        case BlockingPop():
            there = keeper(client, op.key)
            with seat(there) as seated:
                if seated:
                    [answer] = await aask(there, [_pop(there, op)], op.limit)
                    return _popped(answer)
            return await asyncio.sleep(min(op.seconds, STANDING))
        case Sleep(seconds):
            return await asyncio.sleep(seconds)
    return _outcomes(await asyncio.gather(*map(_aoutcome, op.flows), return_exceptions=True))


def _at_the_same_time(flows: Sequence[OnServer[Any]]) -> list[Any]:
    """In threads, but for one that the caller's own does: of a single one nothing is waited for
    that an interrupt would not end. All that have begun have ended when this does."""
    runs = [_Run(there) for there in flows]
    try:
        for run_here in [each for each in runs[1:] if not each.starts()] + runs[:1]:
            run_here.run()
    finally:
        for each in runs:
            each.end()
    return _outcomes([each.outcome for each in runs])


def _outcomes(told: list[Any]) -> list[Any]:
    """Settings that are wrong are no failure of one server, which the others could make good."""
    for each in told:
        if isinstance(each, ImproperlyConfigured):
            raise each
    return told


class _Run(Thread):
    """A flow's, on its server."""

    def __init__(self, there: OnServer[Any]) -> None:
        super().__init__(daemon=True)
        self.outcome: Any = None
        self._there = there
        self._may_begin = Lock()

    def starts(self) -> bool:
        try:
            self.start()
        except RuntimeError:  # the interpreter shuts down
            return False
        return True

    def run(self) -> None:
        if not self._may_begin.acquire(blocking=False):
            return
        server, flow = self._there
        try:
            self.outcome = run(server.client, flow)
        except Exception as error:
            self.outcome = error.with_traceback(None)  # it would keep its frames alive

    def end(self) -> None:
        """Wait until it has. If it has not begun, as the start of a thread was interrupted, it
        never will."""
        has_begun = not self._may_begin.acquire(blocking=False)
        if has_begun and self.ident:
            self.join()


async def _aoutcome(there: OnServer[T]) -> T:
    server, flow = there
    return await arun(await server.async_client(), flow)


def _call(client: Client, call: Call) -> Any:
    if not call.vital:
        return _run_script(client, call, PATIENCE)
    try:
        return _run_script(client, call, 0)
    except ConnectionError as error:
        # Waiters use all connections of the pool, and they wait for this release. It can't wait
        # for them: the lease is no longer renewed.
        extra = dedicated(client) if is_exhausted(error) else client
        if extra is client:
            raise
    try:
        return _run_script(extra, call, PATIENCE)
    finally:
        close(extra)


def _run_script(client: Client, call: Call, patience: float) -> Any:
    [answer] = ask(client, [_by_digest(call)], call.limit, patience=patience)
    if isinstance(answer, NoScriptError):
        [answer] = ask(client, [_in_full(call)], call.limit, patience=patience)
    return _good(answer)


async def _acall(client: AsyncClient, call: Call) -> Any:
    if not call.vital:
        return await _arun_script(client, call, PATIENCE)
    try:
        return await _arun_script(client, call, 0)
    except ConnectionError as error:
        extra = dedicated(client) if is_exhausted(error) else client  # see `_call`
        if extra is client:
            raise
    try:
        return await _arun_script(extra, call, PATIENCE)
    finally:
        await aclose(extra)


async def _arun_script(client: AsyncClient, call: Call, patience: float) -> Any:
    once = call.once
    [answer] = await aask(client, [_by_digest(call)], call.limit, once=once, patience=patience)
    if isinstance(answer, NoScriptError):
        [answer] = await aask(client, [_in_full(call)], call.limit, once=once, patience=patience)
    return _good(answer)


# What both send, and how both read


def _by_digest(call: Call) -> Command:
    keys = call.keys
    script = ("EVALSHA", call.script.sha, len(keys))
    if len(keys) > MOST:
        return script, (*keys, *call.about, *call.args)
    return script, keys, call.about, call.args


def _in_full(call: Call) -> Command:
    # A server that was restarted, or told SCRIPT FLUSH, does not know the digest.
    return (("EVAL", call.script.source, len(call.keys), *call.keys, *call.about, *call.args),)


def _unknown(answers: Sequence[Any]) -> list[int]:
    """The places of the calls whose script the server did not know."""
    return [at for at, answer in enumerate(answers) if isinstance(answer, NoScriptError)]


def _put_in(answers: list[Any], places: Sequence[int], others: Sequence[Any]) -> None:
    for at, answer in zip(places, others, strict=False):
        answers[at] = answer
    if len(others) > len(places):  # how many replicas have them
        answers[-1] = others[-1]


def _synced(client: Any, batch: Batch) -> tuple[Command, ...]:
    """What asks how many replicas have what was sent before it on the same connection."""
    if not batch.replicas:
        return ()
    there = keeper(client, batch.calls[0].keys[0])
    seconds = _in_time(
        there,
        REPLICA_WAIT_SECONDS
        if batch.limit is None
        else min(REPLICA_WAIT_SECONDS, batch.limit * IN_TIME),
    )
    return ((("WAIT", batch.replicas, max(1, round(seconds * 1000))),),)  # 0 is for ever


def _pop(client: Any, wait: BlockingPop) -> Command:
    # Before 7.0.8 Redis takes a millisecond and less for 0, which is for ever.
    return (("BLPOP", wait.key, max(0.002, _in_time(client, wait.seconds))),)


def _in_time(client: Any, seconds: float) -> float:
    # A command that lasts longer than the client waits for any answer would break the connection.
    timeout = client.connection_pool.connection_kwargs.get("socket_timeout")
    return min(seconds, timeout * IN_TIME) if timeout else seconds


def _good(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _popped(answer: Any) -> str | None:
    if is_elsewhere(answer):
        return None
    return text(_good(answer)[1]) if answer else None


def text(value: str | bytes) -> str:
    """Clients answer in bytes or, told ``decode_responses``, in str."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


async def _again_if_cancelled(client: AsyncClient, call: Call) -> Any:
    """Make a call. If this task is cancelled meanwhile, make it once more, so that the flow learns
    the answer. It takes at most 1 s, and a second cancellation ends it."""
    try:
        return await _acall(client, call)
    except asyncio.CancelledError as cancelled:
        limit = (
            CLEANUP_TIMEOUT_SECONDS
            if call.limit is None
            else min(call.limit, CLEANUP_TIMEOUT_SECONDS)
        )
        try:
            answer = await _acall(client, replace(call, limit=limit))
        except Exception:
            raise cancelled from None
        raise _CancelledMeanwhile(answer) from cancelled


async def _to_the_end(client: AsyncClient, call: Call) -> Any:
    """Make a call that must not be repeated. If this task is cancelled meanwhile, wait at most
    1 s for the answer, and no longer than until a second cancellation."""
    task = asyncio.ensure_future(_acall(client, call))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError as cancelled:
        try:
            await asyncio.wait([task], timeout=CLEANUP_TIMEOUT_SECONDS)
        finally:
            task.cancel()  # does nothing if it is done
            task.add_done_callback(_forget_error)
        if task.done() and not task.cancelled() and not task.exception():
            raise _CancelledMeanwhile(task.result()) from cancelled
        raise
    return task.result()


def _forget_error(task: "asyncio.Task[Any]") -> None:
    """Keep asyncio from logging an error that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
