"""Failovers: Sentinels or a Cluster replace a primary by a replica. The primary dies, is paused,
or is ordered to step down, at a time when its replicas may be behind.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import redis
from redis.crc import key_slot

from django_redislock.clock import now
from tests.servers import Cluster, Node, Sentinels
from tests.servers.processes import wait_for
from tests.tools import wait_until

from ..checker import Findings, check
from ..crew import CORE, KEYS, Client
from ..events import read
from ..proxy import Proxy
from ..scenario import EXCLUSION, ORDER, WAKING, Run, Setting, Shared, scenario

LEASES = 1.5, 6.0

WORK = 0.0, 0.02
REST = 0.0, 0.05  # seconds between two uses of a lock

SETTLED_WITHIN_SECONDS = 40.0  # limit for every client to acquire its lock after a fault

IN_TURNS = "first", "second", "asyncio"


class Users:
    """The clients of a run. `make` forks a client by name."""

    def __init__(self, run: Run, make: Callable[[str], Client], min_replicas: int = 0) -> None:
        self._run, self._kept = run, f"{run.lock} kept"
        lease = run.random.uniform(*LEASES)
        self._options = {"timeout": lease, "min_replicas": min_replicas}
        self._keeper = make("keeper")
        self._waiters = [make("waiting first"), make("waiting second")]
        self._in_turns = [make(who) for who in IN_TURNS]
        in_turn = self._options | {"work": WORK, "rest": REST}
        for waiter in self._waiters:
            waiter.start("loop", lock=self._kept, **in_turn)
        for client in self._in_turns:
            client.start("loop", lock=run.lock, is_async="asyncio" in client.who, **in_turn)

    def live_through(self, strike: Callable[[], object]) -> None:
        """Execute `strike` while all clients use locks and the keeper holds its lock."""
        self._start_using()
        self._run.moment(0.5)
        strike()
        self._release()

    def _start_using(self) -> None:
        since = now()
        self._keeper.start("keep", lock=self._kept, **self._options)
        _wait_for(self._keeper, "held", since)
        for waiter in self._waiters:
            _wait_for(waiter, "queued", since)
        for client in self._in_turns:
            _wait_for(client, "released", since)

    def _release(self) -> None:
        """Let the keeper release its lock once it knows whether it still has it. Wait until its
        waiters have held the lock."""
        since, timeout = now(), SETTLED_WITHIN_SECONDS
        wait_until(lambda: self._keeper_knows(since), timeout=timeout, interval=0.01)
        self._keeper.finish()
        for waiter in self._waiters:
            _wait_for(waiter, "released", since)

    def _keeper_knows(self, since: float) -> bool:
        renewed = self._keeper.last("kept")
        return self._keeper.has_answered() or bool(renewed and renewed["t"] > since)


def _wait_for(client: Client, what: str, since: float) -> None:
    def has_done() -> bool:
        event = client.last(what)
        return bool(event and event["t"] > since)

    wait_until(has_done, timeout=SETTLED_WITHIN_SECONDS, interval=0.01)


T = TypeVar("T")

AT_ONCE = 0.5
"""Limit in seconds, on a busy machine, until a holder is notified that its lease has expired."""


def each(
    setting: Setting, lanes: int, make: Callable[[], T], body: Callable[[Run, T], None]
) -> None:
    """Execute `body` for each run, with a deployment that no other run uses at the same time."""
    deployments = Shared(make() for _ in range(min(lanes, setting.runs)))

    def with_one(run: Run) -> None:
        with deployments.one() as there:
            body(run, there)

    setting.each(with_one, lanes=lanes)
    for there in deployments.every:
        there.wait_in_sync()
        setting.nodes += there.owners()  # they are checked for leftovers
    late = list(too_late(check(read(setting.folder))))
    assert not late, f"{len(late)} learned too late of a loss: {'; '.join(late[:3])}"


def too_late(found: Findings) -> Iterator[str]:
    """Yield holders that believed in a lease after its end on their own clock, or that were
    notified of the loss too long after it."""
    for hold in found.holds:
        if hold.looked > hold.deadline:
            yield f"{hold.lock}: {hold} took it for held at {hold.looked:.4f}"
    for late in found.reported_after:
        if late > AT_ONCE:
            yield f"a holder was notified {late:.2f} s after the end of its lease"


# Sentinels

LANES = 4
DOWN_AFTER = 400  # milliseconds

KINDS = "killed", "stopped", "ordered"
LAGS = 0.0, 0.2, 0.2, math.inf, math.inf
"""Replication lags in seconds at the time of a fault, used in random order."""

BEHIND = 0.4, 0.8  # seconds of lag before the fault

BACKENDS = CORE, "django_redis.cache.RedisCache"
ERRORS = ("ConnectionError", "TimeoutError", "MasterNotFoundError")


class Proxied(Sentinels):
    """A master and two replicas, each behind a proxy."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(replicas=2, through=self._through_proxy, down_after=DOWN_AFTER)
        self._setting = setting
        self.proxies: dict[Node, Proxy] = {}
        setting.use(self)

    def owners(self) -> list[Node]:
        return [self.master]

    def _through_proxy(self, node: Node) -> tuple[str, int]:
        self.proxies[node] = self._setting.proxy(node)
        return self.proxies[node].address

    def client(self, run: Run, who: str) -> Client:
        client = run.client(who, {})
        how = {"sentinels": self.addresses, "through": run.random.choice(BACKENDS)}
        client.ask("tests.faults.deployments:by_sentinel", name=self.name, **how)
        return client

    def order(self, old: Node) -> bool:
        """Order a failover, and return whether `old` is being replaced."""
        if self.master is not old:
            return True
        try:
            self.sentinels[0].ask("SENTINEL", "FAILOVER", self.name)
        except redis.ResponseError:
            return False  # it is not done with an earlier one, or considers all replicas dead
        return True


