"""A stage that runs flows step by step, on a real server and in the `Model`.

Each worker is a flow that stops at each operation. The test decides which worker continues, and
whether the operation, its reply, or neither arrives. It uses neither threads nor sleeps: a wait
ends at once, and the scripts read the time from a key that the test changes.

Each operation is executed in Redis and in the model. If their replies or their states differ, the
stage raises `Mismatch`.
"""

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha1
from types import ModuleType
from typing import Any

import redis
from redis.exceptions import ConnectionError, TimeoutError

from django_redislock import clock
from django_redislock.engine import protocol as good_flows
from django_redislock.engine import queries, store
from django_redislock.engine.operations import Batch, Call, Flow, Join, Op, Wait
from django_redislock.engine.protocol import Acquired
from django_redislock.engine.runners import _perform
from django_redislock.engine.store import RenewMode
from django_redislock.engine.waiters import Inbox
from django_redislock.exceptions import LockError
from django_redislock.keys import Keys, LockKeys
from django_redislock.lua import (
    ACQUIRE,
    FORCE,
    HEARTBEAT,
    OUTBOX,
    RELEASE,
    RENEW,
    ROWS,
    SENT,
    STORE,
    Script,
)

from .model import Grant as ModelGrant
from .model import Model

LEASE = 30.0
TICK = 1000
"""The duration of each operation, in microseconds."""

BEGINNING = 2_208_988_800_000_000
"""The year 2040 in microseconds. The server expires nothing by its own clock before."""

CLOCK = "stage:clock"
PREFIX = "testproject:redislock"
KEYS: LockKeys = Keys(PREFIX).of("stage")

MOVE = f"""
local function server_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function ends_at(key)
  local ends = redis.pcall('PEXPIRETIME', key)
  if type(ends) == 'number' then return ends end
  while true do -- Redis 6.2 knows what is left alone: till when, in one and the same millisecond
    local before, left = server_ms(), redis.call('PTTL', key)
    if before == server_ms() then return left < 0 and left or before + left end
  end
end
local function move_clock(us)
  local now_us = redis.call('INCRBY', '{CLOCK}', us)
  for _, key in ipairs(redis.call('KEYS', '{{{PREFIX}}}:*')) do
    local ends = ends_at(key)
    if ends > 0 and ends < math.floor(now_us / 1000) then redis.call('DEL', key) end
  end
  return {{ string.format('%d', now_us / 1000000), string.format('%d', now_us % 1000000) }}
end
"""
"""Advance the clock and delete what expired. The reply has the format of TIME."""

THEN_SHOW = f"""
return {{ act() or false, {{
  redis.call('HGETALL', '{KEYS.lock}'), redis.call('ZRANGE', '{KEYS.queue}', 0, -1),
  redis.call('HGETALL', '{KEYS.waiting}'),
  redis.call('ZRANGE', '{KEYS.index}', 0, -1, 'WITHSCORES'),
  redis.call('KEYS', '{{{PREFIX}}}:*'), ends_at('{KEYS.lock}') }} }}
"""
"""Return the result of `act`, and the state of Redis after it."""


class Mismatch(AssertionError):
    """Redis and the model differ."""


class Cancelled(BaseException):
    """The cancellation of a task."""


def staged(script: Script) -> Script:
    """Return the script with the clock of the stage."""
    source, times = re.subn(r"redis\.call\('TIME'\)", f"move_clock({TICK})", script.source)
    assert times == 1, f"{script.name} reads the time {times} times"
    source = re.sub(
        r"'PEXPIRE', (.+?), ([\w.]+(?: - 1)?)\)", r"'PEXPIREAT', \1, now + \2)", source
    )
    source = source.replace("'PX', heartbeat", "'PXAT', now + heartbeat")
    unread = re.search("'PEXPIRE'|'PX'", source)
    assert not unread, f"{script.name} sets an expiry that the stage can't read"
    return shown(script.name, source)


def shown(name: str, source: str) -> Script:
    source = f"{MOVE}\nlocal function act()\n{source}\nend\n{THEN_SHOW}"
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


