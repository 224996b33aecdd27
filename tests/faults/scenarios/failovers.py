"""Failovers: Sentinels or a Cluster replace a primary by a replica. The primary dies, is paused,
is ordered to step down, or is cut off from its replicas together with some clients.

The harness does not ask replicas for locks, because their state may change at any moment. Instead
it delays replication for so long that a lease that is confirmed any sooner cannot be on a replica.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any, TypeVar

import redis
from redis.crc import key_slot

from django_redislock.clock import now
from tests.servers import Cluster, Node, Sentinels
from tests.servers.processes import wait_for
from tests.tools import wait_until

from ..checker import Findings, check
from ..crew import CORE, KEYS, Client, Crew
from ..events import Event, read
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
        self._run, self._kept = run, kept(run)
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


def kept(run: Run) -> str:
    """Return the name of the keeper's lock."""
    return f"{run.lock} kept"


@contextmanager
def replacing(run: Run, kind: str, *, may_lose: bool = True, **facts: object) -> Iterator[None]:
    """Log a fault, and the period in which holders of this run's locks may lose them."""
    fault = run.fault(kind, **facts)
    run.free()
    try:
        yield
    finally:
        for lock in (run.lock, kept(run)) if may_lose else ():
            run.log.write("taken", lock=lock, since=fault["t"])


T = TypeVar("T")

AT_ONCE = 0.5
"""Limit in seconds, on a busy machine, until a holder is notified that its lease has expired."""

ENOUGH = 4
"""Periods of replication lag in which locks that do not wait for a replica must be granted before
one has them. Otherwise the runs that wait for a replica prove nothing."""


ROUNDING = 0.001
"""In seconds. The time of a request follows from the end of its lease, in milliseconds."""


@contextmanager
def behind(run: Run, seconds: float, *, clients: Sequence[str] = ()) -> Iterator[None]:
    """Log that requests within the block, by `clients` or by all, reach replicas after `seconds`
    at the earliest. `math.inf` means after the block."""
    since = now()
    try:
        yield
    finally:
        run.log.write(
            "behind",
            since=since,
            seconds=seconds,
            locks=[run.lock, kept(run)],
            clients=[f"{run.lock} {who}" for who in clients],
        )


def times(events: Sequence[Event]) -> list[Event]:
    """Return the periods of replication lag."""
    return [event for event in events if event["what"] == "behind" and event["seconds"]]


def on_no_replica(events: Sequence[Event]) -> Iterator[str]:
    """Yield the acquisitions and renewals that were confirmed before a replica had them."""
    lags = times(events)
    for lease in (event for event in events if event["what"] == "kept"):
        for lag in lags:
            in_time = lag["since"] + ROUNDING < lease["sent"] < lag["t"]
            affected = lease["lock"] in lag["locks"] and lease["who"] in (
                lag["clients"] or [lease["who"]]
            )
            if in_time and affected and lease["t"] < min(lease["sent"] + lag["seconds"], lag["t"]):
                took = lease["t"] - lease["sent"]
                yield f"{lease['lock']}: {lease['who']} at {lease['t']:.4f}, after {took:.4f} s"
                break


def each(
    setting: Setting,
    lanes: int,
    make: Callable[[], T],
    body: Callable[[Run, T], None],
    min_replicas: int = 0,
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
    tell(setting, min_replicas)


def tell(setting: Setting, min_replicas: int = 0) -> None:
    """Raise AssertionError if a holder learned of a loss too late, or a lock was granted without
    the required number of replicas."""
    events = read(setting.folder)
    found, lags, too_early = check(events), times(events), list(on_no_replica(events))
    failed = [each for each in found.errors if each["during"] == "acquire"]
    at_once = [hold.began - hold.asked for hold in found.holds if hold.queued is None] or [0]
    setting.notes.append(
        f"{len(found.holds):,} acquisitions succeeded and {len(failed):,} failed; "
        f"an acquisition without waiting took {median(at_once) * 1000:.1f} ms (median)"
    )
    if lags:
        setting.notes.append(
            f"{len(too_early):,} acquisitions and renewals succeeded before a replica had them, "
            f"in {len(lags)} periods of replication lag"
        )
    _none(too_late(found), "learned too late of a loss")
    if min_replicas:
        _none(too_early, "granted without a replica")
    elif len(lags) >= ENOUGH:
        assert too_early, "no replica was behind"


def _none(particulars: Iterable[str], what: str) -> None:
    found = list(particulars)
    assert not found, f"{len(found)} {what}: {'; '.join(found[:3])}"


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
"""Replication lags in seconds at the time of a fault, used in random order. With `min_replicas`,
no client can acquire a lock while the lag is infinite."""

BEHIND = 0.4, 0.8  # seconds of lag before the fault

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

DECIDED = 2.0  # limit in seconds from a failover until the Sentinels announce it


class Watched(Sentinels):
    """A master and two replicas, each behind a proxy. The Sentinels may also replace a master that
    is merely slow. So each failover is logged as a period in which `locks` may be lost."""

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
            client.pubsub(ignore_subscribe_messages=True) as subscriber,
        ):
            subscriber.subscribe(**{"+switch-master": self._note})
            thread = subscriber.run_in_thread(sleep_time=0.1, daemon=True)
            try:
                yield
            finally:
                thread.stop()
                thread.join()

    def _note(self, message: object) -> None:
        for lock in self.locks:
            self._setting.log.write("taken", lock=lock, since=now() - DECIDED)

    def client(self, run: Run, crew: Crew, who: str, **how: Any) -> Client:
        client = run.client_of(crew, who, {})
        how = {"sentinels": self.addresses, "through": run.random.choice(BACKENDS)} | how
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


