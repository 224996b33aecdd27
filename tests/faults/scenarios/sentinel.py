"""A master that is replaced by a replica, as Sentinels do it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import redis

from django_redislock.clock import now
from tests.servers import Node, Sentinels
from tests.servers.processes import wait_for

from .. import outcome
from ..crew import CORE, Client, Crew
from ..proxy import Proxy
from ..scenario import EXCLUSION, ORDER, WAKING, Run, Setting, scenario
from ..users import Users, kept, replacing

LANES = 4
DOWN_AFTER = 400  # milliseconds

KINDS = "killed", "stopped", "ordered"
LAGS = 0.0, 0.2, 0.2, math.inf, math.inf
"""Seconds that replicas are behind when something strikes, in some order, with `min_replicas` as
without: then nobody gets a lock while that is for ever."""

BEHIND = 0.4, 0.8  # seconds for which they are behind before that

BACKENDS = CORE, "django_redis.cache.RedisCache"
ERRORS = ("ConnectionError", "TimeoutError", "MasterNotFoundError")

FACTS = {
    "runs": 10,
    "short": 1,
    "faults": len(LAGS),
    "operations": 10,
    "may_fail": (EXCLUSION, ORDER, WAKING),
    "errors": ERRORS,
}

DECIDED = 2.0  # seconds that may pass from when a replica takes over until the Sentinels tell


class Watched(Sentinels):
    """A master and two replicas, each behind a proxy. The Sentinels also replace a master that
    stands still for a moment though nobody struck it. So each time is noted as one in which these
    locks may be lost."""

    locks: tuple[str, ...] = ()

    def __init__(self, setting: Setting, **config: Any) -> None:
        super().__init__(replicas=2, through=self._through_proxy, down_after=DOWN_AFTER, **config)
        self._setting = setting
        self.proxies: dict[Node, Proxy] = {}
        setting.use(self)
        setting.use(self._noting())

    def owners(self) -> list[Node]:
        return [self.master]

    def _through_proxy(self, node: Node) -> tuple[str, int]:
        self.proxies[node] = self._setting.proxy(node)
        return self.proxies[node].address

    @contextmanager
    def _noting(self) -> Iterator[None]:
        with (
            self.sentinels[0].client() as client,
            client.pubsub(ignore_subscribe_messages=True) as told,
        ):
            told.subscribe(**{"+switch-master": self._note})
            thread = told.run_in_thread(sleep_time=0.1, daemon=True)
            try:
                yield
            finally:
                thread.stop()
                thread.join()

    def _note(self, message: object) -> None:
        for lock in self.locks:
            self._setting.log.write("taken", lock=lock, since=now() - DECIDED)

    def client(self, run: Run, crew: Crew, who: str) -> Client:
        client = run.client_of(crew, who, {})
        client.ask(
            "tests.faults.reach:by_sentinel",
            name=self.name,
            sentinels=self.addresses,
            through=run.random.choice(BACKENDS),
        )
        return client

    def order(self) -> bool:
        try:
            self.sentinels[0].ask("SENTINEL", "FAILOVER", self.name)
        except redis.ResponseError as error:
            return "INPROG" in str(error)  # else it takes all replicas for dead as yet
        return True


@scenario(8, "Sentinel failover, min_replicas=1", args={"min_replicas": 1}, **FACTS)
@scenario(8, "Sentinel failover", **FACTS)
def failover(setting: Setting, min_replicas: int = 0) -> None:
    crew = setting.crew()

    def body(run: Run, there: Watched) -> None:
        there.locks = run.lock, kept(run)
        users = Users(run, lambda who: there.client(run, crew, who), min_replicas)
        for lag in run.random.sample(LAGS, len(LAGS)):
            users.live_through(partial(strike, run, there, lag))

    outcome.each(setting, LANES, partial(Watched, setting), body, min_replicas)


def strike(run: Run, there: Watched, lag: float) -> None:
    """Have a replica replace the master, and wait until that is so for everybody."""
    there.wait_in_sync()
    old = there.master
    there.proxies[old].lag(lag)
    try:
        with outcome.behind(run, lag):
            run.moment(BEHIND[1], shortest=BEHIND[0])
        kind = run.random.choice(KINDS)
        with replacing(run, kind, lag=str(lag)):
            ordered = partial(wait_for, there.order)
            {"killed": old.kill, "stopped": old.pause, "ordered": ordered}[kind]()
            there.wait_for_new_master(old)
            come_back(run, old)
            there.wait_in_sync()
    finally:
        there.proxies[old].lag(0)


def come_back(run: Run, old: Node) -> None:
    """Start or resume a master that was replaced, a moment later."""
    run.moment(0.5)
    if not old.is_running:
        old.start()
    old.resume()
