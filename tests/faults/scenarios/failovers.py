"""Primaries that Sentinels or a Cluster replace by a replica, and slots that move. A primary dies,
stands still, is told to step down, or is cut off from its replicas, and some clients with it.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import redis
from redis.crc import key_slot

from django_redislock.clock import now
from tests.servers import Cluster, Node, Sentinels
from tests.servers.processes import wait_for

from .. import failovers
from ..crew import CORE, KEYS, Client, Crew
from ..failovers import Users, kept, replacing
from ..proxy import Proxy
from ..scenario import EXCLUSION, ORDER, WAKING, Run, Setting, scenario

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
            "tests.faults.work:by_sentinel",
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
            users.live_through(partial(replace_master, run, there, lag))

    failovers.each(setting, LANES, partial(Watched, setting), body, min_replicas)


def replace_master(run: Run, there: Watched, lag: float) -> None:
    """Have a replica replace the master, and wait until that is so for everybody."""
    there.wait_in_sync()
    old = there.master
    there.proxies[old].lag(lag)
    try:
        with failovers.behind(run, lag):
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


WITH_THE_MASTER = "keeper", "waiting first", "first"
"""Of the users, those that are cut off together with it."""

LASTS = 1.0, 4.0  # seconds for which there are two masters

GUARDED = {"min_replicas_to_write": 1, "min_replicas_max_lag": 2}
"""The server's own guard. Replicas tell it once a second how far they are."""

REFUSED = "ResponseError"  # what it then answers: ``NOREPLICAS``


class Parted(Watched):
    """Each server is reached by one proxy from the side of most, and by another from that of the
    master, which itself is reached directly from there."""

    def __init__(self, setting: Setting, **config: Any) -> None:
        super().__init__(setting, **config)
        there = (*self.nodes, *self.sentinels)
        self._across: dict[Node, Proxy] = {node: setting.proxy(node) for node in there}

    def client_with(self, master: Node, run: Run, crew: Crew, who: str) -> Client:
        if who not in WITH_THE_MASTER:
            return self.client(run, crew, who)
        client = run.client_of(crew, who, {})
        others = [node for node in self.proxies if node is not master]
        ways = [(self.proxies[node].address, self._across[node].address) for node in others]
        client.ask(
            "tests.faults.work:by_sentinel",
            name=self.name,
            sentinels=[self._across[each].address for each in self.sentinels],
            ways=[*ways, (self.proxies[master].address, master.address)],
            through=CORE,
        )
        return client

    def part(self, master: Node) -> list[Proxy]:
        """Let nothing pass between the sides; tells what is to be thawed."""
        parted = [
            self.proxies[master],
            *(proxy for node, proxy in self._across.items() if node is not master),
        ]
        for proxy in parted:
            proxy.freeze()
        return parted


PARTED = {"runs": 12, "short": 1, "operations": 10, "may_fail": (EXCLUSION, ORDER, WAKING)}


@scenario(
    9,
    "Partition, the server's min-replicas-to-write 1",
    errors=(*ERRORS, REFUSED),
    args=GUARDED,
    **PARTED,
)
@scenario(9, "Partition, min_replicas=1", errors=ERRORS, args={"min_replicas": 1}, **PARTED)
@scenario(9, "Partition, the master on the minority side", errors=ERRORS, **PARTED)
def partition(setting: Setting, min_replicas: int = 0, **config: Any) -> None:
    crew = setting.crew()

    def body(run: Run, there: Parted) -> None:
        there.wait_in_sync()
        old = there.master
        users = Users(run, lambda who: there.client_with(old, run, crew, who), min_replicas)
        users.live_through(partial(cut_off, run, there, old))

    failovers.each(setting, LANES, partial(Parted, setting, **config), body, min_replicas)


def cut_off(run: Run, there: Parted, old: Node) -> None:
    with replacing(run, "parted"):
        parted = there.part(old)
        with failovers.behind(run, math.inf, clients=WITH_THE_MASTER):
            there.wait_for_new_master(old)
            run.moment(LASTS[1], shortest=LASTS[0])
        for proxy in parted:
            proxy.thaw()
        there.wait_in_sync()


MOVES = 2  # times that a slot moves in a run

LONGEST_MOVE = 0.4  # seconds

CLUSTERS = 2
FAILOVERS = 4  # in a run, one after the other

REPLICA_BEHIND = 0.3, 0.6
"""Seconds for which a replica stands still before its primary is struck: less than a Cluster
needs to take it for dead."""

MOVED = {"runs": 10, "short": 2, "faults": MOVES, "operations": 10}

