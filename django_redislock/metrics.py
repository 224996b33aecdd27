"""Prometheus metrics, through ``prometheus_client``.

>>> from django_redislock import metrics
>>> metrics.install()

Call `install()` in `AppConfig.ready`. Install ``django-redislock[prometheus]`` to get
``prometheus_client``.
"""

import inspect
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from threading import RLock
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

from django.core.cache import caches
from django.dispatch import Signal

from . import signals
from .backends import servers, supports_locks, unsupported_message
from .engine import queries
from .engine.operations import Batch, Flow
from .engine.runners import run
from .manager import locks
from .text import error_text

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "django_redislock.metrics needs prometheus_client: "
        "pip install 'django-redislock[prometheus]'"
    ) from error

T = TypeVar("T")

logger = logging.getLogger("django_redislock")

Labels: TypeAlias = Mapping[str, Callable[[str], object]]
Values: TypeAlias = tuple[str, ...]

WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
HOLD_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)

PATIENCE = 2.0
"""Seconds after which a server that does not respond counts as down."""

OWN_LABELS = ("using", "kind", "task", "le", "pid")
LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


def install(
    *,
    registry: CollectorRegistry = REGISTRY,
    using: Iterable[str] | None = None,
    labels: Labels | None = None,
) -> None:
    """Create the metrics in a registry. A second call with the same arguments does nothing.

    Args:
        registry: The registry that is exposed.
        using: The cache aliases whose servers are asked at each scrape how many locks are held.
            None means ``REDISLOCK_CACHE``. An empty list means no server.
        labels: Additional labels, each with a function that returns the label's value for a lock's
            name: ``{"area": lambda name: name.partition(":")[0]}``. The function must return few
            different values, because Prometheus stores a time series for each. If it raises, the
            exception is logged, and the label is empty.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has an invalid value, or the registry has the metrics with other
            arguments.
    """
    if not isinstance(registry, CollectorRegistry):
        raise TypeError(f"registry must be a CollectorRegistry, got {registry!r}")
    aliases, labels = _aliases(using), _labels(labels)
    with _installing:
        found = _installed.get(registry, _nobody)()
        if found is None:
            _installed[registry] = ref(_Metrics(registry, aliases, labels))
        elif (found.using, found.labels) != (aliases, labels):
            raise ValueError(
                f"registry already has the lock metrics, with using={found.using!r} "
                f"and labels={found.labels!r}; got using={aliases!r} and labels={labels!r}"
            )


def _nobody() -> None:
    return None


_installing = RLock()
_installed: "WeakKeyDictionary[CollectorRegistry, ref[_Metrics]]" = WeakKeyDictionary()


