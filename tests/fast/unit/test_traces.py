"""Random runs of the model in `spec/lock.pml`, step by step against the real scripts.

SPIN prints each request that a run makes, and what the model's server has after it: the reply, the
holders with the remaining ticks of their leases, the queue, and the grants. Here the same requests
go to the scripts, with a clock that moves a tick where the model's does. A broken copy of a script
must show a difference.
"""

import math
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from django_redislock.engine.operations import Call
from django_redislock.engine.runners import _perform
from django_redislock.lua import ACQUIRE, HEARTBEAT, RELEASE, RENEW, Script
from tests.programs import find
from tools.spec import copy_models

from .stage import BEGINNING, CLOCK, KEYS, PASS_TIME, SCRIPTS
from .test_mutants import MUTANTS

CLIENTS = 3
LEASE, GRANT, ALIVE = 6, 3, 2
WEIGHTS = {1: (1, 1, 1), 2: (2, 1, 1)}
"""The weights of the clients, by the capacity."""

TICK_MS = 1_000_000
"""Much longer than all requests between two ticks, each of which takes a millisecond."""

TRACE = f"N={CLIENTS} LEASE={LEASE} GRANT={GRANT} ALIVE={ALIVE} TRACE=1"
RUNS = {"any delays": TRACE, "prompt clients": f"{TRACE} PROMPT=20 DEATHS=0"}

STEPS = 30_000
"""Single statements of the model. A run then has several hundred requests."""

SEEDS = range(1, 7)


class Difference(AssertionError):
    """The scripts do not do what the model does."""


class Request(NamedTuple):
    """A request in a run of the model, and the state after it."""

    kind: str
    """A request, or "tick"."""

    client: int = 0
    reply: bool = False
    held: tuple[tuple[int, int], ...] = ()
    """The clients that hold the lock, and the ticks that are left of their leases."""

    queue: tuple[int, ...] = ()
    granted: tuple[int, ...] = ()


def capacity_of(seed: int) -> int:
    return 1 + seed % 2


def trace(defines: str, seed: int) -> list[Request]:
    """Return the requests of a random run of the model."""
    command = [find("spin"), "-T", "-B", f"-n{seed}", f"-u{STEPS}"]
    command += [f"-DCAPACITY={capacity_of(seed)}"]
    command += [f"-D{each}" for each in defines.split()]
    with tempfile.TemporaryDirectory() as folder:  # SPIN writes files where it runs
        copy_models(Path(folder))
        done = subprocess.run(
            [*command, "lock.pml"], cwd=folder, capture_output=True, text=True, check=False
        )
    assert "depth-limit" in done.stdout, done.stdout[-500:]
    return list(parsed(line[1:].split() for line in done.stdout.splitlines() if line[:1] == "@"))


def parsed(lines: Iterator[list[str]]) -> Iterator[Request]:
    for kind, *args in lines:
        if kind == "tick":
            yield Request("tick")
            continue
        held, queue, granted, reply = [], [], [], False
        for what, *values in lines:
            if what == "done":
                yield Request(kind, int(args[0]), reply, tuple(held), tuple(queue), tuple(granted))
                break
            numbers = [int(each) for each in values]
            if what == "held":
                held.append((numbers[0], numbers[1]))
            elif what == "queued":
                queue += numbers
            elif what == "grant":
                granted += numbers
            else:
                reply = bool(numbers[0])


