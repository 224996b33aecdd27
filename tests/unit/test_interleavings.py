"""Workers that take turns in any order that Hypothesis thinks of, with faults in between.

After every step: those who believe to hold the lock weigh no more than its capacity, fencing
tokens grow, and no live waiter was passed over (`Stage` watches the latter two).
"""

import os

import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from django_redislock.engine import flows
from tests.unit.stage import LEASE, Stage, Worker

WORKERS = 4
PLACE = st.integers(0, WORKERS - 1)
"""Whose turn it is. A rule that does not fit that worker does nothing: what is drawn must
not hang on the state, which hangs on the real clock too."""


class Turns(RuleBasedStateMachine):
    kind = "mutex"
    weights: tuple[int, ...] = (1,)
    capacity = 1

    def __init__(self) -> None:
        super().__init__()
        self.client = redis.Redis.from_url(os.environ["REDIS_URL"])
        self.client.flushdb()
        self.stage = Stage(self.client, self.kind, self.capacity)
        self.stage.__enter__()
        self.places: list[Worker] = []

    @initialize(
        renewed=st.lists(st.booleans(), min_size=WORKERS, max_size=WORKERS),
        sizes=st.lists(st.integers(0, 5), min_size=WORKERS, max_size=WORKERS),
    )
    def workers_come(self, renewed: list[bool], sizes: list[int]) -> None:
        for each, size in zip(renewed, sizes, strict=True):
            weight = self.weights[size % len(self.weights)]
            self.places.append(self.stage.worker(renewed=each, weight=weight))

    @rule(place=PLACE, wait=st.sampled_from([None, None, 0, 1.0, 5.0]))
    def acquire_or_go_on(self, place: int, wait: float | None) -> None:
        worker = self.places[place]
        if worker.op:
            worker.step()
        elif not worker.granted:
            worker.acquire(wait)

    @rule(place=PLACE)
    def acquire_without_waiting(self, place: int) -> None:
        worker = self.places[place]
        if not worker.op and not worker.granted:
            worker.acquire(wait=0).finish()

    @rule(place=PLACE)
    def go_on(self, place: int) -> None:
        if self.places[place].op:
            self.places[place].step()

    @rule(place=PLACE)
    def release_at_once(self, place: int) -> None:
        worker = self.places[place]
        if worker.granted and not worker.op:
            worker.release().step()

    @rule(place=PLACE)
    def renew(self, place: int) -> None:
        worker = self.places[place]
        if worker.believes and not worker.op:
            worker.renew()

    @rule(place=PLACE, reply=st.booleans())
    def lose_a_connection(self, place: int, reply: bool) -> None:
        worker = self.places[place]
        if worker.op is None:
            return
        if reply:
            worker.lose_reply()
        else:
            worker.lose_request()
        if worker.gives_up:
            worker.step()

    @rule(place=PLACE)
    def die(self, place: int) -> None:
        dead = self.places[place]
        dead.die()
        # Another process comes in its stead.
        self.places[place] = self.stage.worker(weight=dead.want.weight)

    @rule()
    def force_release(self) -> None:
        gone = self.stage.force_release()
        for worker in self.places:
            if worker.want.token in gone:
                worker.granted = None

    # Odd, so that sums of them keep off the deadlines: the real clock runs a little too.
    @rule(seconds=st.sampled_from([0.37, 1.13, 2.21, 10.7, 31.3]))
    def time_passes(self, seconds: float) -> None:
        self.stage.pass_time(seconds)

    @invariant()
    def who_believes_to_hold_it_fits_in(self) -> None:
        believers = [worker for worker in self.places if worker.believes]
        weight = sum(worker.want.weight for worker in believers)
        assert weight <= self.capacity, f"{believers} all believe to hold the lock"

    @invariant()
    def who_believes_does_hold_it(self) -> None:
        holders = self.stage.holders()
        for worker in self.places:
            assert not worker.believes or worker.want.token in holders, f"{worker} is deceived"

    def teardown(self) -> None:
        try:
            self._everybody_goes()
        finally:
            self.stage.__exit__()
            self.client.flushdb()
            self.client.close()

    def _everybody_goes(self) -> None:
        for worker in self.places:
            worker.die()
        self.stage.pass_time(LEASE + flows.CLAIM)
        newcomer = self.stage.worker(weight=self.capacity)
        assert newcomer.acquire(wait=0).finish(), "the lock is stuck"
        newcomer.release().finish()
        assert self.stage.left() == []


class SemaphoreTurns(Turns):
    kind = "semaphore"
    weights = (1, 2, 3)
    capacity = 3


class ReadWriteTurns(Turns):
    kind = "readwrite"
    weights = (1, 1, 1_000_000)
    capacity = 1_000_000


STEPS = settings(max_examples=80, stateful_step_count=50, deadline=None)

TestMutex = Turns.TestCase
TestMutex.settings = STEPS
TestSemaphore = SemaphoreTurns.TestCase
TestSemaphore.settings = STEPS
TestReadWrite = ReadWriteTurns.TestCase
TestReadWrite.settings = STEPS