class Servers(Collector):
    """A collector that asks servers at each scrape how many locks are held.

    `install()` registers one. In the multiprocess mode of ``prometheus_client``, the registry is
    created again for each scrape, so register one there:

    >>> registry.register(metrics.Servers())

    Args:
        using: The cache aliases. None means ``REDISLOCK_CACHE``.
    """

    def __init__(self, using: Iterable[str] | None = None) -> None:
        self.using = _aliases(using)

    def describe(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        up = GaugeMetricFamily(
            "redislock_server_up",
            "1 if the server answered the last scrape, 0 if not.",
            labels=["using"],
        )
        held = GaugeMetricFamily(
            "redislock_server_held_locks",
            "Locks held on the server by any process.",
            labels=["using"],
        )
        return up, held

    def collect(self) -> Iterable[Metric]:
        up, held = self.describe()
        for alias in (locks.alias,) if self.using is None else self.using:
            count = _count(alias)
            up.add_metric([alias], count is not None)
            if count is not None:
                held.add_metric([alias], count)
        return up, held


def _count(alias: str) -> int | None:
    """Return how many locks are held, or None if the server does not say."""
    try:
        found = servers[alias]
        return run(found.client, _soon(queries.count(found.keys)))
    except Exception as error:  # The scrape of the other metrics must continue.
        logger.warning("Held locks not counted: using=%r error=%s", alias, error_text(error))
        return None


def _soon(flow: Flow[T]) -> Flow[T]:
    """Return the same flow with a limit of `PATIENCE` seconds for each reply."""
    answer = None
    while True:
        try:
            op = flow.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer = yield replace(op, limit=PATIENCE) if isinstance(op, Batch) else op


class _Metrics(Servers):
    """Counts signals. Only its registry has a reference to it."""

    def __init__(
        self, registry: CollectorRegistry, using: Values | None, labels: dict[str, Any]
    ) -> None:
        super().__init__(using)
        self.labels = labels
        registry.register(self)  # First, because its collect() updates the gauges.
        self._families = _Families(registry, tuple(labels))
        self._by_values: dict[Values, _Series] = {}
        self._by_acquisition: WeakKeyDictionary[object, _Series] = WeakKeyDictionary()
        for signal, listener in self._listeners():
            signal.connect(listener)

    def collect(self) -> Iterable[Metric]:
        for series in list(self._by_values.values()):
            series.held.show()
            series.waiters.show()
        return super().collect()

    def forget(self) -> None:
        """Forget all acquisitions, because a forked process holds no locks yet."""
        self._by_acquisition.clear()
        for series in self._by_values.values():
            series.held.forget()
            series.waiters.forget()

    def _listeners(self) -> Iterator[tuple[Signal, Callable[..., None]]]:
        yield signals.lock_waiting, self._waiting
        yield signals.lock_acquired, self._acquired
        yield signals.lock_refused, self._refused
        yield signals.lock_failed, self._failed
        yield signals.lock_released, self._released
        yield signals.lock_lost, self._lost
        yield signals.lock_force_released, self._force_released
        yield signals.task_skipped, self._task_skipped

    def _waiting(self, acquisition: object, **about: Any) -> None:
        self._series(acquisition, about).waiters.add(acquisition)

    def _acquired(self, acquisition: object, waited: float, **about: Any) -> None:
        series = self._series(acquisition, about)
        series.waiters.discard(acquisition)
        series.held.add(acquisition)
        series.acquired.inc()
        series.wait_seconds.observe(waited)

    def _refused(self, acquisition: object, **about: Any) -> None:
        series = self._series(acquisition, about)
        series.waiters.discard(acquisition)
        series.refused.inc()

    def _failed(self, acquisition: object, **about: Any) -> None:
        series = self._series(acquisition, about)
        series.waiters.discard(acquisition)
        series.failed.inc()

    def _released(self, acquisition: object, held: float, **about: Any) -> None:
        series = self._series(acquisition, about)
        series.held.discard(acquisition)
        series.hold_seconds.observe(held)

    def _lost(self, acquisition: object, **about: Any) -> None:
        if acquisition is None:  # It has no acquisition of its own.
            return
        series = self._series(acquisition, about)
        series.held.discard(acquisition)
        series.lost.inc()

    def _force_released(self, using: str, name: str, tokens: Values, **about: Any) -> None:
        self._families.force_released.labels(using, *self._more(name)).inc(len(tokens))

    def _task_skipped(self, sender: Any, name: str, **about: Any) -> None:
        task = getattr(sender, "name", None) or f"{sender.__module__}.{sender.__qualname__}"
        self._families.skipped.labels(task, *self._more(name)).inc()

    def _series(self, acquisition: object, about: Mapping[str, Any]) -> "_Series":
        series = self._by_acquisition.get(acquisition)
        if series is None:
            values = about["using"], about["kind"], *self._more(about["name"])
            series = self._by_values.get(values) or self._by_values.setdefault(
                values, _Series(self._families, values)
            )
            self._by_acquisition[acquisition] = series
        return series

    def _more(self, name: str) -> Values:
        return tuple(_value(label, make, name) for label, make in self.labels.items())


class _Families:
    """The metrics without the values of their labels."""

    def __init__(self, registry: CollectorRegistry, more: Values) -> None:
        labels = ("using", "kind", *more)

        def counter(name: str, about: str, labels: Values = labels) -> Counter:
            return Counter(f"redislock_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str) -> Gauge:
            # A dead process holds no locks and waits for none.
            return Gauge(
                f"redislock_{name}", about, labels, registry=registry, multiprocess_mode="livesum"
            )

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"redislock_{name}", about, labels, registry=registry, buckets=buckets
            )

        self.held = gauge("held_locks", "Locks held by this process.")
        self.waiters = gauge("waiters", "Acquisitions of this process that wait for a lock.")
        self.acquired = counter("acquired_total", "Locks acquired by this process.")
        self.refused = counter("refused_total", "Acquisitions that were not granted in time.")
        self.failed = counter("failed_total", "Acquisitions that ended with an error.")
        self.lost = counter(
            "lost_total",
            "Locks lost while their holder was running. Killed holders are not counted.",
        )
        self.wait_seconds = histogram(
            "wait_seconds",
            "Seconds from the call to a successful acquisition.",
            WAIT_BUCKETS,
        )
        self.hold_seconds = histogram(
            "hold_seconds", "Seconds from the acquisition of a lock to its release.", HOLD_BUCKETS
        )
        self.force_released = counter(
            "force_released_total",
            "Holders whose lock this process force-released.",
            ("using", *more),
        )
        self.skipped = counter(
            "tasks_skipped_total",
            "Tasks that were skipped because another instance was running or queued.",
            ("task", *more),
        )


class _Series:
    """The metrics for one combination of label values. All of them start at 0 together, because
    Prometheus does not see an increase of a time series that did not exist before."""

    def __init__(self, families: _Families, values: Values) -> None:
        self.held = _Present(families.held.labels(*values))
        self.waiters = _Present(families.waiters.labels(*values))
        self.acquired = families.acquired.labels(*values)
        self.refused = families.refused.labels(*values)
        self.failed = families.failed.labels(*values)
        self.lost = families.lost.labels(*values)
        self.wait_seconds = families.wait_seconds.labels(*values)
        self.hold_seconds = families.hold_seconds.labels(*values)


class _Present:
    """The acquisitions of a gauge. The references are weak, because a lock object that no longer
    exists sends no signal."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self.forget()

    def forget(self) -> None:
        self._lock = RLock()
        self._there: WeakSet[object] = WeakSet()

    def add(self, acquisition: object) -> None:
        with self._lock:
            self._there.add(acquisition)
            self.show()

    def discard(self, acquisition: object) -> None:
        with self._lock:
            if acquisition in self._there:
                self._there.discard(acquisition)
                self.show()

    def show(self) -> None:
        with self._lock:
            self._gauge.set(len(self._there))


def _value(label: str, make: Callable[[str], object], name: str) -> str:
    try:
        value = str(make(name))
    except Exception:
        logger.exception("Metric label function failed: label=%s name=%r", label, name)
        return ""
    return value.encode(errors="replace").decode()  # Invalid UTF-8 would break the scrape.


def _aliases(using: object) -> Values | None:
    if using is None:
        return None
    if isinstance(using, str) or not isinstance(using, Iterable):
        raise TypeError(f"using must be a list of cache aliases, got {using!r}")
    aliases = tuple(dict.fromkeys(using))
    for alias in aliases:
        if alias not in caches.settings:
            raise ValueError(f"using must be a list of cache aliases, got {alias!r}")
        if not supports_locks(alias):
            raise ValueError(f"using: {unsupported_message(alias)}")
    return aliases


def _labels(labels: object) -> dict[str, Callable[[str], object]]:
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        raise TypeError(f"labels must be a mapping of names to callables, got {labels!r}")
    for name, make in labels.items():
        if not isinstance(name, str) or not LABEL.fullmatch(name) or name in OWN_LABELS:
            raise ValueError(f"labels must have valid names that are not reserved, got {name!r}")
        if not callable(make) or inspect.iscoroutinefunction(make):
            raise TypeError(f"labels[{name!r}] must be a synchronous function, got {make!r}")
    return dict(labels)


def _forget() -> None:
    for metrics in [found for each in _installed.values() if (found := each())]:
        metrics.forget()


os.register_at_fork(after_in_child=_forget)
