"""Those who use locks while a server is replaced: some take turns, and one keeps a lock that
others wait for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from django_redislock.clock import now
from tests.tools import wait_until

from .crew import KEYS, Client
from .scenario import Run

LEASES = 1.5, 6.0

WORK = 0.0, 0.02
REST = 0.0, 0.05  # seconds that those who take turns hold a lock, and let it be

SETTLED_WITHIN = 40.0  # seconds within which everybody has to get a turn, whatever happens

IN_TURNS = "first", "second", "asyncio"


class Users:
    """`make` makes a client by what it is to do."""

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

    def go_on(self) -> None:
        """Return when all of them use locks, and the keeper keeps its."""
        since = now()
        self._keeper.start("tests.faults.work:keep", lock=self._kept, **self._options)
        _wait_for(self._keeper, "held", since)
        for waiter in self._waiters:
            _wait_for(waiter, "queued", since)
        for client in self._in_turns:
            _wait_for(client, "released", since)

    def let_go(self) -> bool:
        """Have the keeper let go, as soon as it knows whether it still holds, and tell whether it
        did; return when those that waited for that had their turn."""
        since = now()
        wait_until(lambda: self._keeper_knows(since), timeout=SETTLED_WITHIN, interval=0.01)
        kept = self._keeper.finish() == "released"
        for waiter in self._waiters:
            _wait_for(waiter, "released", since)
        return kept

    def live_through(self, strike: Callable[[], object]) -> bool:
        """Whether the keeper kept its lock."""
        self.go_on()
        self._run.moment(0.5)
        strike()
        return self.let_go()

    def _keeper_knows(self, since: float) -> bool:
        renewed = self._keeper.last("kept")
        return self._keeper.has_answered() or bool(renewed and renewed["t"] > since)


def _wait_for(client: Client, what: str, since: float) -> None:
    def has_done() -> bool:
        event = client.last(what)
        return bool(event and event["t"] > since)

    wait_until(has_done, timeout=SETTLED_WITHIN, interval=0.01)


def kept(run: Run) -> str:
    """The lock that is kept: of the same bucket as the run's, and so of the same slot."""
    names = (f"{run.lock} kept {number}" for number in count())
    return next(name for name in names if KEYS.of(name).bucket == KEYS.of(run.lock).bucket)


@contextmanager
def replacing(run: Run, kind: str, *, may_lose: bool = True, **facts: object) -> Iterator[None]:
    """A fault, and the time in which whoever holds a lock of this run may come to lose it."""
    fault = run.fault(kind, **facts)
    run.free()
    try:
        yield
    finally:
        for lock in (run.lock, kept(run)) if may_lose else ():
            run.log.write("taken", lock=lock, since=fault["t"])
