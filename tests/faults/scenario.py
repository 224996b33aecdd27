"""Scenarios, the environment in which they run, and the assessment of their results."""

import contextlib
import gc
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from redis.exceptions import RedisError

from django_redislock.engine import queries, runners
from django_redislock.snapshots import LockInfo
from tests.servers import MAKES, Node
from tests.tools import wait_for_none_left, wait_until

from . import checker
from .crew import KEYS, Client, caches, usual_crew
from .events import Event, Log, read
from .judge import WAKE_WITHIN_SECONDS, Verdict, judge
from .proxy import Proxy
from .table import Row

EXCLUSION = "exclusion"
ORDER = "order"
WAKING = "waking"
"""The guarantees that a scenario may exclude (`may_fail`) because the docs do not make them there:
mutual exclusion (and no loss before the end of a lease), first come first served, and no waiter
while the lock is free. All other guarantees apply to every scenario."""

SETTLED_WITHIN_SECONDS = 40.0  # limit for the expiry of all remaining leases and grants

Body = Callable[..., None]


@dataclass(frozen=True)
class Scenario:
    """A scenario: its body, the number of runs, and its limits."""

    number: int
    title: str
    body: Body

    _: KW_ONLY

    runs: int
    short: int  # number of runs with --short
    # Minimum number of faults and of acquisitions per run, on average. With fewer, the scenario
    # proves nothing and fails.
    faults: int = 1
    operations: int = 1
    # Limit in seconds from a fault to the next holder.
    free_within: float | None = None
    # Limit in seconds for the time that a lock is free while a live waiter waits.
    wake_within: float = WAKE_WITHIN_SECONDS
    may_fail: tuple[str, ...] = ()  # guarantees that do not apply
    # Types of errors that clients may raise. Errors of ownership are checked separately.
    errors: tuple[str, ...] = ()
    # Keyword arguments of `body`, so that several scenarios can share it.
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.number}. {self.title}"

    @property
    def label(self) -> str:
        """The first cell of the scenario's row."""
        return f"({self.number}) {self.title}"

    @property
    def is_exclusive(self) -> bool:
        return EXCLUSION not in self.may_fail


SCENARIOS: list[Scenario] = []


def scenario(number: int, title: str, **facts: Any) -> Callable[[Body], Body]:
    """Register a body as a `Scenario` with these `facts`. If a body has several decorators, the
    lowest one registers first."""

    def register(body: Body) -> Body:
        SCENARIOS.append(Scenario(number, title, body, **facts))
        return body

    return register


