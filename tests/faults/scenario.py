"""What a scenario is, and what it is given to happen in."""

import contextlib
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
from statistics import median
from typing import Any

from redis.exceptions import RedisError

from django_redislock.engine import queries, runners
from django_redislock.snapshots import LockInfo
from tests.servers import MAKES, Missing, Node
from tests.tools import wait_for_none_left, wait_until

from . import checker
from .crew import KEYS, Client, Crew, caches, usual_crew
from .events import Event, Log, read
from .proxy import Proxy
from .table import Row

EXCLUSION = "exclusion"
ORDER = "order"
WAKING = "waking"
OWNERSHIP = "ownership"
"""The promises that a scenario may exclude (`may_fail`) because the docs do not make them there:
mutual exclusion, first come first served, no waiter beside a free lock, and no holder that is told
that it does not hold its lock. Everything else must hold in every scenario."""

SETTLED_WITHIN = 40.0  # seconds that all leases and claims that are left may take to run out

HAND_OVER = 0.1
"""Seconds that half of the hand-overs may take at most: far less than who is told nothing needs to
come and see, and more than a busy machine does."""


Body = Callable[..., None]


@dataclass(frozen=True)
class Scenario:
    """A scenario: what happens, how often, and what may not be kept."""

    number: int
    title: str
    body: Body

    _: KW_ONLY

    runs: int
    short: int  # how many of them, and how many in the short form
    faults: int = 1
    # How many faults, and acquisitions, a run has on average at least: with fewer it proves
    # nothing, and fails.
    operations: int = 1
    # Seconds from a fault to the next who holds the lock, at most.
    free_within: float | None = None
    # Seconds for which a lock may be free while somebody alive waits for it.
    wake_within: float = checker.WAKE_WITHIN
    # Whether nobody dies or stands still, and no server is away: a lock may be free for a moment
    # only, and who is next is told of a release, and need not come to see it.
    at_once: bool = False
    may_fail: tuple[str, ...] = ()  # what may not be kept
    # The types of errors that clients may meet. Who is told that a lock is not its own is judged
    # by whether it was.
    errors: tuple[str, ...] = ()
    # Whether no other may happen at the same time: it measures what its machine can do.
    alone: bool = False
    # Keyword arguments of `body`, which several scenarios may share.
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.number}. {self.title}"

    @property
    def label(self) -> str:
        """The first cell of its row."""
        return f"({self.number}) {self.title}"

    @property
    def is_exclusive(self) -> bool:
        return EXCLUSION not in self.may_fail


SCENARIOS: list[Scenario] = []


def scenario(number: int, title: str, **facts: Any) -> Callable[[Body], Body]:
    """Register a body as a `Scenario` with these `facts`. Of several decorators on one body, the
    lowest registers first."""

    def register(body: Body) -> Body:
        SCENARIOS.append(Scenario(number, title, body, **facts))
        return body

    return register


