"""Workers that take turns in any order that Hypothesis thinks of, with faults in between.

After every step: nobody but one believes to hold the lock, fencing tokens grow, and no
live waiter was passed over (`Stage` watches the latter two).
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
    def __init__(self) -> None:
        super().__init__()
        self.client = redis.Redis.from_url(os.environ["REDIS_URL"])
        self.client.flushdb()
        self.stage = Stage(self.client)
        self.stage.__enter__()
        self.places: list[Worker] = []

    @initialize(renewed=st.lists(st.booleans(), min_size=WORKERS, max_size=WORKERS))
    def workers_come(self, renewed: list[bool]) -> None:
        self.places = [self.stage.worker(renewed=each) for each in renewed]

    @rule(place=PLACE, wait=st.sampled_from([None, None, 0, 1.0, 5.0]))
    def acquire_or_go_on(self, place: int, wait: float | None) -> None:
        worker = self.places[place]
        if worker.op:
            worker.step()
        elif not worker.granted:
            worker.acquire(wait)

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
        self.places[place].die()
        self.places[place] = self.stage.worker()  # another process comes in its stead

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
    def at_most_one_believes_to_hold_it(self) -> None:
        believers = [worker for worker in self.places if worker.believes]
        assert len(believers) <= 1, f"{believers} all believe to hold the lock"

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
        newcomer = self.stage.worker()
        assert newcomer.acquire(wait=0).finish(), "the lock is stuck"
        newcomer.release().finish()
        assert self.stage.left() == []


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