SOURCES = (ACQUIRE, RELEASE, RENEW, FORCE, HEARTBEAT, ROWS, STORE, OUTBOX, SENT)
SCRIPTS = {each.name: staged(each) for each in SOURCES}
PASS_TIME = shown("pass_time", "move_clock(ARGV[1])")
POP = shown("pop", "return redis.call('LPOP', KEYS[1])")


class Worker:
    """A client that acquires, holds and releases the lock."""

    def __init__(
        self,
        stage: "Stage",
        token: str,
        *,
        renewed: bool = True,
        weight: int = 1,
        lease: float = LEASE,
        kind: str | None = None,
        capacity: int | None = None,
        inbox: Inbox | None = None,
    ) -> None:
        self.stage = stage
        self.inbox = inbox or Inbox(KEYS.inboxes)
        self.request = store.AcquireRequest(
            keys=stage.keys,
            token=token,
            kind=kind or stage.kind,
            capacity=capacity or stage.capacity,
            weight=weight,
            lease=lease,
            payload="{}",
            renewal_confirms_grant=renewed,
        )
        self.granted: Acquired | None = None
        self.robbed = False
        self.may_be_cancelled = False
        self.outcome: object = None
        self.op: Op | None = None
        self._flow: Flow[Any] | None = None
        self._in_flight: list[Any] = []

    def __repr__(self) -> str:
        return self.request.token

    @property
    def believes(self) -> bool:
        """Whether it holds the lock by its own knowledge, which excludes forced releases."""
        in_time = self.granted is not None and clock.now() < self.granted.deadline
        return in_time and not self.robbed

    def acquire(self, wait: float | None = None, predecessor: "Worker | None" = None) -> "Worker":
        until = None if wait is None else clock.now() + wait
        self.robbed = False
        self.request = replace(self.request, predecessor="")
        if predecessor:
            self.request = replace(self.request, predecessor=predecessor.request.token)
        return self._begin(self._acquire(until))

    def release(self, at_least_for: float = 0) -> "Worker":
        self.granted = None
        return self._begin(self._release(at_least_for))

    def renew(
        self, seconds: float | None = None, mode: RenewMode = "renew", *, answered: bool = True
    ) -> None:
        """Renew or extend the lease in one step."""
        sent, believes = clock.now(), self.believes
        seconds = self.request.lease if seconds is None else seconds
        flow = self.stage.flows.renew(self.request.keys, self.request.token, seconds, mode)
        left = self.stage.run(flow)
        if self.granted and believes and answered:
            self.granted = Acquired(self.granted.fence_token, sent + left) if left else None

    def _acquire(self, until: float | None) -> Flow[Acquired | None]:
        self.may_be_cancelled = True
        try:
            self.granted = yield from self.stage.flows.acquire(self.request, until)
        except LockError:
            return None  # refused: of another kind
        except (ConnectionError, TimeoutError, Cancelled) as error:
            self.may_be_cancelled = False
            if not (yield from self.stage.flows.cleanup_failed_acquire(self.request, error)):
                yield from self._release(0)  # like the renewer
        finally:
            self.may_be_cancelled = False
        return self.granted

    def _release(self, at_least_for: float) -> Flow[bool]:
        release = self.stage.flows.release
        while True:
            with suppress(ConnectionError):  # after a lost request or reply, send it again
                return (
                    yield from release(
                        self.request.keys, self.request.token, at_least_for=at_least_for
                    )
                )

    def _begin(self, flow: Flow[Any]) -> "Worker":
        self._flow = flow
        self._go_on(lambda: next(flow))
        return self

    def step(self) -> None:
        """Execute its operation, unless that was done already, and deliver the reply."""
        self.arrive()
        reply = self._in_flight.pop()
        if isinstance(self.op, Wait):
            self.inbox.deliver(reply)
            reply = self.op.waiter.take_news()
        self._answer(reply)

    def arrive(self) -> None:
        """Execute its operation, and keep the reply under way."""
        assert self.op
        if not self._in_flight:
            self._in_flight.append(self.stage.perform(self.op))

    def lose_reply(self) -> None:
        """Execute its operation, and break the connection before the reply."""
        self.arrive()
        self.lose_request()

    def lose_request(self) -> None:
        """Break the connection before Redis gets the request, unless it was executed already."""
        self._in_flight.clear()
        if isinstance(self.op, Wait):
            self._answer(None)  # the reader tells the waiter to ask again
        else:
            self._raise(ConnectionError("the connection broke"))

    def send_heartbeat(self) -> None:
        """Send a heartbeat if it waits, and end its wait. Ask again if that is necessary."""
        if isinstance(self.op, Wait):
            self.stage.run(self.inbox.heartbeat())
            self.step()
        if isinstance(self.op, Call):
            self.step()

    def cancel(self) -> None:
        """Cancel the acquisition."""
        self._in_flight.clear()
        self._raise(Cancelled())

    def finish(self) -> object:
        """Step to the end."""
        for _ in range(100):
            if self.op is None:
                return self.outcome
            self.step()
        raise AssertionError(f"{self} never came to an end")

    def die(self) -> None:
        """Stop like after SIGKILL: its data in Redis remains."""
        self._flow = self.op = self.granted = None
        self.may_be_cancelled = False
        self._in_flight.clear()

    def _answer(self, answer: Any) -> None:
        flow = self._flow
        assert flow
        self._go_on(lambda: flow.send(answer))

    def _raise(self, error: BaseException) -> None:
        flow = self._flow
        assert flow
        self._go_on(lambda: flow.throw(error))

    def _go_on(self, move: Callable[[], Op]) -> None:
        try:
            self.op = move()
            if isinstance(self.op, Join):
                waiter = self.inbox.join(self.op.keys, self.op.token)
                self.stage.tokens[self.inbox.id, waiter.ticket] = waiter.token
                self._answer(waiter)
            elif isinstance(self.op, Wait):
                self.op.waiter.is_waiting = True
        except StopIteration as stop:
            self._flow = self.op = None
            self.outcome = stop.value


