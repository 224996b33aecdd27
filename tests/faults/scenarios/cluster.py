"""A Cluster, whose slots move, and whose primaries are replaced by their replicas."""

import math
from collections import defaultdict
from functools import partial
from threading import Lock

from redis.crc import key_slot

from tests.servers import Cluster, Node
from tests.servers.processes import wait_for

from .. import failovers
from ..crew import KEYS, Client, Crew
from ..failovers import Users, kept, replacing
from ..scenario import EXCLUSION, ORDER, WAKING, Run, Setting, scenario
from .sentinel import come_back

MOVES = 2  # times that a slot moves in a run

LONGEST_MOVE = 0.4  # seconds

LANES = 2
FAILOVERS = 4  # in a run, one after the other

BEHIND = 0.3, 0.6
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
    client.ask("tests.faults.reach:by_cluster", nodes=cluster.startup)
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
    "A replica of a Cluster takes over when asked",
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
    "A Cluster's primary dies or stands still, min_replicas=1",
    may_fail=(ORDER, WAKING),
    args={"min_replicas": 1},
    **REPLACED,
)
@scenario(
    19,
    "A Cluster's primary dies or stands still",
    may_fail=(EXCLUSION, ORDER, WAKING),
    **REPLACED,
)
def replaced(setting: Setting, min_replicas: int = 0) -> None:
    crew = setting.crew()

    def body(run: Run, cluster: Cluster) -> None:
        users = Users(run, lambda who: client_of(cluster, run, crew, who), min_replicas)
        for is_behind in run.random.sample((False, True) * (FAILOVERS // 2), FAILOVERS):
            users.live_through(partial(strike, run, cluster, is_behind, not min_replicas))

    failovers.each(setting, LANES, lambda: setting.use(Cluster()), body, min_replicas)


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
            run.moment(BEHIND[1], shortest=BEHIND[0])
    with replacing(run, kind, may_lose=may_lose, behind=is_behind):
        old.kill() if kind == "killed" else old.pause()
        replica.resume()
        cluster.wait_for_new_owner(slot, old)
        come_back(run, old)
        _wait_until_follows(cluster, old, replica)


def _wait_until_follows(cluster: Cluster, old: Node, new: Node) -> None:
    wait_for(lambda: cluster.replicas_of(new) == [old])
    wait_for(lambda: old.info("replication")["master_link_status"] == "up")
