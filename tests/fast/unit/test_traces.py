"""Random runs of the models in `spec/`, step by step against the real scripts.

SPIN prints each request that a run makes, and what the model's server has after it: the reply, the
holders with the remaining ticks of their leases, the queue, the grants and the outbox. Here the
same requests go to the scripts, with a clock that moves a tick where the model's does. A broken
copy of a script must show a difference.
"""

import math
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import redis

from django_redislock.engine.operations import Call
from django_redislock.engine.runners import _perform
from django_redislock.keys import Keys
from django_redislock.lua import (
    ACQUIRE,
    HEARTBEAT,
    OUTBOX,
    RELEASE,
    RENEW,
    SENT,
    STORE,
    Script,
)
from tests.mutants.__main__ import faults
from tests.programs import find
from tools.spec import copy_models, definitions

from .stage import BEGINNING, CLOCK, KEYS, PASS_TIME, PREFIX, SCRIPTS
from .test_mutants import MUTANTS, Mutant

TICK_MS = 1_000_000
"""Much longer than all requests between two ticks, each of which takes a millisecond."""

STEPS = 30_000
"""Single statements of the model. A run of `lock.pml` then has several hundred requests. One of
`messages.pml` ends before, with some 30 requests."""

CLIENTS = 3
WEIGHTS = {1: (1, 1, 1), 2: (2, 1, 1)}
"""The weights of the clients, by the capacity."""


class Difference(AssertionError):
    """The scripts do not do what the model does."""


State = dict[str, list[tuple[int, ...]]]
"""What the server has after a request, by the words that a model prints.

`reply` has the reply, and `held` the tokens of the holders and the ticks that are left of their
leases. `queued` and `grant` have tokens. `due` has the messages in the outbox and the ticks until
they must be sent, plus 1. `taken` has the message that the request took out of the outbox.
"""

WORDS = ("reply", "held", "queued", "grant", "due", "taken")


@dataclass
class Request:
    """A request in a run of a model, or a tick, and the state after it."""

    kind: str
    token: int
    caller: int
    after: State

    kept: list[int]
    """The tokens whose leases do not count down in a tick."""

    is_alive: bool
    """Whether the client's heartbeats go on in a tick."""


@dataclass(frozen=True)
class Run:
    """A kind of random runs."""

    model: str
    options: str
    lease: int
    grant: int
    alive: int
    queue_lock: int = 0
    resend: int = 0


LOCK = {"model": "lock.pml", "lease": 6, "grant": 3, "alive": 2}
LOCK_OPTIONS = f"TRACE=1 N={CLIENTS} LEASE=6 GRANT=3 ALIVE=2"

RUNS = {
    "any delays": Run(options=LOCK_OPTIONS, **LOCK),
    "prompt clients": Run(options=f"{LOCK_OPTIONS} PROMPT=20", **LOCK),
}

MESSAGES = Run("messages.pml", "TRACE=1 M=3 DEATHS=3 LOSSES=1", 1, 1, 1, queue_lock=2, resend=1)
NUMBER = 3
"""Of stored messages. Then come the tokens of their executions."""

SEEDS = range(1, 7)
MESSAGE_SEEDS = range(1, 41)


def capacity_of(run: Run, seed: int) -> int:
    return 1 if run is MESSAGES else 1 + seed % 2


def trace(run: Run, seed: int) -> list[Request]:
    """Return the requests of a random run of the model."""
    command = [find("spin"), "-T", "-B", f"-n{seed}", f"-u{STEPS}"]
    command += definitions(run.model, f"{run.options} CAPACITY={capacity_of(run, seed)}")
    with tempfile.TemporaryDirectory() as folder:  # SPIN writes files where it runs
        copy_models(Path(folder))
        done = subprocess.run(
            [*command, run.model], cwd=folder, capture_output=True, text=True, check=False
        )
    assert "Error" not in done.stdout, done.stdout[-500:]
    assert "depth-limit" in done.stdout or "timeout" in done.stdout, done.stdout[-500:]
    return list(parsed(line[1:].split() for line in done.stdout.splitlines() if line[:1] == "@"))


def parsed(lines: Iterator[list[str]]) -> Iterator[Request]:
    kept: list[int] = []
    is_alive = False
    for kind, *args in lines:
        if kind == "keep":
            kept.append(int(args[0]))
        elif kind == "alive":
            is_alive = True
        else:
            token, caller = map(int, args)
            if after := state(lines):
                yield Request(kind, token, caller, after, kept, is_alive)
            kept, is_alive = [], False


def state(lines: Iterator[list[str]]) -> State | None:
    """Read a state. Return None if the run ended before all of it was printed."""
    found: State = {word: [] for word in WORDS}
    for word, *args in lines:
        if word == "done":
            found["grant"].sort()
            return found
        found[word].append(tuple(map(int, args)))
    return None