class Setting:
    """Where one scenario happens: its servers, its clients, its history. All of it goes at the
    end."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int,
        short: bool,
        only: int | None = None,
        make: str | None = None,
    ) -> None:
        self.scenario = scenario
        self.make = make
        self.seed = seed
        self.runs = scenario.short if short else scenario.runs
        self.short = short
        self.folder = Path(tempfile.mkdtemp(prefix="redislock-faults-"))
        self.log = Log(self.folder, "harness")
        self.random = self.random_of("all")
        self.notes: list[str] = []
        self.settled_within = SETTLED_WITHIN
        self.troubles: dict[int, str] = {}
        self.missing: Missing | None = None
        self._only = only
        self._stack = contextlib.ExitStack()
        self.nodes: list[Node] = []

    def random_of(self, what: object) -> random.Random:
        """Random choices of its own, the same for the same seed."""
        return random.Random(f"{self.seed} {self.scenario.name} {what}")

    # What there is

    def node(self, *makes: str, **config: Any) -> Node:
        """A server, which is looked over at the end: of one of these makes, or of all that there
        are. The seed chooses which, the same for all of the scenario."""
        makes = makes or MAKES
        make = self.make if self.make in makes else self.random_of("make").choice(makes)
        node = self.use(Node(make, **config))
        self.nodes.append(node)
        return node

    def proxy(self, node: Node) -> Proxy:
        return self.use(Proxy(*node.address))

    def use(self, resource: Any) -> Any:
        """Enter a context manager, left when all is over."""
        return self._stack.enter_context(resource)

    def crew(self, **options: Any) -> Crew:
        """Where clients come from; with options, one of its own, as they say."""
        return self.use(contextlib.closing(Crew(**options))) if options else usual_crew()

    def each(self, body: Callable[["Run"], None], *, lanes: int = 1) -> None:
        """Run after run, so many at a time; an error is one of that run."""
        numbers = range(1, self.runs + 1) if self._only is None else [self._only]
        with ThreadPoolExecutor(lanes) as pool:
            for _ in pool.map(partial(self._run, body), numbers):
                pass

    def _run(self, body: Callable[["Run"], None], number: int) -> None:
        with contextlib.closing(Run(self, number)) as run:
            try:
                body(run)
            except Exception as error:
                self.trouble(number, error)

    def trouble(self, number: int, error: Exception) -> None:
        """What went wrong in a run, or in none (0)."""
        if isinstance(error, Missing):
            self.missing = error
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        self.troubles[number] = f"{type(error).__name__}: {error} ({where})"

    # How it ends

    def row(self) -> Row:
        return _row(self, self.happen())

    def happen(self) -> checker.Findings:
        with contextlib.closing(self.log), self._stack:
            self._try(partial(self.scenario.body, **self.scenario.args), self)
            for node in self.nodes:
                self._try(self._look_over, node)
        return checker.check(
            read(self.folder),
            wake_within=checker.AT_ONCE if self.scenario.at_once else self.scenario.wake_within,
            exclusive=self.scenario.is_exclusive,
        )

    def _try(self, step: Callable[[Any], object], of: Any) -> None:
        """What goes wrong in one scenario is a failure of that one, and the others go on."""
        try:
            step(of)
        except Exception as error:
            if 0 not in self.troubles:
                self.trouble(0, error)

    def _look_over(self, node: Node) -> None:
        with node.client() as client:
            for key in wait_for_none_left(client, timeout=self.settled_within):
                self.log.write("left", key=key)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not _connections(client), timeout=5)
            for connection in _connections(client):
                self.log.write("left", connection=connection)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Shared:
    """Nodes, or other resources, of which each run borrows one for itself."""

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
    """Those of others, except those of Sentinels and of Cluster nodes that moved keys here."""
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
    """One run of a scenario, with a lock, clients and random choices of its own."""

    def __init__(self, setting: Setting, number: int) -> None:
        self.setting = setting
        self.number = number
        self.lock = f"run {number}"
        self.random = setting.random_of(number)
        self.log = setting.log
        self._clients: list[Client] = []

    def client(self, crew: Crew, who: str, url: str, **options: Any) -> Client:
        """A client on the server at that address; `options` are those of its cache's alias."""
        return self.client_of(crew, who, caches(url, **options))

    def clients(self, crew: Crew, node: Node, *names: str) -> list[Client]:
        return [self.client(crew, who, node.url) for who in names]

    def client_of(self, crew: Any, who: str, aliases: dict[str, Any]) -> Client:
        who = f"{self.lock} {who}"
        client = Client(crew, who, self.log, aliases, seed=f"{self.setting.seed} {who}")
        self._clients.append(client)
        return client

    def moment(self, longest: float, *, shortest: float = 0) -> None:
        """Let a random time pass, so that what comes next strikes anywhere."""
        time.sleep(self.random.uniform(shortest, longest))

    def info(self, node: Node) -> LockInfo | None:
        """How its lock stands, as the server knows."""
        with node.client(decode_responses=False) as client:
            return runners.run(client, queries.get(KEYS, self.lock))

    def fault(self, kind: str, **facts: Any) -> Event:
        """Note a fault that was injected; what clients suffer is noted by their methods."""
        return self.log.write("fault", kind=kind, lock=self.lock, **facts)

    @contextlib.contextmanager
    def paused(self, node: Node) -> Iterator[None]:
        """The server stands still meanwhile."""
        self.fault("paused")
        self.log.write("away", lock=self.lock)
        node.pause()
        try:
            yield
        finally:
            node.resume()
            self.log.write("back", lock=self.lock)

    def free(self) -> float:
        """Note that from here on whoever waits is to get the lock; when that is."""
        return float(self.log.write("free", lock=self.lock)["t"])

    def close(self) -> None:
        for client in self._clients:
            client.dismiss()
        for client in self._clients:
            client.end()
        for node in self.setting.nodes:
            with contextlib.suppress(RedisError):  # it is away, or another's
                self._note_holders(node)

    def _note_holders(self, node: Node) -> None:
        """Who still holds its lock, now that all clients are gone."""
        if not (info := self.info(node)):
            return
        tokens = [holding.token for holding in info.holders]
        self.log.write("stands", lock=self.lock, tokens=tokens)
        with node.client() as client:
            state = client.hgetall(KEYS.of(self.lock).lock)
        weights = [int(record.split()[0]) for name, record in state.items() if name[:2] == "h:"]
        if state and int(state["used"]) != sum(weights):
            self.log.write("double", lock=self.lock, used=state["used"], weights=weights)


