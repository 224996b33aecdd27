"""Failovers: those who use locks while a server is replaced, replicas that are behind, and what
became of the locks.

No replica is asked, because it could get or lose a lock a moment before. The harness holds back
what replicas are sent, for so long that a lease that counts any sooner cannot be on one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, count
from statistics import median
from typing import Any, TypeVar

from django_redislock.clock import now
from tests.tools import wait_until

from .checker import Findings, check
from .crew import KEYS, Client
from .events import Event, read
from .scenario import Run, Setting, Shared

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


T = TypeVar("T")

AT_ONCE = 0.5
"""Seconds that it may take, on a busy machine, to tell a holder what its own clock says."""

ENOUGH = 4
"""Times that replicas were behind in which locks surely counted that no replica had, unless they
have to wait for one: else nothing is proved where they do."""


ROUNDING = 0.001
"""Seconds. When a lease was asked for is known from its end, and servers count in milliseconds."""


@contextmanager
def behind(run: Run, seconds: float, *, clients: Sequence[str] = ()) -> Iterator[None]:
    """What is asked meanwhile (by these clients, if any are named) reaches no replica before so
    many seconds are over; `math.inf`: before this is left."""
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
    """When replicas were behind."""
    return [event for event in events if event["what"] == "behind" and event["seconds"]]


def on_no_replica(events: Sequence[Event]) -> Iterator[str]:
    """The leases, of acquisitions and of renewals, that counted before a replica had them."""
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
    """Run `body` in each run, with a deployment that no other run uses at that time."""
    lanes = min(lanes, setting.runs)
    deployments = Shared(make() for _ in range(lanes))

    def with_one(run: Run) -> None:
        with deployments.one() as there:
            body(run, there)

    setting.each(with_one, lanes=lanes)
    for there in deployments.every:
        end(setting, there)
    tell(setting, min_replicas)


def end(setting: Setting, there: Any) -> None:
    """Nothing may be left on the primaries."""
    there.wait_in_sync()
    setting.nodes += there.owners()


def tell(setting: Setting, min_replicas: int = 0) -> None:
    """AssertionError if a loser knew too late, or a lock counted that was not on as many replicas
    as it had to be."""
    events = read(setting.folder)
    found, lags, too_early = check(events), times(events), list(on_no_replica(events))
    setting.notes += [*_about_losses(found), *_about_overlaps(found)]
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
    _none(too_late(found), "knew too late")
    if min_replicas:
        _none(too_early, "counted, and on no replica")
    elif len(lags) >= ENOUGH:
        assert too_early, "no replica was behind"


def _none(particulars: Iterable[str], what: str) -> None:
    found = list(particulars)
    assert not found, f"{len(found)} {what}: {'; '.join(found[:3])}"


def too_late(found: Findings) -> Iterator[str]:
    """Holders that believed in a lease that had ended on their own clock, or that were told later
    than what their own clock says."""
    for hold in found.holds:
        if hold.looked > hold.deadline:
            yield f"{hold.lock}: {hold} took it for held at {hold.looked:.4f}"
    for late in found.told_after:
        if late > AT_ONCE:
            yield f"one was told {late:.2f} s after the end of its lease"


def _about_losses(found: Findings) -> Iterator[str]:
    """Of the locks that were held, or granted, in a run when a fault struck it."""
    lost = [
        (hold.until - fault["t"], hold.until >= hold.deadline)
        for fault in found.faults
        for hold in found.holds
        if hold.lock == fault.get("lock") or hold.lock.startswith(f"{fault.get('lock')} kept")
        if hold.lost and hold.asked <= fault["t"] < hold.lost
    ]
    told, by_itself = sorted(seconds for seconds, _ in lost), sum(own for _, own in lost)
    if told:
        yield (
            f"{len(told)} locks were lost; their holders knew after {median(told):.1f} s "
            f"(median) or {told[-1]:.1f} s (maximum), {len(told) - by_itself} of them before "
            f"the lease expired and {by_itself} when it expired by their own clock"
        )


def _about_overlaps(found: Findings) -> Iterator[str]:
    lasted = [
        min(one.until, other.until) - max(one.began, other.began)
        for lock in {hold.lock for hold in found.holds}
        for one, other in combinations([hold for hold in found.holds if hold.lock == lock], 2)
    ]
    lasted = sorted(seconds for seconds in lasted if seconds > 0)
    if lasted:
        yield f"overlaps lasted {median(lasted):.2f} s (median) or {lasted[-1]:.2f} s (maximum)"