class Server:
    """The scripts on a real server, with the clock of the stage."""

    def __init__(
        self, client: redis.Redis, scripts: Mapping[str, Script], run: Run, capacity: int
    ) -> None:
        self.client = client
        self.run = run
        self.capacity = capacity
        self.scripts = scripts
        self.holders: dict[int, tuple[int, int]] = {}
        self.last_fence = 0
        self.arrivals: dict[int, str] = {}
        self.claims: dict[int, str] = {}
        client.flushdb()
        client.set(CLOCK, BEGINNING)

    def perform(self, request: Request) -> State:
        """Send a request, and return what the server then has."""
        taken: list[tuple[int, ...]] = []
        reply = False
        if request.kind == "take":
            taken = self._take(request)
            reply = bool(taken)
        elif request.kind == "tick":
            self._tick(request)
        else:
            reply = getattr(self, f"_{request.kind}")(request.token, request.caller)
        return {"reply": [(int(reply),)], "taken": taken, **self._state()}

    # Requests

    def _ask(self, token: int, caller: int) -> bool:
        return self._acquire(token, f"{ms(self.run.alive)} inbox{token} {token} 1 ")

    def _last_ask(self, token: int, caller: int) -> bool:
        return self._acquire(token, "0 none 0 0 ")

    def _run(self, token: int, caller: int) -> bool:
        """A worker runs a message, and takes its queue lock over."""
        return self._acquire(token + NUMBER, f"0 none 0 0 t{token}")

    def _acquire(self, token: int, others: str) -> bool:
        weight = WEIGHTS[self.capacity][token] if token < CLIENTS else 1
        terms = f"semaphore {self.capacity} {weight} {ms(self.run.lease)} {ms(self.run.grant)} "
        args = (KEYS.name, f"t{token}", terms + others, "{}")
        return self._call(ACQUIRE, KEYS.all, args) not in (0, b"0")

    def _free(self, token: int, caller: int) -> bool:
        args = (KEYS.name, f"t{token}", 0, 0, "released")
        return self._call(RELEASE, KEYS.all, args) not in (0, b"0")

    def _renewal(self, token: int, caller: int) -> bool:
        return self._renew(token, self.run.lease)

    def _renew(self, token: int, ticks: int) -> bool:
        keys = (KEYS.index, KEYS.locks, KEYS.lock, KEYS.history)
        return bool(self._call(RENEW, keys, ("renew", f"t{token} {ms(ticks)}")) != b"0")

    def _beat(self, token: int, caller: int) -> bool:
        return self._heartbeat(token, self.run.alive)

    def _heartbeat(self, token: int, ticks: int) -> bool:
        keys = (KEYS.index, KEYS.inboxes, KEYS.locks, *KEYS.all[:3], KEYS.history)
        missing = self._call(HEARTBEAT, keys, (f"inbox{token}", 1, ms(ticks), f"t{token}"))
        return bool(missing == b"")

    def _store(self, token: int, caller: int) -> bool:
        """Store a message, or return it to its place in the queue."""
        arrival = self.arrivals.get(token, "0")
        lease, resend = ms(self.run.queue_lock), ms(self.run.resend)
        terms = f"semaphore 1 1 {lease} 0 0 {resend} 0 {arrival}"
        reply = self._call(STORE, KEYS.all, (KEYS.name, f"t{token}", terms, "{}", "the message"))
        outcome, self.arrivals[token], *claim = reply.decode().split()
        if outcome == "granted":
            [self.claims[caller]] = claim
        return bool(outcome == "granted")

    def _take(self, request: Request) -> list[tuple[int, ...]]:
        """Take one message. Of several that are due, the script takes the one that is due for the
        longest time. The model does not know that time, so the others are put aside."""
        due = f"{KEYS.inboxes}outbox:due"
        chosen = [b"t%d" % token for token in request.after["taken"]]
        entries = self.client.zrange(due, 0, -1, withscores=True)
        others = {token: at for token, at in entries if chosen and token not in chosen}
        if others:
            self.client.zrem(due, *others)
        reply = self._call(OUTBOX, Keys(PREFIX).of("").all, (1, ms(self.run.resend)))
        if others:
            self.client.zadd(due, others)
        if not reply:
            return []
        self.claims[request.caller] = reply[1].decode()
        return [(int(reply[0][1:]),)]

    def _confirm(self, token: int, caller: int) -> bool:
        keys = (KEYS.inboxes, KEYS.history)
        return bool(self._call(SENT, keys, (f"t{token}", self.claims.pop(caller))))

    def _tick(self, request: Request) -> None:
        for token in request.kept:
            self._renew(token, self.holders[token][0] + 1)
        if request.is_alive:
            self._heartbeat(0, self.run.alive + 1)
        _perform(self.client, Call(PASS_TIME, (), (TICK_MS * 1000,)))

    def _call(self, script: Script, keys: tuple[str, ...], args: tuple[str | int, ...]) -> Any:
        reply, _ = _perform(self.client, Call(self.scripts[script.name], keys, (*args, 0)))
        return reply

    # The state

    def _state(self) -> State:
        """Read what the server has, and take the grants out of the inboxes."""
        inboxes = [f"{KEYS.inboxes}inbox{client}" for client in range(CLIENTS)]
        with self.client.pipeline() as batch:
            batch.get(CLOCK)
            batch.hgetall(KEYS.lock)
            batch.zrange(KEYS.queue, 0, -1)
            batch.exists(f"{inboxes[0]}:alive")
            batch.zrange(f"{KEYS.inboxes}outbox:due", 0, -1, withscores=True)
            for inbox in inboxes:
                batch.lrange(inbox, 0, -1)
            batch.delete(*inboxes)
            clock, lock, queue, is_alive, due, *grants, _ = batch.execute()
        now = int(clock) // 1000
        self._read_holders(lock, now)
        if self.run is MESSAGES and not is_alive:
            queue = [token for token in queue if token != b"t0"]  # beside messages, it may stay
        return {
            "held": sorted((token, ticks) for token, (ticks, _) in self.holders.items()),
            "queued": [(int(token[1:]),) for token in queue],
            "grant": sorted((int(grant.split()[0]),) for inbox in grants for grant in inbox),
            "due": sorted((int(token[1:]), max(0, ticks_until(at, now)) + 1) for token, at in due),
        }

    def _read_holders(self, lock: dict[bytes, bytes], now: int) -> None:
        """Read the remaining ticks and the fencing token of each holder."""
        old = {fence for _, fence in self.holders.values()}
        self.holders = {}
        for name, record in lock.items():
            if name.startswith(b"h:"):
                _, expires, fence, *_ = record.split(b" ")
                if (ticks := ticks_until(int(expires), now)) > 0:
                    self.holders[int(name[3:])] = ticks, int(fence)
        new = {fence for _, fence in self.holders.values()} - old
        if new and min(new) <= self.last_fence:
            raise Difference("the fencing token did not grow")
        self.last_fence = max([self.last_fence, *new])