def _row(setting: Setting, found: checker.Findings) -> Row:
    scenario, notes, told = setting.scenario, list(setting.notes), found.told_after
    if told:
        side = "after" if max(told) > 0 else "before"
        notes.append(
            f"{len(told):,} clients lost a lock; the slowest knew "
            f"{abs(max(told)):.2f} s {side} the end of its lease"
        )
    servers = tuple(sorted({node.make for node in setting.nodes}))
    runs = setting.runs if setting._only is None else 1
    wrong = tuple(_wrong(scenario, found))
    late = (*_troubles(setting), *_late(scenario, runs, found))
    return Row(scenario, servers, runs, found, tuple(notes), wrong + late, bool(wrong))


def _troubles(setting: Setting) -> Iterator[str]:
    """Each trouble once, with the runs that had it."""
    for trouble in sorted(set(setting.troubles.values())):
        runs = sorted(number for number, other in setting.troubles.items() if other == trouble)
        numbers = ", ".join(map(str, runs[:3])) + ", …" * (len(runs) > 3)
        yield f"run {numbers}: {trouble}"


def _wrong(scenario: Scenario, found: checker.Findings) -> Iterator[str]:
    """What must not be in the history, however slow the machine is."""
    yield from _cases("stale writes with the fence", found.stale)
    yield from _cases("writes refused to the last who came", found.refused_in_turn)
    yield from _cases("fencing tokens that did not grow", found.fences)
    yield from _cases("phantom locks", found.phantoms)
    yield from _cases("counted twice", found.doubles)
    if scenario.is_exclusive:
        yield from _cases("overlaps", found.overlaps)


def _late(scenario: Scenario, runs: int, found: checker.Findings) -> Iterator[str]:
    """What should not be either, but comes about where a machine does not get to do what it has
    to in time: one that seems to be down may lose its place, and with it locks."""
    expected = {*scenario.errors, *checker.NOT_OWNED}
    unexpected = [
        f"{each['who']}: {each['type']}: {each['text']}"
        for each in found.errors
        if each["type"] not in expected
    ]
    yield from _cases("left behind", found.leftovers)
    yield from _cases("unexpected errors", unexpected)
    for promise, what, cases in (
        (OWNERSHIP, "told not to own what it held", found.not_owned),
        (ORDER, "overtakings", found.overtakings),
        (WAKING, "lost wake-ups", found.lost_wakeups),
    ):
        yield from _cases(what, () if promise in scenario.may_fail else cases)
    for least, what, cases in (
        (scenario.faults, "faults", found.faults),
        (scenario.operations, "acquisitions", found.holds),
    ):
        if len(cases) < least * runs:
            yield f"only {len(cases)} {what} in {runs} runs"
    late = median(found.hand_overs) if scenario.at_once and found.hand_overs else 0
    if late > HAND_OVER:
        yield f"half of {len(found.hand_overs):,} hand-overs took {late:.2f} s or more"
    if scenario.free_within is not None:
        if not found.until_free:
            yield "nobody was seen to hold a lock after a fault"
        elif (worst := max(found.until_free)) > scenario.free_within:
            yield f"a lock came free after {worst:.2f} s, not {scenario.free_within:g} s"


def _cases(what: str, particulars: Sequence[str]) -> Iterator[str]:
    if particulars:
        yield f"{len(particulars)} {what}: {'; '.join(particulars[:3])}"
