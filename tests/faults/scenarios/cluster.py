"""A Cluster, whose slots move, and whose primaries are replaced by their replicas."""

from collections import defaultdict
from threading import Lock

from redis.crc import key_slot

from tests.servers import Cluster, Node

from .. import outcome
from ..crew import KEYS, Client, Crew
from ..scenario import Run, Setting, scenario
from ..users import Users, kept

MOVES = 2
"""Times that a slot moves in a run."""

LONGEST_MOVE = 0.4
"""Seconds."""

BEHIND = 0.6
"""Seconds for which a replica stands still before its primary is struck: less than a Cluster
needs to take it for dead."""

ERRORS = ("ConnectionError", "TimeoutError", "ClusterDownError")


def client_of(cluster: Cluster, run: Run, crew: Crew, who: str) -> Client:
    client = run.client_of(crew, who, {})
    client.ask("tests.faults.reach:by_cluster", nodes=cluster.startup)
    return client


def slot_of(run: Run) -> int:
    slot: int = key_slot(KEYS.of(run.lock).index.encode())
    return slot


def another(cluster: Cluster, run: Run, owner: Node) -> Node:
    primaries = {cluster.owner(slot) for slot in (0, 8191, 16383)}
    return run.random.choice(sorted(primaries - {owner}, key=lambda node: node.port))


# Slots that move


def migrations(setting: Setting, *, atomic: bool) -> None:
    crew, cluster = setting.crew(), setting.use(Cluster())
    moving: defaultdict[int, Lock] = defaultdict(Lock)

    def move(run: Run) -> None:
        slot = slot_of(run)
        to = another(cluster, run, cluster.owner(slot))
        if atomic:
            cluster.move_slot_atomically(slot, to)
        else:
            with cluster.moving(slot, to):
                run.moment(LONGEST_MOVE)
        run.fault("slot moved")

    def body(run: Run) -> None:
        with moving[slot_of(run)]:
            users = Users(run, lambda who: client_of(cluster, run, crew, who))
            looking = client_of(cluster, run, crew, "looking")
            looking.start("tests.faults.work:look", lock=kept(run))
            for _ in range(MOVES):
                run.moment(0.5)
                move(run)
            looking.start("sleep", seconds=0)
            assert looking.answer() > 0
            assert users.go_on() == "released"

    setting.each(body, lanes=3)
    _end(setting, cluster)


def _end(setting: Setting, cluster: Cluster) -> None:
    cluster.wait_in_sync()
    for primary in {cluster.owner(slot) for slot in (0, 8191, 16383)}:
        setting.look_over(primary)


@scenario(
    18,
    "Slots of a Cluster move (SETSLOT, MIGRATE)",
    runs=10,
    short=2,
    faults=MOVES,
    operations=10,
)
def moved(setting: Setting) -> None:
    migrations(setting, atomic=False)
    outcome.tell(setting)


@scenario(
    18,
    "Slots of a Cluster move (at once, Valkey 9)",
    runs=10,
    short=2,
    faults=MOVES,
    operations=10,
)
def moved_atomically(setting: Setting) -> None:
    migrations(setting, atomic=True)
    outcome.tell(setting)