def ticks_until(at: float, now: int) -> int:
    return math.ceil((at - now) / TICK_MS)


def ms(ticks: int) -> int:
    """Return a time that ends in the middle of the last tick."""
    return ticks * TICK_MS - TICK_MS // 2


def replay(client: redis.Redis, scripts: Mapping[str, Script], run: Run, seed: int) -> int:
    """Compare the scripts with a run of the model, and return the number of requests.

    Raises:
        Difference: They differ.
    """
    requests = trace(run, seed)
    server = Server(client, scripts, run, capacity_of(run, seed))
    try:
        for number, request in enumerate(requests):
            real = server.perform(request)
            if real != request.after:
                about = f"request {number}, {request.kind} {request.token}"
                raise Difference(f"{about}: the model has {request.after}, the scripts {real}")
    finally:
        client.flushdb()
    return len(requests)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_scripts_do_what_the_model_of_a_lock_does(
    run: Run, seed: int, redis_client: redis.Redis
) -> None:
    assert replay(redis_client, SCRIPTS, run, seed) > 30


def test_the_scripts_do_what_the_model_of_messages_does(redis_client: redis.Redis) -> None:
    requests = [replay(redis_client, SCRIPTS, MESSAGES, seed) for seed in MESSAGE_SEEDS]
    assert sum(requests) > 500


BROKEN = ("barging", "queue-position-lost", "dead-waiters-live", "anybody-releases")

# These three are faults of `make mutants`, too.
OF_MESSAGES = ["late-confirmation-obeyed", "place-in-the-queue-lost", "dead-holder-not-noticed"]
BROKEN_MESSAGES = {
    fault.name: Mutant(fault.file, fault.good, fault.bad) for fault in faults(OF_MESSAGES)
} | {
    "a claim survives a return to the queue": Mutant(
        file="lua/store.lua",
        good="use('ZREM', outbox_key(lock.inboxes, 'due'), token)",
        bad="",
    ),
    "a message leaves the outbox when it is taken": Mutant(
        file="lua/outbox.lua",
        good="redis.call('HSET', arrivals, token, arrived .. ' again')",
        bad="redis.call('ZREM', due, token)",
    ),
    "an execution does not take its queue lock over": Mutant(
        file="lua/acquire.lua",
        good="if its_weight == request.weight and its_lease > 0 then",
        bad="if false then",
    ),
}


@pytest.mark.parametrize("name", [*BROKEN, *BROKEN_MESSAGES])
def test_a_broken_copy_of_a_script_is_found(name: str, redis_client: redis.Redis) -> None:
    runs, seeds = RUNS.values(), SEEDS
    if name in BROKEN_MESSAGES:
        runs, seeds = [MESSAGES], MESSAGE_SEEDS
    scripts = (MUTANTS | BROKEN_MESSAGES)[name].scripts()
    for seed, run in product(seeds, runs):
        try:
            replay(redis_client, scripts, run, seed)
        except (Difference, redis.ResponseError):
            return
    pytest.fail("no run shows the fault")
