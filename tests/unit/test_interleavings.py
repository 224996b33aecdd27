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
    precondition,
    rule,
)

from django_redislock.engine import flows
from tests.unit.stage import LEASE, Stage, Worker

WORKERS = 4


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

    def idle(self) -> list[int]:
        return [i for i, worker in enumerate(self.places) if not worker.op and not worker.granted]

    def busy(self) -> list[int]:
        return [i for i, worker in enumerate(self.places) if worker.op]

    def holding(self) -> list[int]:
        return [i for i, worker in enumerate(self.places) if worker.granted and not worker.op]

    def one_of(self, data: st.DataObject, places: list[int]) -> Worker:
        return self.places[data.draw(st.sampled_from(places))]

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), wait=st.sampled_from([None, None, 0, 1.0, 5.0]))
    def acquire(self, data: st.DataObject, wait: float | None) -> None:
        self.one_of(data, self.idle()).acquire(wait)

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.one_of(data, self.busy()).step()

    @precondition(lambda self: self.holding())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.one_of(data, self.holding()).release().step()

    @precondition(lambda self: self.holding())
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        worker = self.one_of(data, self.holding())
        if worker.believes:
            worker.renew()

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), reply=st.booleans())
    def lose_a_connection(self, data: st.DataObject, reply: bool) -> None:
        worker = self.one_of(data, self.waiting())
        if reply:
            worker.lose_reply()
        else:
            worker.lose_request()
        if worker.op and "release" in repr(worker.op):
            worker.step()

    def waiting(self) -> list[int]:
        return [i for i in self.busy() if "release" not in repr(self.places[i].op)]

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, WORKERS - 1))
        self.places[place].die()
        self.places[place] = self.stage.worker()  # another process comes in its stead

    @rule()
    def force_release(self) -> None:
        gone = self.stage.run(flows.force_release(self.stage.keys, None))
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
TestTurns.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