@scenario(8, "Sentinel failover, min_replicas=1", args={"min_replicas": 1}, **FACTS)
@scenario(8, "Sentinel failover", **FACTS)
def failover(setting: Setting, min_replicas: int = 0) -> None:
    crew = setting.crew()

    def body(run: Run, there: Watched) -> None:
        there.locks = run.lock, kept(run)
        users = Users(run, lambda who: there.client(run, crew, who), min_replicas)
        for lag in run.random.sample(LAGS, len(LAGS)):
            users.live_through(partial(replace_master, run, there, lag))

    each(setting, LANES, partial(Watched, setting), body, min_replicas)


def replace_master(run: Run, there: Watched, lag: float) -> None:
    """Let a replica replace the master, and wait until all clients and Sentinels know it."""
    there.wait_in_sync()
    old = there.master
    there.proxies[old].lag(lag)
    try:
        with behind(run, lag):
            run.moment(BEHIND[1], shortest=BEHIND[0])
        kind = run.random.choice(KINDS)
        with replacing(run, kind, lag=str(lag)):
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


WITH_THE_MASTER = "keeper", "waiting first", "first"
"""The clients that are cut off together with the master."""

LASTS = 1.0, 4.0  # seconds with two masters

GUARDED = {"min_replicas_to_write": 1, "min_replicas_max_lag": 2}
"""Server settings that refuse writes. Replicas report their position once a second."""

REFUSED = "ResponseError"  # for the reply ``NOREPLICAS``


class Parted(Watched):
    """Each server has one proxy for the majority side and one for the master's side. Clients on
    the master's side reach the master directly."""

    def __init__(self, setting: Setting, **config: Any) -> None:
        super().__init__(setting, **config)
        there = (*self.nodes, *self.sentinels)
        self._across: dict[Node, Proxy] = {node: setting.proxy(node) for node in there}

    def client_with(self, master: Node, run: Run, crew: Crew, who: str) -> Client:
        if who not in WITH_THE_MASTER:
            return self.client(run, crew, who)
        others = [node for node in self.proxies if node is not master]
        ways = [(self.proxies[node].address, self._across[node].address) for node in others]
        ways.append((self.proxies[master].address, master.address))
        sentinels = [self._across[each].address for each in self.sentinels]
        return self.client(run, crew, who, sentinels=sentinels, ways=ways, through=CORE)

    def part(self, master: Node) -> list[Proxy]:
        """Freeze all connections between the sides, and return the frozen proxies."""
        parted = [
            self.proxies[master],
            *(proxy for node, proxy in self._across.items() if node is not master),
        ]
        for proxy in parted:
            proxy.freeze()
        return parted


PARTED = {"runs": 12, "short": 1, "operations": 10, "may_fail": (EXCLUSION, ORDER, WAKING)}


WRITES = "Partition, the server's min-replicas-to-write 1"


@scenario(9, WRITES, errors=(*ERRORS, REFUSED), args=GUARDED, **PARTED)
@scenario(9, "Partition, min_replicas=1", errors=ERRORS, args={"min_replicas": 1}, **PARTED)
@scenario(9, "Partition, the master on the minority side", errors=ERRORS, **PARTED)
def partition(setting: Setting, min_replicas: int = 0, **config: Any) -> None:
    crew = setting.crew()

    def body(run: Run, there: Parted) -> None:
        there.wait_in_sync()
        old = there.master
        users = Users(run, lambda who: there.client_with(old, run, crew, who), min_replicas)
        users.live_through(partial(cut_off, run, there, old))

    each(setting, LANES, partial(Parted, setting, **config), body, min_replicas)


def cut_off(run: Run, there: Parted, old: Node) -> None:
    with replacing(run, "parted"):
        parted = there.part(old)
        with behind(run, math.inf, clients=WITH_THE_MASTER):
            there.wait_for_new_master(old)
            run.moment(LASTS[1], shortest=LASTS[0])
        for proxy in parted:
            proxy.thaw()
        there.wait_in_sync()


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


def client_of(cluster: Cluster, run: Run, crew: Crew, who: str) -> Client:
    client = run.client_of(crew, who, {})
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
    crew = setting.crew()

    def body(run: Run, cluster: Cluster) -> None:
        users = Users(run, lambda who: client_of(cluster, run, crew, who), min_replicas)
        for is_behind in run.random.sample((False, True) * (FAILOVERS // 2), FAILOVERS):
            users.live_through(partial(strike, run, cluster, is_behind, not min_replicas))

    each(setting, CLUSTERS, lambda: setting.use(Cluster()), body, min_replicas)


def strike(run: Run, cluster: Cluster, is_behind: bool, may_lose: bool) -> None:
    """Let the replica take over from the primary that has the locks."""
    old = cluster.owner(SLOT)
    [replica] = cluster.replicas_of(old)
    kind = run.random.choice(("killed", "stopped"))
    if is_behind:
        replica.pause()
        old.ask("CLIENT", "KILL", "TYPE", "REPLICA")
        with behind(run, math.inf):
            run.moment(REPLICA_BEHIND[1], shortest=REPLICA_BEHIND[0])
    with replacing(run, kind, may_lose=may_lose, behind=is_behind):
        old.kill() if kind == "killed" else old.pause()
        replica.resume()
        cluster.wait_for_new_owner(SLOT, old)
        come_back(run, old)
        _wait_until_follows(cluster, old, replica)


def _wait_until_follows(cluster: Cluster, old: Node, new: Node) -> None:
    wait_for(lambda: cluster.replicas_of(new) == [old])
    wait_for(lambda: old.info("replication")["master_link_status"] == "up")