REPLACED = {
    "runs": 4,
    "short": 1,
    "faults": FAILOVERS,
    "operations": 10,
    "errors": ("ConnectionError", "TimeoutError", "ClusterDownError"),
}


def client_of(cluster: Cluster, run: Run, crew: Crew, who: str) -> Client:
    client = run.client_of(crew, who, {})
    client.ask("tests.faults.work:by_cluster", nodes=cluster.startup)
    return client


def slot_of(run: Run) -> int:
    return int(key_slot(KEYS.of(run.lock).index.encode()))


# Slots that move


@scenario(18, "Slots of a Cluster move (at once, Valkey 9)", args={"atomic": True}, **MOVED)
@scenario(18, "Slots of a Cluster move (SETSLOT, MIGRATE)", **MOVED)
def migrations(setting: Setting, *, atomic: bool = False) -> None:
    crew, cluster = setting.crew(), setting.use(Cluster())
    moving: defaultdict[int, Lock] = defaultdict(Lock)

    def move(run: Run) -> None:
        slot = slot_of(run)
        owner = cluster.owner(slot)
        to = run.random.choice([node for node in cluster.owners() if node is not owner])
        if atomic:
            cluster.move_slot_atomically(slot, to)
        else:
            with cluster.moving(slot, to):
                run.moment(LONGEST_MOVE)
        run.fault("slot moved")

    def body(run: Run) -> None:
        with moving[slot_of(run)]:
            users = Users(run, lambda who: client_of(cluster, run, crew, who))
            users.go_on()
            looking = client_of(cluster, run, crew, "looking")
            looking.start("tests.faults.work:look", lock=kept(run))
            for _ in range(MOVES):
                run.moment(0.5)
                move(run)
            assert looking.finish() > 0
            assert users.let_go()

    setting.each(body, lanes=3)
    failovers.end(setting, cluster)
    failovers.tell(setting)


# Primaries that are replaced


@scenario(
    19,
    "Manual failover in a Cluster",
    runs=3,
    short=1,
    faults=FAILOVERS,
    operations=10,
)
def in_agreement(setting: Setting) -> None:
    crew = setting.crew()

    def body(run: Run, cluster: Cluster) -> None:
        def take_over() -> None:
            old = cluster.owner(slot_of(run))
            cluster.replicas_of(old)[0].ask("CLUSTER", "FAILOVER")
            new = cluster.wait_for_new_owner(slot_of(run), old)
            run.fault("asked")
            _wait_until_follows(cluster, old, new)

        users = Users(run, lambda who: client_of(cluster, run, crew, who))
        for _ in range(FAILOVERS):
            assert users.live_through(take_over)

    failovers.each(setting, 1, lambda: setting.use(Cluster()), body)


@scenario(
    19,
    "A Cluster's primary is killed or paused, min_replicas=1",
    may_fail=(ORDER, WAKING),
    args={"min_replicas": 1},
    **REPLACED,
)
@scenario(
    19,
    "A Cluster's primary is killed or paused",
    may_fail=(EXCLUSION, ORDER, WAKING),
    **REPLACED,
)
def replaced(setting: Setting, min_replicas: int = 0) -> None:
    crew = setting.crew()

    def body(run: Run, cluster: Cluster) -> None:
        users = Users(run, lambda who: client_of(cluster, run, crew, who), min_replicas)
        for is_behind in run.random.sample((False, True) * (FAILOVERS // 2), FAILOVERS):
            users.live_through(partial(strike, run, cluster, is_behind, not min_replicas))

    failovers.each(setting, CLUSTERS, lambda: setting.use(Cluster()), body, min_replicas)


def strike(run: Run, cluster: Cluster, is_behind: bool, may_lose: bool) -> None:
    """Have the replica take over from the primary of the run's slot."""
    slot = slot_of(run)
    old = cluster.owner(slot)
    [replica] = cluster.replicas_of(old)
    kind = run.random.choice(("killed", "stopped"))
    if is_behind:
        replica.pause()
        old.ask("CLIENT", "KILL", "TYPE", "REPLICA")
        with failovers.behind(run, math.inf):
            run.moment(REPLICA_BEHIND[1], shortest=REPLICA_BEHIND[0])
    with replacing(run, kind, may_lose=may_lose, behind=is_behind):
        old.kill() if kind == "killed" else old.pause()
        replica.resume()
        cluster.wait_for_new_owner(slot, old)
        come_back(run, old)
        _wait_until_follows(cluster, old, replica)


def _wait_until_follows(cluster: Cluster, old: Node, new: Node) -> None:
    wait_for(lambda: cluster.replicas_of(new) == [old])
    wait_for(lambda: old.info("replication")["master_link_status"] == "up")
