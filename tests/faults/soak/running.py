"""The soak test: its processes, its rounds with their faults, the measurements and results."""

import contextlib
import math
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import median

from django_redislock.clock import now
from django_redislock.lua import ACQUIRE, RELEASE, RENEW
from tests.servers import Node
from tests.tools import KEY, wait_for_none_left

from .. import checker
from ..crew import Client, Crew, caches, usual_crew
from ..events import Log, read
from ..judge import WAKE_WITHIN_SECONDS, judge
from ..proxy import Proxy, runs
from .mixing import CONNECTIONS, LEASES, QUORUM

FAULTS = (
    *("kill", "stop", "cut", "freeze", "delay", "refuse"),
    *("lose_a_reply", "flush_scripts", "close_connections"),
)


MIXING = "tests.faults.soak.mixing"

LONGEST_ROUND = 12.0
ROUNDS = 12  # at least

REST = 12.0  # seconds for leases, grants and heartbeats to expire after a round

STRIKES_A_SECOND = 1.5
MORTALS = 3

LASTING = {
    "threads": "work",
    "threads behind a proxy": "work",
    "tasks": "awork",
    "tasks behind a proxy": "awork",
    "greenlets": "work",
    "operator": "operate",
}
"""The clients that live during all rounds, and their orders."""

NO_KEY = {"part": ""}
NOT_OF_KEYS = "used_memory_scripts", "mem_clients_normal", "mem_total_replication_buffers"
"""Fields of INFO with memory that is not used by keys."""

SERVERS = "server", "second server", "third server"
"""The first server has all locks; the others are only members of quorums."""

ALLOWED = {
    "memory": (1024, 0.02),
    "objects": (300, 0),
    "threads": (3, 0),
    "descriptors": (3, 0),
    "keys": (0, 0),
    "connections": (4, 0),
    "data": (256, 0),
}
"""Allowed growth: an absolute number, or a part of the value. Memory and data are in KiB."""

ERRORS = {"ConnectionError", "TimeoutError", "LockError", "LockNotAcquired", *checker.NOT_OWNED}
"""Errors that clients may raise because of cut connections and timeouts."""