@scenario(
    8,
    "Sentinel failover",
    runs=10,
    short=1,
    faults=len(LAGS),
    operations=10,
    may_fail=(EXCLUSION, ORDER, WAKING),
    errors=ERRORS,
)
def failover(setting: Setting) -> None:
    def body(run: Run, there: Proxied) -> None:
        users = Users(run, lambda who: there.client(run, who))
        for lag in run.random.sample(LAGS, len(LAGS)):
            users.live_through(partial(replace_master, run, there, lag))

    each(setting, LANES, partial(Proxied, setting), body)


def replace_master(run: Run, there: Proxied, lag: float) -> None:
    """Let a replica replace the master, and wait until all clients and Sentinels know it."""
    there.wait_in_sync()
    old = there.master
    there.proxies[old].lag(lag)
    try:
        run.moment(BEHIND[1], shortest=BEHIND[0])
        kind = run.random.choice(KINDS)
        run.fault(kind, lag=str(lag))
        run.free()
        ordered = partial(wait_for, partial(there.order, old))
        {"killed": old.kill, "stopped": old.pause, "ordered": ordered}[kind]()
        try:
            there.wait_for_new_master(old)
        finally:
            come_back(run, old)  # or no other run could use this deployment
        there.wait_in_sync()
    finally:
        there.proxies[old].lag(0)


def come_back(run: Run, old: Node) -> None:
    """Start or resume a replaced master after a short time."""
    run.moment(0.5)
    if not old.is_running:
        old.start()
    old.resume()


CLUSTERS = 2
FAILOVERS = 4  # in a run, one after the other

REPLICA_BEHIND = 0.3, 0.6
"""Seconds for which a replica is paused before the fault of its primary. A Cluster needs longer to
consider it dead."""

REPLACED = {
    "runs": 4,
    "short": 1,
    "faults": FAILOVERS,
    "operations": 10,
    "errors": ("ConnectionError", "TimeoutError", "ClusterDownError"),
}


def client_of(cluster: Cluster, run: Run, who: str) -> Client:
    client = run.client(who, {})
    client.ask("tests.faults.deployments:by_cluster", nodes=cluster.startup)
    return client


SLOT = int(key_slot(KEYS.index.encode()))
"""The slot of all locks."""


STRUCK = "A Cluster's primary is killed or paused"


@scenario(
    19, f"{STRUCK}, min_replicas=1", may_fail=(ORDER, WAKING), args={"min_replicas": 1}, **REPLACED
)
@scenario(19, STRUCK, may_fail=(EXCLUSION, ORDER, WAKING), **REPLACED)
def replaced(setting: Setting, min_replicas: int = 0) -> None:
    def body(run: Run, cluster: Cluster) -> None:
        users = Users(run, lambda who: client_of(cluster, run, who), min_replicas)
        for is_behind in run.random.sample((False, True) * (FAILOVERS // 2), FAILOVERS):
            users.live_through(partial(strike, run, cluster, is_behind))

    each(setting, CLUSTERS, lambda: setting.use(Cluster()), body)


def strike(run: Run, cluster: Cluster, is_behind: bool) -> None:
    """Let the replica take over from the primary that has the locks."""
    old = cluster.owner(SLOT)
    [replica] = cluster.replicas_of(old)
    kind = run.random.choice(("killed", "stopped"))
    if is_behind:
        replica.pause()
        old.ask("CLIENT", "KILL", "TYPE", "REPLICA")
        run.moment(REPLICA_BEHIND[1], shortest=REPLICA_BEHIND[0])
    run.fault(kind, behind=is_behind)
    run.free()
    old.kill() if kind == "killed" else old.pause()
    replica.resume()
    cluster.wait_for_new_owner(SLOT, old)
    come_back(run, old)
    wait_for(lambda: cluster.replicas_of(replica) == [old])
    wait_for(lambda: old.info("replication")["master_link_status"] == "up")
