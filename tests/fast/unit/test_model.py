"""Workers that use one lock in random orders, which Hypothesis chooses.

Connections break, workers die, replies are late, leases expire, operators force-release locks, a
worker asks for another kind, the server restarts without data. After each operation the replies
and the state of Redis agree with the `Model` (`Stage` compares them), each worker that counts on
the lock holds it, and their total weight is at most the capacity. The stage has its own clock, so
each failure is reproducible.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, product
from types import ModuleType
from typing import Any, ClassVar, Literal

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from django_redislock.engine import protocol
from django_redislock.engine.store import RenewMode
from django_redislock.engine.waiters import Inbox
from django_redislock.lua import Script

from .stage import KEYS, SCRIPTS, Stage, Worker

LEASE = 3.0

SECONDS = 0.5, 1.0, 1.9, LEASE

Far = Literal["answered", "done", "sent"]
FARS: tuple[Far, ...] = "answered", "done", "sent"
"""How far an operation gets: "done" means executed, with the reply under way."""

OFTEN = {
    "acquire": 4,
    "go on": 4,
    "release": 3,
    "renew": 1,
    "take over": 1,
    "mishap": 3,
    "time": 3,
    "event": 1,
}
"""The relative frequency of each sort of move."""


class Move:
    def __init__(self, text: str, make: Callable[[], object]) -> None:
        self.text = text
        self.make = make

    def __repr__(self) -> str:
        return self.text


class Turns(RuleBasedStateMachine):
    """Workers a to d use the same kind of lock. Worker e uses another kind with the same name.
    Except for b their leases are renewed, so that a grant counts before it is confirmed. Workers a
    and c are threads of one process."""

    kind = "mutex"
    capacity = 1
    weights: ClassVar[Mapping[str, int]] = {}
    """The workers with a weight of more than 1."""

    rides_outages = False
    """Whether a waiter asks again after a broken connection, and does not give up."""

    client: redis.Redis
    scripts: Mapping[str, Script] = SCRIPTS
    flows: ModuleType = protocol

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(
            self.client, self.kind, self.capacity, scripts=self.scripts, flows=self.flows
        )
        self.stage.__enter__()
        self.fine = True
        self.shared = Inbox(KEYS.inboxes)
        self.workers = {name: self.come(name) for name in "abcde"}

    def come(self, name: str) -> Worker:
        number = sum(worker.request.token.startswith(name) for worker in self.stage.workers)
        token = f"{name}{number or ''}"
        if name == "e":
            return self.stage.worker(token, kind="another", lease=LEASE, renewed=False)
        weight = self.weights.get(name, 1)
        inbox = self.shared if name in "ac" else None
        worker = self.stage.worker(
            token, weight=weight, lease=LEASE, renewed=name != "b", inbox=inbox
        )
        worker.request.rides_outages = self.rides_outages
        return worker

    def die(self, name: str) -> None:
        dead = "ac" if name in "ac" else name
        if name in "ac":
            self.shared = Inbox(KEYS.inboxes)
        for each in dead:
            self.workers[each].die()
            self.workers[each] = self.come(each)  # its successor is another process

    def everybody_dies(self) -> None:
        for name in self.workers:
            self.die(name)

    def restart_empty(self) -> None:
        self.stage.restart_empty()
        self.everybody_dies()

    def wait(self, seconds: float) -> None:
        """Let time pass, in which the waiters send heartbeats."""
        while seconds > 0:
            self.stage.pass_time(min(seconds, 1))
            seconds -= 1
            for worker in self.workers.values():
                worker.send_heartbeat()

    # The possible moves

    def moves(self) -> dict[str, Callable[[], Iterator[Move]]]:
        """Return all possible moves by their sort."""
        idle, busy, holding = [], [], []
        for worker in self.workers.values():
            (busy if worker.op else holding if worker.granted else idle).append(worker)
        each = {
            "acquire": (acquiring, idle),
            "go on": (going_on, busy),
            "release": (releasing, holding),
            "renew": (renewing, holding),
            "take over": (partial(taking_over, idle), holding if idle else []),
            "mishap": (self.mishaps, busy + holding),
        }
        sorts = {
            sort: partial(every, make, workers)
            for sort, (make, workers) in each.items()
            if workers
        }
        return sorts | {"time": self.passing, "event": self.events}

    def mishaps(self, worker: Worker) -> Iterator[Move]:
        if worker.op:
            yield Move(f"{worker} continues: request lost", worker.lose_request)
            yield Move(f"{worker} continues: reply lost", worker.lose_reply)
        if worker.may_be_cancelled:
            yield Move(f"{worker} is cancelled", worker.cancel)
        yield Move(f"{worker} is killed", partial(self.die, worker.request.token[0]))
        forced = partial(self.stage.force_release, worker.request.token)
        yield Move(f"{worker} is forced out", forced)

    def passing(self) -> Iterator[Move]:
        for seconds in SECONDS:
            yield Move(f"{seconds} s pass", partial(self.stage.pass_time, seconds))
            yield Move(f"{seconds} s pass, who waits asks", partial(self.wait, seconds))

    def events(self) -> Iterator[Move]:
        stranger = self.stage.stranger
        yield Move("the lock is looked at", self.stage.look)
        yield Move("a stranger releases", lambda: stranger.release().step())
        yield Move("a stranger renews", stranger.renew)
        yield Move("all are forced out", self.stage.force_release)
        yield Move("Redis restarts empty", self.restart_empty)

    def next_move(self) -> st.SearchStrategy[Move]:
        moves = self.moves()
        sorts = [sort for sort in moves for _ in range(OFTEN[sort])]
        return st.sampled_from(sorts).flatmap(lambda sort: st.sampled_from(list(moves[sort]())))

    @rule(move=st.runner().flatmap(lambda turns: turns.next_move()))
    def then(self, move: Move) -> None:
        self.make(move)

    def make(self, move: Move) -> None:
        self.fine = False  # `teardown` checks nothing after a failed move
        move.make()
        self.check_beliefs()
        self.fine = True

    def check_beliefs(self) -> None:
        model = self.stage.model
        assert model.used <= self.capacity
        for worker in self.workers.values():
            holder = model.holders.get(worker.request.token)
            assert holder or not worker.believes, f"{worker} is deceived"
            if not worker.op and not worker.granted:
                assert not holder or holder.cooling, f"{worker} gave up and holds"
                assert worker.request.token not in model.waiters, f"{worker} gave up and waits"

    def teardown(self) -> None:
        try:
            if self.fine:
                self.everybody_goes()
        finally:
            self.stage.__exit__()
            self.client.flushdb()

    def everybody_goes(self) -> None:
        self.everybody_dies()
        self.stage.pass_time(1000 * LEASE)
        newcomer = self.stage.worker("newcomer", weight=self.capacity)
        assert newcomer.acquire(wait=0).finish(), "the lock is stuck"
        assert newcomer.release().finish()
        assert self.stage.left() == []


class SemaphoreTurns(Turns):
    kind = "semaphore"
    capacity = 3
    weights: ClassVar[Mapping[str, int]] = {"c": 2, "d": 3}


class ReadWriteTurns(Turns):
    """Three readers and a writer."""

    kind = "readwrite"
    capacity = 1_000_000
    weights: ClassVar[Mapping[str, int]] = {"d": capacity}


def go(begin: Callable[[], Worker], far: Far) -> None:
    worker = begin()
    if far == "answered":
        worker.step()
    elif far == "done":
        worker.arrive()


def acquiring(worker: Worker) -> Iterator[Move]:
    fars: tuple[Far, ...] = "answered", "answered", "done", "sent"
    if worker.request.kind != worker.stage.kind:
        fars = ("answered",)  # it is mostly refused, so it needs fewer variants
    for wait, far in product((None, None, 0, 1.0), fars):
        how = "and waits" if wait is None else f"and waits {wait} s at most"
        yield Move(f"{worker} asks {how}: {far}", partial(go, partial(worker.acquire, wait), far))


def taking_over(heirs: list[Worker], holder: Worker) -> Iterator[Move]:
    for heir, wait, far in product(heirs, (None, 0), FARS):
        begin = partial(heir.acquire, wait, predecessor=holder)
        yield Move(f"{heir} takes over from {holder}: {far}", partial(go, begin, far))


def releasing(worker: Worker) -> Iterator[Move]:
    for at_least, far in product((0, 3.0), FARS):
        how = f" to be kept for {at_least} s" if at_least else ""
        text = f"{worker} releases{how}: {far}"
        yield Move(text, partial(go, partial(worker.release, at_least), far))


def renewing(worker: Worker) -> Iterator[Move]:
    modes: tuple[RenewMode, ...] = "renew", "set"
    for seconds, mode in product((LEASE, 1.0), modes):
        yield Move(f"{worker} renews: {mode} {seconds} s", partial(worker.renew, seconds, mode))
    yield Move(f"{worker} renews: reply lost", partial(worker.renew, answered=False))


def going_on(worker: Worker) -> Iterator[Move]:
    yield Move(f"{worker} continues: answered", worker.step)
    yield Move(f"{worker} continues: done", worker.arrive)


def every(make: Callable[[Worker], Iterator[Move]], workers: list[Worker]) -> Iterator[Move]:
    return chain.from_iterable(map(make, workers))


MACHINES = {machine.kind: machine for machine in (Turns, SemaphoreTurns, ReadWriteTurns)}


def with_parts(kind: str, client: redis.Redis, **parts: Any) -> type[Turns]:
    """Return the state machine of a kind, with other scripts or flows."""
    return type("Turns", (MACHINES[kind],), {"client": client, **parts})


@pytest.mark.timeout(600)  # with the profile "long"
@pytest.mark.parametrize("rides", [False, True], ids=["gives up", "rides"])
@pytest.mark.parametrize("kind", MACHINES)
def test_redis_does_what_the_model_says(kind: str, rides: bool, redis_client: redis.Redis) -> None:
    machine = with_parts(kind, redis_client, rides_outages=rides)
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=40))
