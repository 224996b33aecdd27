"""Processes of the previous release and of this one, on one server."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django_redislock.clock import now
from tests.servers import Node

from .. import previous
from ..crew import Client
from ..scenario import Run, Setting, scenario
from .killed import until_free

LEASE = 1.0
LONG_LEASE = 2.0  # long enough for a busy machine
OLD, NEW = "old", "new"
KINDS: tuple[dict[str, Any], ...] = (
    {"kind": "lock"},
    {"kind": "write_lock"},
    {"kind": "semaphore", "limit": 1},
)


class Releases:
    """Forks clients of both releases."""

    def __init__(self, setting: Setting) -> None:
        self.crews = {OLD: setting.crew(**previous.ENVIRONMENT), NEW: setting.crew()}

    def client(self, run: Run, release: str, who: str, node: Node) -> Client:
        client = run.client(self.crews[release], f"{who}, {release}", node.url)
        is_old = client.ask("tests.faults.work:made_of").startswith(str(previous.PACKAGE))
        assert is_old == (release == OLD)
        return client


@scenario(
    17,
    "One queue with clients of an earlier commit and of this one",
    runs=30,
    short=2,
    operations=4,
    free_within=until_free(LONG_LEASE),
)
def queue(setting: Setting) -> None:
    """Each holder renews the lock, both releases describe it in the same way, and the holder
    releases the lock or dies. The last holder is force-released by the other release."""
    node, releases = setting.node(), Releases(setting)

    def body(run: Run) -> None:
        order = run.random.sample([OLD, OLD, NEW, NEW], 4)
        clients = [releases.client(run, each, f"{n}", node) for n, each in enumerate(order, 1)]
        lookers = {each: releases.client(run, each, "looks", node) for each in (OLD, NEW)}
        about = {"timeout": LONG_LEASE, "metadata": {"run": run.number}}
        options = run.random.choice(KINDS) | about
        for client in clients:
            client.start("acquire", lock=run.lock, **options)
            client.wait_for("held" if client is clients[0] else "queued")
        for place, client in enumerate(clients):
            token = client.wait_for("held")["token"]
            assert client.answer() is True
            client.wait_for("kept", after=now())
            seen = looks(lookers, run.lock)
            assert [each["token"] for each in seen["holders"]] == [token], seen
            assert len(seen["queue"]) == len(clients) - place - 1, seen
            assert len(seen["past"]) == place, seen
            if client is clients[-1]:
                run.log.write("taken", lock=run.lock)
                other = lookers[OLD if order[-1] == NEW else NEW]
                assert other.ask("tests.faults.work:force", lock=run.lock, token=token) == 1
                run.fault("forced by the other release")
                client.wait_for("lost")
            elif run.random.random() < 0.5:
                client.kill()
            else:
                run.free()
                client.ask("release", lock=run.lock)
        assert len(looks(lookers, run.lock)["past"]) == len(clients)

    setting.each(body, lanes=4)


def looks(lookers: dict[str, Client], lock: str) -> dict[str, Any]:
    """Check that both releases describe the lock in the same way, and return the description."""
    one, other = (each.ask("tests.faults.work:tell", lock=lock) for each in lookers.values())
    assert one == other
    return dict(one)


# Rolling upgrade


PART = {"kind": "semaphore", "limit": 2, "writes": False}
READ = {"kind": "read_lock", "writes": False}
MIXED: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"kind": "lock"},) * 4,
    (PART, PART, PART, PART | {"weight": 2}),
    (READ, READ, READ, {"kind": "write_lock"}),
)
"""The locks that the four processes of a run use."""

PLAN = (0, NEW), (1, NEW), (0, OLD), (2, NEW), (3, NEW), (0, NEW)
"""The process to replace and the new release, at each step: half of an upgrade, a step back, and
the rest of the upgrade."""


@scenario(
    17,
    "A rolling upgrade from an earlier commit, with a rollback",
    runs=24,
    short=2,
    faults=len(PLAN),
    operations=4 * (len(PLAN) + 1),
    free_within=until_free(LEASE),
)
def upgrade(setting: Setting) -> None:
    """Four processes of the previous release use one lock. One after another ends or is killed,
    and a process of this release replaces it."""
    node, releases = setting.node(), Releases(setting)

    def body(run: Run) -> None:
        kinds = run.random.sample(run.random.choice(MIXED), 4)
        slots = [Slot(run, releases, node, place, kind) for place, kind in enumerate(kinds)]
        for slot in slots:
            slot.start(OLD)
        all_hold(slots)
        for number, (place, release) in enumerate(PLAN):
            slots[place].end(while_it_holds=number == 0)  # others need no lock
            slots[place].start(release)
            all_hold(slots)
        for slot in slots:
            slot.finish()

    setting.each(body, lanes=4)


def all_hold(slots: Iterable["Slot"]) -> None:
    after = now()
    for slot in slots:
        slot.client.wait_for("held", after=after)


@dataclass
class Slot:
    """A place for one process, which is replaced by others."""

    run: Run
    releases: Releases
    node: Node
    place: int
    options: dict[str, Any]
    number: int = 0

    def start(self, release: str) -> None:
        self.number += 1
        who = f"{self.place}, {self.number}"
        self.client = self.releases.client(self.run, release, who, self.node)
        arguments = {"timeout": LEASE, "work": (0, 0.2), **self.options}
        self.client.start("loop", lock=self.run.lock, **arguments)

    def end(self, *, while_it_holds: bool) -> None:
        """Kill the process while it holds the lock; otherwise end it at a random point, by SIGKILL
        or after its current use of the lock."""
        if while_it_holds:
            self.client.catch("held", "checked", "kept")
            self.client.kill()
        elif self.run.random.random() < 0.5:
            self.run.moment(0.2)
            self.client.kill()
        else:
            self.finish()
            self.run.fault("replaced")

    def finish(self) -> None:
        assert isinstance(self.client.finish(), int)