class Setting:
    """The servers, clients and history of one scenario. They are removed at the end."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int,
        short: bool,
        only: int | None = None,
    ) -> None:
        self.scenario = scenario
        self.seed = seed
        runs = scenario.short if short else scenario.runs
        self._numbers = [*range(1, runs + 1)] if only is None else [only]
        self.runs = len(self._numbers)
        self.folder = Path(tempfile.mkdtemp(prefix="redislock-faults-"))
        self.log = Log(self.folder, "harness")
        self.notes: list[str] = []
        self.settled_within = SETTLED_WITHIN_SECONDS
        self.troubles: dict[int, str] = {}
        self._stack = contextlib.ExitStack()
        self.nodes: list[Node] = []
        self._ways: dict[str, str] = {}

    def random_of(self, what: object) -> random.Random:
        """Return a random generator for `what` that depends only on the seed."""
        return random.Random(f"{self.seed} {self.scenario.name} {what}")

    # Resources

    def node(self, *makes: str, **config: Any) -> Node:
        """Start a server that is checked for leftovers at the end. The seed chooses one of the
        given makes, or of all makes, for the whole scenario."""
        make = self.random_of("make").choice(makes or MAKES)
        node = self.use(Node(make, **config))
        self.nodes.append(node)
        if Proxy.network:
            self._ways[node.url] = self.proxy(node).url
        return node

    def way_to(self, url: str) -> str:
        """Return the address by which clients reach a server: with a delay, through a proxy."""
        return self._ways.get(url, url)

    def proxy(self, node: Node) -> Proxy:
        return self.use(Proxy(*node.address))

    def use(self, resource: Any) -> Any:
        """Enter a context manager, and exit it at the end of the scenario."""
        return self._stack.enter_context(resource)

    def each(self, body: Callable[["Run"], None], *, lanes: int = 1) -> None:
        """Execute all runs, `lanes` at a time. An error fails only its run."""
        with ThreadPoolExecutor(lanes) as pool:
            for _ in pool.map(partial(self._run, body), self._numbers):
                pass

    def _run(self, body: Callable[["Run"], None], number: int) -> None:
        with contextlib.closing(Run(self, number)) as run:
            try:
                body(run)
            except Exception as error:
                self.trouble(number, error)

    def trouble(self, number: int, error: Exception) -> None:
        """Record an error of a run, or of the whole scenario (0)."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        self.troubles[number] = f"{type(error).__name__}: {error} ({where})"

    # Results

    def row(self) -> Row:
        return _row(self, *self.run_and_check())

    def run_and_check(self) -> tuple[checker.Findings, Verdict]:
        with contextlib.closing(self.log), self._stack:
            self._try(partial(self.scenario.body, **self.scenario.args), self)
            for node in self.nodes:
                self._try(self._look_over, node)
        events, exclusive = read(self.folder), self.scenario.is_exclusive
        did = judge(events, within=self.scenario.wake_within, exclusive=exclusive)
        return checker.check(events, exclusive=exclusive), did

    def _try(self, step: Callable[[Any], object], of: Any) -> None:
        """Record an error as a failure of this scenario, so that the other scenarios continue."""
        try:
            step(of)
        except Exception as error:
            if 0 not in self.troubles:
                self.trouble(0, error)

    def _look_over(self, node: Node) -> None:
        with node.client() as client:
            for key in wait_for_none_left(client, timeout=self.settled_within):
                self.log.write("left", key=key)
            gc.collect()  # closes the connections of this process that looked at locks
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not _connections(client), timeout=5)
            for connection in _connections(client):
                self.log.write("left", connection=connection)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Shared:
    """Nodes or other resources. Each run borrows one."""

    def __init__(self, every: Iterable[Any]) -> None:
        self.every = list(every)
        self._free: SimpleQueue[Any] = SimpleQueue()
        for each in self.every:
            self._free.put(each)

    @contextlib.contextmanager
    def one(self) -> Iterator[Any]:
        one = self._free.get()
        try:
            yield one
        finally:
            self._free.put(one)


def _connections(client: Any) -> list[dict[str, str]]:
    """Return the connections of other clients, without Sentinels and Cluster nodes."""
    own = str(client.client_id())
    return [
        each
        for kind in ("normal", "pubsub")
        for each in client.client_list(kind)
        if each["id"] != own
        and not each["name"].startswith("sentinel-")
        and each["cmd"] != "restore-asking"
    ]


class Run:
    """One run of a scenario, with its own lock, clients and random choices."""

    def __init__(self, setting: Setting, number: int) -> None:
        self.setting = setting
        self.number = number
        self.lock = f"run {number}"
        self.random = setting.random_of(number)
        self.log = setting.log
        self._clients: list[Client] = []

    def clients(self, node: Node, *names: str) -> list[Client]:
        """Fork clients that use this server."""
        return [self.client(who, caches(self.setting.way_to(node.url))) for who in names]

    def client(self, who: str, aliases: dict[str, Any]) -> Client:
        who = f"{self.lock} {who}"
        client = Client(usual_crew(), who, self.log, aliases, seed=f"{self.setting.seed} {who}")
        self._clients.append(client)
        return client

    def moment(self, longest: float, *, shortest: float = 0) -> None:
        """Sleep for a random time, so that the next fault occurs at a random point."""
        time.sleep(self.random.uniform(shortest, longest))

    def info(self, node: Node) -> LockInfo | None:
        """Return the state of the run's lock on the server."""
        with node.client(decode_responses=False) as client:
            return runners.run(client, queries.get(KEYS, self.lock))

    def fault(self, kind: str, **facts: Any) -> Event:
        """Log a fault that was injected. The methods of clients log their own faults."""
        return self.log.write("fault", kind=kind, lock=self.lock, **facts)

    @contextlib.contextmanager
    def paused(self, node: Node) -> Iterator[None]:
        """Pause the server during the block."""
        self.fault("paused")
        self.log.write("away", lock=self.lock)
        node.pause()
        try:
            yield
        finally:
            node.resume()
            self.log.write("back", lock=self.lock)

    def free(self) -> float:
        """Log that a waiter can acquire the lock from now on, and return the time."""
        return float(self.log.write("free", lock=self.lock)["t"])

    def close(self) -> None:
        for client in self._clients:
            client.dismiss()
        for client in self._clients:
            client.end()
        for node in self.setting.nodes:
            with contextlib.suppress(RedisError):  # unreachable, or used by another run
                self._note_holders(node)

    def _note_holders(self, node: Node) -> None:
        """Log the holders that remain on the server after all clients have ended."""
        if not (info := self.info(node)):
            return
        tokens = [holding.token for holding in info.holders]
        self.log.write("stands", lock=self.lock, tokens=tokens)


