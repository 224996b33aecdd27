"""A server that granted the lock restarts without its data."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.test import override_settings
from redis import Redis, RedisError

from django_redislock import LockError, locks
from django_redislock.fencing import fenced
from django_redislock.testing import EmbeddedServer
from testproject.gallery.actors import Actor, ActorServer
from testproject.gallery.exhibit import Exhibit, Outcome, total
from testproject.gallery.lock_pairs import TaughtLock
from testproject.gallery.models import Invoice
from testproject.gallery.rows import clerk_of
from testproject.gallery.trial import ActorFactory, Trial, require

from .fixed_lease import RELEASE

NOBODY = "redis://127.0.0.1:1/0"
"""The address of a server that is unreachable."""

AT_ONCE = 10
BOTH = "trials in which both held a majority"


class Redlock(TaughtLock):
    def __init__(self, name: str, lease: float, urls: Sequence[str]) -> None:
        super().__init__(name, lease)
        self.clients: list[Any] = [Redis.from_url(url) for url in urls]

    def acquire(self) -> bool:
        began = time.monotonic()
        granted = sum(map(self._ask, self.clients))
        if granted > len(self.clients) // 2 and time.monotonic() - began < self.lease:
            return True
        self.release()
        return False

    def _ask(self, client: Any) -> bool:
        try:
            return bool(client.set(self.name, self.token, nx=True, px=self.lease_ms))
        except RedisError:
            return False

    def release(self) -> None:
        for client in self.clients:
            try:
                client.eval(RELEASE, 1, self.name, self.token)
            except RedisError:
                continue  # the lock expires there

    def write(self, pk: int, state: str) -> None:
        Invoice.objects.filter(pk=pk).update(state=state)


class OurQuorum:
    def __init__(self, name: str, lease: float, urls: Sequence[str]) -> None:
        aliases = {f"server{number}": url for number, url in enumerate(urls)}
        backend = settings.CACHES["default"]
        caches = {alias: {**backend, "LOCATION": url} for alias, url in aliases.items()}
        override_settings(CACHES=settings.CACHES | caches).enable()
        self.lock = locks.quorum(name, using=aliases, timeout=lease, blocking=False)

    def acquire(self) -> bool:
        return self.lock.acquire()

    def write(self, pk: int, state: str) -> None:
        try:
            fenced(Invoice.objects.filter(pk=pk), self.lock).update(state=state)
        except LockError:  # the lock was lost, or a later holder has written the row
            return


@dataclass(frozen=True)
class Site:
    servers: Sequence[EmbeddedServer]
    clerk: Actor


@contextmanager
def site(actor_server: ActorServer) -> Iterator[Site]:
    with ExitStack() as stack, clerk_of(actor_server) as clerk:
        servers = [stack.enter_context(EmbeddedServer()) for _ in range(3)]
        yield Site(servers, clerk)


def run_trials(site: Site, lock: ActorFactory, trials: int) -> list[Outcome]:
    """Run several trials around each restart, each with its own lock."""
    outcomes: list[Outcome] = []
    while (left := trials - len(outcomes)) > 0:
        outcomes += _around_a_restart(site, lock, min(left, AT_ONCE))
    return outcomes


def _around_a_restart(site: Site, lock: ActorFactory, trials: int) -> list[Outcome]:
    urls = [server.url for server in site.servers]
    with ExitStack() as stack:
        open_trials = [stack.enter_context(Trial(site.clerk.actor_server)) for _ in range(trials)]
        firsts = [trial.actor(lock, [*urls[:2], NOBODY]) for trial in open_trials]
        seconds = [trial.actor(lock, urls) for trial in open_trials]
        for first in firsts:
            require(first.do("acquire"), "two servers of three granted it")
        _restart_empty(site.servers[0])
        for second in seconds:
            second.begin("acquire")
        return [_write(site.clerk, *two) for two in zip(firsts, seconds, strict=True)]


def _write(clerk: Actor, first: Actor, second: Actor) -> Outcome:
    both, invoice = second.end(), clerk.do("new")
    second.do("write", invoice, "second")
    first.do("write", invoice, "first")
    is_stale = both and clerk.do("state", invoice) == "first"
    return Outcome(failed=is_stale, figures={BOTH: both})


def _restart_empty(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    server.start()


EXHIBIT = Exhibit(
    name="redlock",
    title="Redlock, and a server that restarts empty",
    algorithm="Two of three independent servers must grant the lock.",
    failure="a server forgot the lock and granted it again; the first holder then wrote last",
    taught=Redlock,
    ours=OurQuorum,
    run_trials=run_trials,
    figures={BOTH: total},
    setting=site,
)