class Stage:
    def __init__(
        self,
        client: redis.Redis,
        kind: str = "mutex",
        capacity: int = 1,
        *,
        scripts: Mapping[str, Script] = SCRIPTS,
        flows: ModuleType = good_flows,
    ) -> None:
        self.client = client
        self.kind = kind
        self.capacity = capacity
        self.scripts = scripts
        self.flows: Any = flows
        self.keys = KEYS
        self.workers: list[Worker] = []
        self.tokens: dict[tuple[str, int], str] = {}
        """The token of each ticket of an inbox."""
        self.stranger = Worker(self, "stranger")
        self.model = Model(BEGINNING)
        self._lock_expires = -2

    def __enter__(self) -> "Stage":
        self._real_clock = clock.now
        clock.now = self.now
        self.client.flushdb()
        self.client.set(CLOCK, BEGINNING)
        return self

    def __exit__(self, *exc: object) -> None:
        clock.now = self._real_clock
        # The server itself does not expire these keys before 2040. Events of that year would be
        # the latest of other tests.
        kept = [f"{prefix}*" for prefix in (self.keys.inboxes, self.keys.history)]
        keys = [key for pattern in kept for key in self.client.keys(pattern)]
        self.client.delete(CLOCK, self.keys.index, *keys)

    def now(self) -> float:
        """Return the time on the workers' clock, which has another origin than the server's."""
        return (self.model.now_us - BEGINNING) / 1_000_000

    def worker(self, token: str = "", **options: Any) -> Worker:
        self.workers.append(Worker(self, token or f"w{len(self.workers)}", **options))
        return self.workers[-1]

    # Operations, in Redis and in the model

    def run(self, flow: Generator[Op, Any, Any]) -> Any:
        try:
            op = next(flow)
            while True:
                op = flow.send(self.perform(op))
        except StopIteration as stop:
            return stop.value

    def perform(self, op: Op) -> Any:
        if isinstance(op, Batch):
            return [self._call(call) for call in op.calls]
        if isinstance(op, Wait):
            return self._pop(op.waiter.inbox)
        assert isinstance(op, Call)
        return self._call(op)

    def force_release(self, token: str | None = None) -> tuple[str, ...]:
        released: tuple[str, ...] = self.run(self.flows.force_release(self.keys, token))
        for worker in self.workers:
            if worker.request.token in released:
                worker.granted, worker.robbed = None, True
        return released

    def pass_time(self, seconds: float) -> None:
        us = round(seconds * 1_000_000)
        _, shown = _perform(self.client, Call(PASS_TIME, (), (us,)))
        self.model.pass_time(us)
        self._compare(shown)

    def restart_empty(self) -> None:
        self.client.flushdb()
        self.client.set(CLOCK, self.model.now_us)
        self.model.lose_everything()
        self.pass_time(0)

    def look(self) -> None:
        """Compare the listing of locks with the model."""
        info = self.run(queries.get(Keys(PREFIX), self.keys.name))
        holders, waiters = self.model.holders, len(self.model.waiters)
        if not holders and not waiters:
            return _same("the listing", info, None)
        seen = {each.token: (each.weight, each.fence_token) for each in info.holders}
        _same("the listed", seen, {t: (h.weight, h.fence) for t, h in holders.items()})
        return _same("the number of waiters", info.waiters, waiters)

    def _pop(self, inbox: Inbox) -> bytes:
        """Return the oldest message of an inbox, or an empty one."""
        reply, shown = _perform(self.client, Call(POP, (f"{self.keys.inboxes}{inbox.id}",), ()))
        message = reply or b""
        expected = self.model.pop(inbox.id)
        _same(
            "the message", self._grants(inbox.id, message.decode()), [expected] if expected else []
        )
        self._compare(shown)
        return message

    def _grants(self, inbox: str, text: str) -> list[ModelGrant]:
        words = iter(text.split())
        triples = zip(words, words, words, strict=True)
        return [(self.tokens[inbox, int(ticket)], int(fence)) for ticket, fence, _ in triples]

    def _call(self, op: Call) -> Any:
        op = replace(op, script=self.scripts[op.script.name])
        answer, shown = _perform(self.client, op)
        self.model.pass_time(TICK)
        remembered = self._lock_expires >= self.model.now
        if op.script.name != ROWS.name:
            expected = self._model_answer(op, remembered=remembered)
            _same(f"the answer to {op.script.name}{op.args}", _read(answer), expected)
        self._compare(shown)
        if op.script.name == ACQUIRE.name and isinstance(answer, int) and answer < 0:
            self._note_robbed(str(op.args[2]).rpartition(" ")[2])
        return answer

    def _note_robbed(self, predecessor: str) -> None:
        for worker in self.workers:
            worker.robbed = worker.robbed or worker.request.token == predecessor

    def _model_answer(self, call: Call, *, remembered: bool) -> Any:
        model = self.model
        match call.script.name, call.args:
            case "renew", [mode, wanted, _]:
                renewed, ms = str(wanted).split()
                return b"%d" % model.renew(renewed, int(ms), mode)  # type: ignore[arg-type]
            case "acquire", [_, token, terms, _, _]:
                kind, *numbers, inbox, _, _, predecessor = str(terms).split(" ")
                return model.acquire(str(token), kind, *map(int, numbers), inbox, predecessor)
            case "release", [_, token, at_least, _, "released", _]:
                return model.release(token, at_least, remembered=remembered)  # type: ignore[arg-type]
            case "heartbeat", [inbox, _, lasts, tokens, _]:
                missing = model.heartbeat(
                    str(inbox), int(lasts), str(tokens).split(), remembered=remembered
                )
                return " ".join(missing).encode()
            case "force", [_, field, _, _, _]:
                chosen = str(field).removeprefix("h:")
                return sorted(model.force(chosen, remembered=remembered))  # type: ignore[arg-type]
        raise AssertionError(f"the model does not know {call}")

    # The state of Redis

    def left(self) -> list[str]:
        own = (CLOCK, self.keys.index)
        keys = [key.decode() for key in self.client.keys("*")]
        return [
            key
            for key in keys
            if key not in own
            and not key.startswith((self.keys.history, self.keys.inboxes))
            and not self._ran_out(key)
        ]

    def _ran_out(self, key: str) -> bool:
        """Return whether it is a lock whose last lease expired. The history needs it."""
        return key == self.keys.lock and not self._held(self.client.hgetall(key))

    def _compare(self, shown: list[Any]) -> None:
        lock, queue, waiting, index, keys, self._lock_expires = shown
        fields, ends = _pairs(lock), {name: float(end) for name, end in _pairs(index).items()}
        self._compare_holders(fields)
        self._compare_waiters(queue, _pairs(waiting))
        self._compare_index(ends, fields)
        self._compare_keys({key.decode() for key in keys}, fields)

    def _compare_holders(self, lock: dict[bytes, bytes]) -> None:
        model = self.model
        wanted = {
            token: (each.weight, each.expires, each.fence, each.cooling)
            for token, each in model.holders.items()
        }
        _same("who holds it", self._held(lock), wanted)
        if not wanted:
            return
        _same("its kind", lock[b"kind"].decode(), model.kind)
        ends = [expires for _, expires, *_ in wanted.values()]
        noted = int(lock[b"soonest"]), int(lock[b"latest"])
        if noted[0] > min(ends) or noted[1] != max(ends):
            raise Mismatch(f"leases end at {ends}, noted are {noted}")
        weights = [int(value.split()[0]) for key, value in lock.items() if key.startswith(b"h:")]
        _same("the weight in use", int(lock[b"used"]), sum(weights))

    def _held(self, lock: dict[bytes, bytes]) -> dict[str, tuple[int, int, int, bool]]:
        found = {}
        for field, value in lock.items():
            if field.startswith(b"h:"):
                weight, expires, fence, _, _, lease, _ = value.split(b" ", 6)
                found[field.decode()[2:]] = int(weight), int(expires), int(fence), lease == b"0"
        return {token: facts for token, facts in found.items() if facts[1] > self.model.now}

    def _compare_waiters(self, queue: list[bytes], waiting: dict[bytes, bytes]) -> None:
        _same("who is in the queue", set(queue), set(waiting))
        alive, now = self.model.alive, self.model.now
        living = [
            token.decode()
            for token in queue
            if alive.get(waiting[token].split()[0].decode(), 0) >= now
        ]
        _same("who waits", living, self.model.waiters)

    def _compare_index(self, index: dict[bytes, float], lock: dict[bytes, bytes]) -> None:
        _same("the last fencing token", int(index.pop(b"", 0)), self.model.last_fence)
        ends = [holder.expires for holder in self.model.holders.values()]
        listed = index.pop(self.keys.name.encode(), 0)
        if ends and listed != max(ends):
            raise Mismatch(f"listed until {listed}, but held until {max(ends)}")
        if listed > self.model.now and not lock:
            raise Mismatch(f"listed until {listed}, but released")
        _same("what else is listed", index, {})

    def _compare_keys(self, keys: set[str], lock: dict[bytes, bytes]) -> None:
        model = self.model
        wanted = {f"{self.keys.inboxes}{inbox}" for inbox, each in model.inboxes.items() if each}
        wanted |= {
            f"{self.keys.inboxes}{inbox}:alive"
            for inbox, until in model.alive.items()
            if until >= model.now
        }
        optional = {self.keys.index}
        if model.queue:
            optional |= {self.keys.queue, self.keys.waiting}
        if any(field.startswith(b"h:") for field in lock):
            optional.add(self.keys.lock)
        found = {key for key in keys - optional if not key.startswith(self.keys.history)}
        _same("what else there is", found, wanted - optional)


def _same(what: str, real: object, expected: object) -> None:
    if real != expected:
        raise Mismatch(f"{what}: {real!r} in Redis, {expected!r} in the model")


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _read(answer: Any) -> Any:
    """Return the reply of a script in the format of the model."""
    return sorted(each.decode() for each in answer) if isinstance(answer, list) else answer
