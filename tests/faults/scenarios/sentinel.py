"""A master that is replaced by a replica, as Sentinels do it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.servers import Node, Sentinels
from tests.servers.waiting import wait_for

from .. import outcome
from ..crew import CORE, Client, Crew
from ..proxy import Proxy
from ..scenario import EXCLUSION, ORDER, WAKING, Run, Setting, scenario
from ..users import Users, taken

LANES = 4
DOWN_AFTER = 300
"""Milliseconds."""

LAG = 0.15
"""Seconds that replicas are behind where a lock has to be on one of them."""

BACKENDS = CORE, "django_redis.cache.RedisCache"
ERRORS = ("ConnectionError", "TimeoutError", "MasterNotFoundError")


class Watched:
    """A master and two replicas that Sentinels watch, each behind a proxy."""

    def __init__(self, setting: Setting, **config: Any) -> None:
        self._setting = setting
        self.proxies: dict[Node, Proxy] = {}
        self.sentinels: Sentinels = setting.use(
            Sentinels(replicas=2, through=self._through, down_after=DOWN_AFTER, **config)
        )

    def _through(self, node: Node) -> tuple[str, int]:
        self.proxies[node] = self._setting.proxy(node)
        return self.proxies[node].address

    def client(self, run: Run, crew: Crew, who: str) -> Client:
        client = run.client_of(crew, who, {})
        client.ask(
            "tests.faults.reach:by_sentinel",
            name=self.sentinels.name,
            sentinels=self.sentinels.addresses,
            through=run.random.choice(BACKENDS),
        )
        return client

    @contextmanager
    def lagging(self, master: Node, seconds: float) -> Iterator[None]:
        self.proxies[master].lag(seconds)
        try:
            yield
        finally:
            self.proxies[master].lag(0)


def failover(setting: Setting, min_replicas: int) -> None:
    crew = setting.crew()
    deployments = setting.shared(Watched(setting) for _ in range(LANES))

    def body(run: Run) -> None:
        with deployments.one() as there:
            there.sentinels.wait_in_sync()
            old = there.sentinels.master
            lag = run.random.choice((0, LAG if min_replicas else math.inf))
            with there.lagging(old, lag):
                users = Users(run, lambda who: there.client(run, crew, who), min_replicas)
                run.moment(0.5)
                strike(run, there.sentinels, old, lag)
            users.go_on()

    setting.each(body, lanes=LANES)
    for there in deployments.every:
        there.sentinels.wait_in_sync()
        setting.look_over(there.sentinels.master)
    outcome.tell(setting)


def strike(run: Run, sentinels: Sentinels, old: Node, lag: float) -> None:
    """Have a replica replace the master, and wait until that is so for everybody."""
    kind = run.random.choice(("killed", "stopped", "ordered"))
    run.fault(kind, lag=str(lag))
    run.free()
    taken(run)
    if kind == "ordered":
        sentinels.failover()
    else:
        old.kill() if kind == "killed" else old.pause()
        sentinels.wait_for_new_master(old)
        run.moment(1)
        old.start() if kind == "killed" else old.resume()
        wait_for(lambda: old.ask("ROLE")[0] == "slave")
    taken(run)


@scenario(
    8,
    "Sentinel failover",
    runs=50,
    short=4,
    operations=10,
    may_fail=(EXCLUSION, ORDER, WAKING),
    errors=ERRORS,
)
def plain(setting: Setting) -> None:
    failover(setting, 0)


@scenario(
    8,
    "Sentinel failover, min_replicas=1",
    runs=50,
    short=4,
    operations=10,
    may_fail=(EXCLUSION, ORDER, WAKING),
    errors=ERRORS,
)
def on_one_replica(setting: Setting) -> None:
    failover(setting, 1)
