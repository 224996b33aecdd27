"""Replicas that are behind their primary: what counted meanwhile, although none of them had it.

No replica is asked: it could get or lose a lock a moment before. The harness holds back what
replicas are sent, for so long that a lease that counts any sooner can't be on one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django_redislock.clock import now

from .events import Event
from .scenario import Run
from .users import kept

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