class Server:
    """The scripts on a real server, with the clock of the stage."""

    def __init__(self, client: redis.Redis, scripts: Mapping[str, Script], capacity: int) -> None:
        self.client = client
        self.capacity = capacity
        self.scripts = scripts
        self.last_fence = 0
        client.flushdb()
        client.set(CLOCK, BEGINNING)

    def tick(self) -> None:
        _perform(self.client, Call(PASS_TIME, (), (TICK_MS * 1000,)))

    def run(self, request: Request) -> Request:
        """Send a request, and return it with what the server then has."""
        script, keys, args = self._arguments(request.kind, request.client)
        before = self._holders()
        reply, _ = _perform(self.client, Call(self.scripts[script.name], keys, (*args, 0)))
        holders = self._holders()
        self._check_fences(before, holders)
        queue = [int(token[1:]) for token in self.client.zrange(KEYS.queue, 0, -1)]
        held = sorted((client, ticks) for client, (ticks, _) in holders.items())
        return Request(
            request.kind,
            request.client,
            reply == b"" if script is HEARTBEAT else reply not in (0, b"0"),
            tuple(held),
            tuple(queue),
            tuple(self._grants()),
        )

    def _arguments(
        self, kind: str, client: int
    ) -> tuple[Script, tuple[str, ...], tuple[str | int, ...]]:
        token, lease = f"t{client}", ms(LEASE)
        if kind in ("ask", "last_ask"):
            address = f"{ms(ALIVE)} inbox{client} {client} 1" if kind == "ask" else "0 none 0 0"
            weight = WEIGHTS[self.capacity][client]
            terms = f"semaphore {self.capacity} {weight} {lease} {ms(GRANT)} {address} "
            return ACQUIRE, KEYS.all, (KEYS.name, token, terms, "{}")
        if kind == "free":
            return RELEASE, KEYS.all, (KEYS.name, token, 0, 0, "released")
        if kind == "renewal":
            keys = (KEYS.index, KEYS.locks, KEYS.lock, KEYS.history)
            return RENEW, keys, ("renew", f"{token} {lease}")
        keys = (KEYS.index, KEYS.inboxes, KEYS.locks, *KEYS.all[:3], KEYS.history)
        return HEARTBEAT, keys, (f"inbox{client}", 1, ms(ALIVE), token)

    def _holders(self) -> dict[int, tuple[int, int]]:
        """Return the remaining ticks and the fencing token of each holder."""
        now = int(self.client.get(CLOCK) or 0) // 1000
        found = {}
        for field, record in self.client.hgetall(KEYS.lock).items():
            if field.startswith(b"h:"):
                _, expires, fence, *_ = record.split(b" ")
                ticks = math.ceil((int(expires) - now) / TICK_MS)
                if ticks > 0:
                    found[int(field[3:])] = ticks, int(fence)
        return found

    def _check_fences(
        self, before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]
    ) -> None:
        old = {fence for _, fence in before.values()}
        new = {fence for _, fence in after.values()} - old
        if new and min(new) <= self.last_fence:
            raise Difference("the fencing token did not grow")
        self.last_fence = max([self.last_fence, *new])

    def _grants(self) -> Iterator[int]:
        """Take the grants out of the inboxes."""
        for client in range(CLIENTS):
            inbox = f"{KEYS.inboxes}inbox{client}"
            for grant in self.client.lrange(inbox, 0, -1):
                yield int(grant.split()[0])
            self.client.delete(inbox)


def ms(ticks: int) -> int:
    """Return a time that ends in the middle of the last tick."""
    return ticks * TICK_MS - TICK_MS // 2


def replay(
    client: redis.Redis, scripts: Mapping[str, Script], requests: list[Request], capacity: int
) -> None:
    """Compare the scripts with a run of the model.

    Raises:
        Difference: They differ.
    """
    server = Server(client, scripts, capacity)
    try:
        for number, expected in enumerate(requests):
            if expected.kind == "tick":
                server.tick()
                continue
            wanted = expected._replace(granted=tuple(sorted(expected.granted)))
            real = server.run(expected)
            if real != wanted:
                raise Difference(f"request {number}: the model {wanted}, the scripts {real}")
    finally:
        client.flushdb()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("run", RUNS)
def test_the_scripts_do_what_the_model_does(
    run: str, seed: int, redis_client: redis.Redis
) -> None:
    requests = trace(RUNS[run], seed)
    assert len(requests) > 30
    replay(redis_client, SCRIPTS, requests, capacity_of(seed))


BROKEN = ("barging", "queue-position-lost", "dead-waiters-live", "anybody-releases")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_copy_of_a_script_is_found(name: str, redis_client: redis.Redis) -> None:
    scripts = MUTANTS[name].scripts()
    for seed in SEEDS:
        for defines in RUNS.values():
            try:
                replay(redis_client, scripts, trace(defines, seed), capacity_of(seed))
            except (Difference, redis.ResponseError):
                return
    pytest.fail("no run shows the fault")