def _row(setting: Setting, found: checker.Findings, did: Verdict) -> Row:
    scenario, notes, losses = setting.scenario, list(setting.notes), found.reported_after
    if losses:
        side = "after" if max(losses) > 0 else "before"
        notes.append(
            f"{len(losses):,} clients lost a lock; the slowest knew "
            f"{abs(max(losses)):.2f} s {side} the end of its lease"
        )
    servers = tuple(sorted({node.make for node in setting.nodes}))
    wrong = tuple(_wrong(scenario, found, did))
    failures = (*wrong, *_troubles(setting), *_late(scenario, setting.runs, found, did))
    about = {"notes": tuple(notes), "failures": failures, "is_wrong": bool(wrong)}
    return Row(scenario, servers, setting.runs, found, did, **about)


def _troubles(setting: Setting) -> Iterator[str]:
    """Yield each error once, with the runs that had it."""
    for trouble in sorted(set(setting.troubles.values())):
        runs = sorted(number for number, other in setting.troubles.items() if other == trouble)
        numbers = ", ".join(map(str, runs[:3])) + ", …" * (len(runs) > 3)
        yield f"run {numbers}: {trouble}"


def _wrong(scenario: Scenario, found: checker.Findings, did: Verdict) -> Iterator[str]:
    """Yield violations that a slow machine cannot explain."""
    yield from _cases("stale writes with the fence", did.stale)
    yield from _cases("fencing tokens that did not grow", found.fences)
    yield from _cases("phantom locks", found.phantoms)
    if scenario.is_exclusive:
        yield from _cases("overlaps", found.overlaps)
        # Two primaries that both grant a lock know nothing of each other's tokens. So the holder
        # that enters last, after a slow reply, can have the smaller one.
        yield from _cases("refused writes of the last holder", did.refused_in_turn)


def _late(scenario: Scenario, runs: int, found: checker.Findings, did: Verdict) -> Iterator[str]:
    """Yield violations that a very slow machine can cause. A waiter that seems to be dead may lose
    its place in the queue, and a holder its lock."""
    expected = {*scenario.errors, *checker.NOT_OWNED}
    unexpected = [
        f"{each['who']}: {each['type']}: {each['text']}"
        for each in found.errors
        if each["type"] not in expected
    ]
    yield from _cases("left behind", found.leftovers)
    yield from _cases("unexpected errors", unexpected)
    for promise, what, cases in (
        (EXCLUSION, "false reports of a loss", found.not_owned),
        (ORDER, "overtakings", found.overtakings),
        (WAKING, "lost wake-ups", did.waits_in_vain),
    ):
        yield from _cases(what, () if promise in scenario.may_fail else cases)
    for least, what, cases in (
        (scenario.faults, "faults", found.faults),
        (scenario.operations, "acquisitions", found.holds),
    ):
        if len(cases) < least * runs:
            yield f"only {len(cases)} {what} in {runs} runs"
    if scenario.free_within is not None:
        if not found.until_free:
            yield "no client held a lock after a fault"
        elif (worst := max(found.until_free)) > scenario.free_within:
            yield f"a lock was free after {worst:.2f} s, not {scenario.free_within:g} s"


def _cases(what: str, particulars: Sequence[str]) -> Iterator[str]:
    if particulars:
        yield f"{len(particulars)} {what}: {'; '.join(particulars[:3])}"