@dataclass(frozen=True)
class Series:
    """One measure of one process, for all rounds. The first third is the warm-up and does not
    count. The growth of the rest is its Theil-Sen slope, which is robust against outliers, times
    its length."""

    who: str
    what: str
    values: Sequence[float]

    @property
    def middle(self) -> float:
        size = len(self.values)
        return median(self.values[size // 3 : size * 2 // 3])

    @property
    def growth(self) -> float:
        rest = self.values[len(self.values) // 3 :]
        pairs = combinations(enumerate(rest), 2)
        slope = median([(later - value) / (at - since) for (since, value), (at, later) in pairs])
        return slope * (len(rest) - 1)

    @property
    def limit(self) -> float:
        amount, part = ALLOWED[self.what]
        return max(amount, part * self.middle)

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.limit


@dataclass
class Outcome:
    """The results of a soak test."""

    seed: int
    seconds: float = 0
    rounds: int = 0
    held: int = 0
    judged: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    series: list[Series] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Soak:
    def __init__(self, seconds: float, seed: int) -> None:
        self.seconds = seconds
        self.seed = seed
        self.random = Random(f"soak {seed}")
        self.folder = Path(tempfile.mkdtemp(prefix="redislock-soak-"))
        self.outcome = Outcome(seed)
        self._is_clean = True
        self._values: dict[tuple[str, str], list[float]] = defaultdict(list)

    def run(self) -> Outcome:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.nodes = {name: stack.enter_context(Node()) for name in SERVERS}
            self.node = self.nodes[SERVERS[0]]
            self.proxy = stack.enter_context(Proxy(*self.node.address))
            self.log = stack.enter_context(contextlib.closing(Log(self.folder, "soak")))
            self.gevent = Crew(module="tests.faults.gevent_client")
            stack.callback(self.gevent.close)
            self.lasting = {who: self._lasting(who) for who in LASTING}
            for client in self.lasting.values():
                stack.callback(client.end)
            return self._run()

    def _lasting(self, who: str) -> Client:
        crew = self.gevent if who == "greenlets" else usual_crew()
        url = self.proxy.url if "proxy" in who else self.node.url
        return self._client(who, crew, url, self.log)

    def _client(self, who: str, crew: Crew, url: str, log: Log) -> Client:
        urls = [url, *(node.url for node in self.nodes.values() if node is not self.node)]
        aliases = {
            alias: caches(one, max_connections=CONNECTIONS)["default"]
            for alias, one in zip(QUORUM, urls, strict=True)
        }
        return Client(crew, who, log, aliases, seed=f"{self.seed} {who}")

    def _run(self) -> Outcome:
        began = now()
        until = began + self.seconds
        length = min(LONGEST_ROUND, self.seconds / ROUNDS * 0.6)
        while now() < until or self.outcome.rounds < ROUNDS:
            self.outcome.rounds += 1
            self._round(self.outcome.rounds, length)
            self._measure()
        self.outcome.seconds = now() - began
        self.outcome.series = [
            Series(who, what, values) for (who, what), values in self._values.items()
        ]
        self.outcome.failures += [
            f"{each.who}: {each.what} grew by {each.growth:,.0f}, more than {each.limit:,.0f}"
            for each in self.outcome.series
            if not each.is_flat
        ]
        return self.outcome

    # One round

    def _round(self, number: int, seconds: float) -> None:
        folder = self.folder / f"round {number}"
        folder.mkdir()
        arguments = {"folder": str(folder), "number": number, "seconds": seconds}
        with contextlib.closing(Log(folder, "harness")) as log:
            for who, client in self.lasting.items():
                client.start(f"{MIXING}:{LASTING[who]}", **arguments)
            mortals = [
                self._client(f"mortal {place}", usual_crew(), self.node.url, log)
                for place in range(MORTALS)
            ]
            try:
                for mortal in mortals:
                    mortal.start(f"{MIXING}:work", **arguments)
                number = math.ceil(seconds * STRIKES_A_SECOND)
                for _ in range(number):
                    time.sleep(seconds / number * self.random.uniform(0.2, 0.8))
                    self._strike(mortals, log)
                self._await_all(mortals)
            finally:
                for mortal in mortals:
                    mortal.end()
            self._rest(log)
        self._judge(folder)
        shutil.rmtree(folder)

    def _strike(self, mortals: Sequence[Client], log: Log) -> None:
        """Inject a fault. Of the clients that live for one round, at least one stays alive."""
        living = [each for each in mortals if each.died is None]
        kind = self.random.choice([each for each in FAULTS if each != "kill" or len(living) > 1])
        victim = self.random.choice(living)
        seconds = self.random.uniform(0, max(LEASES))
        match kind:
            case "kill":
                victim.kill()
                return  # it logs itself, as does a stop
            case "stop":
                victim.stop()
                time.sleep(2 * seconds)
                victim.resume()
                return
            case "cut":
                self.proxy.cut()
            case "freeze":
                log.write("away")
                self.proxy.freeze()
                time.sleep(seconds)
                self.proxy.thaw()
                log.write("back")
            case "delay":
                self.proxy.delay(0.02)
                time.sleep(seconds)
                self.proxy.delay(0)
            case "refuse":
                log.write("away")
                self.proxy.refuse()
                self.proxy.cut()
                time.sleep(seconds)
                self.proxy.accept()
                log.write("back")
            case "lose_a_reply":
                self.proxy.drop_reply(runs(self.random.choice((ACQUIRE, RELEASE, RENEW))))
            case "flush_scripts":
                self.node.ask("SCRIPT", "FLUSH")
            case "close_connections":
                self.node.ask("CLIENT", "KILL", "TYPE", "normal")
        log.write("fault", kind=kind)

    def _await_all(self, mortals: list[Client]) -> None:
        living = [each for each in mortals if each.died is None]
        for client in (*self.lasting.values(), *living):
            answer = client.answer()
            assert "error" not in answer, f"{client.who}: {answer}"
            self.outcome.held += answer["held"]
            self.outcome.failures += [f"{client.who}: {each}" for each in answer["troubles"]]

    def _rest(self, log: Log) -> None:
        """Wait until no lock is held or queued, and log the keys that remain."""
        for node in self.nodes.values():
            with node.client() as client:
                for key in wait_for_none_left(client, timeout=REST if self._is_clean else 0):
                    log.write("left", key=key)
                    self._is_clean = False
        self.lasting["operator"].ask(f"{MIXING}:forget_the_expired")

    def _judge(self, folder: Path) -> None:
        events = read(folder)
        found = checker.check(events)
        did = judge(events, within=2 * WAKE_WITHIN_SECONDS)
        self.outcome.judged += len(found.holds)
        self.outcome.faults.update(each.get("kind", each["what"]) for each in found.faults)
        # Waiters that notice a grant too late are overtaken, so the order is left to scenarios.
        wrong = {
            "overlap": found.overlaps,
            "stale write": did.stale,
            "refused in turn": did.refused_in_turn,
            "fencing token": found.fences,
            "not woken": did.waits_in_vain,
            "not its own": found.not_owned,
            "left": found.leftovers,
            "error": [each for each in found.errors if each["type"] not in ERRORS],
        }
        self.outcome.failures += [
            f"round {self.outcome.rounds}: {what}: {each}"
            for what, cases in wrong.items()
            for each in cases
        ]

    def _measure(self) -> None:
        measured = {who: each.ask(f"{MIXING}:measure") for who, each in self.lasting.items()}
        measured |= {name: _of_server(node) for name, node in self.nodes.items()}
        for who, values in measured.items():
            for what, value in values.items():
                self._values[who, what].append(value)


def _of_server(node: Node) -> dict[str, float]:
    """Measure a server without its history, which grows to a fixed length, without the index,
    which stays, and without scripts and connection buffers."""
    with node.client() as client:
        parts = {key: (KEY.search(key) or NO_KEY)["part"] for key in client.scan_iter(count=1000)}
        history = [key for key, part in parts.items() if part.startswith("history:")]
        kept = sum(client.memory_usage(key, samples=0) or 0 for key in history)
        info = client.info("memory")
        others = sum(int(info.get(each, 0)) for each in NOT_OF_KEYS)
        return {
            "data": (info["used_memory"] - kept - others) / 1024,
            "keys": sum(part != "index" for part in parts.values()) - len(history),
            "connections": len(client.client_list()),
        }
