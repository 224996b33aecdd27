"""Prometheus metrics, through ``prometheus_client``.

>>> from django_redislock import metrics
>>> metrics.install()

Call `install()` in `AppConfig.ready`. Install ``django-redislock[prometheus]`` to get
``prometheus_client``.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from threading import RLock
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from django.core.cache import caches
from django.dispatch import Signal

from . import signals
from .backends import servers, supports_locks, unsupported_message
from .conf import conf
from .engine import history, queries
from .engine.operations import Batch, Call, Op, changed
from .engine.runners import run
from .lock_state import STATES, state_of
from .names import short_repr
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

logger = logging.getLogger("django_redislock")

Labels: TypeAlias = Mapping[str, Callable[[str], object]]
Values: TypeAlias = tuple[str, ...]

SCRAPE_TIMEOUT_SECONDS = 2.0
"""A server that does not reply in this time counts as down."""

RECENT_MINUTES = 10
"""The window of ``redislock_server_recent_events``. It includes the current minute."""

MAX_LOCKS_READ = 1000
"""How many locks a scrape reads to find out their states."""

UNREAD = "unread"
"""The value of the label ``state`` that counts all other locks."""

LOCK = ("using", "kind")
"""The labels of the metrics of an acquisition."""

METRICS: dict[str, tuple[Any, Values, str]] = {
    "held_locks": (Gauge, LOCK, "Locks held by this process."),
    "waiters": (Gauge, LOCK, "Acquisitions of this process that wait for a lock."),
    "acquired_total": (Counter, LOCK, "Locks acquired by this process."),
    "refused_total": (Counter, LOCK, "Acquisitions that were not granted in time."),
    "failed_total": (Counter, LOCK, "Acquisitions that ended with an error."),
    "lost_total": (Counter, LOCK, "Locks lost while their holder was running."),
    "wait_seconds": (Histogram, LOCK, "Seconds from the call to a successful acquisition."),
    "hold_seconds": (Histogram, LOCK, "Seconds from the acquisition of a lock to its release."),
    "force_released_total": (Counter, ("using",), "Holders force-released by this process."),
    "tasks_skipped_total": (Counter, ("task",), "Tasks that were skipped because of a duplicate."),
}
"""The metrics of this process: the type, the labels and the help text."""

OPTIONS: dict[str, dict[str, Any]] = {
    # "livesum", because a dead process holds no locks and waits for none.
    "held_locks": {"multiprocess_mode": "livesum"},
    "waiters": {"multiprocess_mode": "livesum"},
    "wait_seconds": {"buckets": (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)},
    "hold_seconds": {"buckets": (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)},
}

GAUGES = {signals.lock_waiting: "waiters", signals.lock_acquired: "held_locks"}
"""The gauge that an acquisition counts in after a signal. After other signals it is in none."""

COUNTERS = {
    signals.lock_acquired: "acquired_total",
    signals.lock_refused: "refused_total",
    signals.lock_failed: "failed_total",
    signals.lock_lost: "lost_total",
}

_installed: "WeakKeyDictionary[CollectorRegistry, _ProcessMetrics]" = WeakKeyDictionary()


def install(
    *,
    registry: CollectorRegistry = REGISTRY,
    using: Iterable[str] | None = None,
    labels: Labels | None = None,
) -> None:
    """Create the metrics in a registry. A second call with the same registry does nothing.

    Args:
        registry: The registry that is exposed.
        using: The cache aliases whose servers are asked at each scrape. None means
            ``REDISLOCK_CACHE``. An empty list means no server.
        labels: Additional labels, each with a function that returns the label's value for a lock's
            name: ``{"area": lambda name: name.partition(":")[0]}``. The function must return few
            different values, because Prometheus stores a time series for each. If it raises, the
            exception is logged, and the label is empty.

    Raises:
        ValueError: A cache alias does not exist or cannot store locks, or a label's name is not
            valid or is in use.
    """
    for name, label in (labels or {}).items():
        if name in ("using", "kind", "task", "le"):
            raise ValueError(f"labels must not contain {name!r}, which the metrics have already")
        if name.startswith("__") or not (name.isascii() and name.isidentifier()):
            raise ValueError(f"labels has {name!r}, which Prometheus does not accept as a name")
        if not callable(label):
            raise ValueError(f"labels has {label!r} for {name!r}, which is not a function")
    if registry not in _installed:
        metrics = _ProcessMetrics(labels or {})
        registry.register(Servers(using))
        registry.register(metrics)
        _installed[registry] = metrics


class Servers(Collector):
    """A collector that asks servers at each scrape what they count for all processes.

    `install()` registers one. In the multiprocess mode of ``prometheus_client``, the registry is
    created again for each scrape, so register one there:

    >>> registry.register(metrics.Servers())

    Args:
        using: The cache aliases. None means ``REDISLOCK_CACHE``.
    """

    def __init__(self, using: Iterable[str] | None = None) -> None:
        self.using = None if using is None else tuple(dict.fromkeys(using))
        for alias in self.using or ():
            if alias not in caches.settings:
                raise ValueError(f"using must be a list of cache aliases, got {short_repr(alias)}")
            if not supports_locks(alias):
                raise ValueError(f"using: {unsupported_message(alias)}")

    def describe(self) -> tuple[GaugeMetricFamily, ...]:
        up = "1 if the server answered the last scrape, 0 if not."
        locks = "Locks of all processes on the server, by state."
        recent = f"Events of all processes in the last {RECENT_MINUTES} minutes."
        return (
            GaugeMetricFamily("redislock_server_up", up, labels=["using"]),
            GaugeMetricFamily("redislock_server_locks", locks, labels=["using", "state"]),
            GaugeMetricFamily("redislock_server_recent_events", recent, labels=["using", "event"]),
        )

    def collect(self) -> Iterable[Metric]:
        up, locks, recent = self.describe()
        for alias in (conf.cache,) if self.using is None else self.using:
            try:
                server = servers[alias]
                flow = queries.page(server.keys, None, 0, MAX_LOCKS_READ)
                page = run(server.client, changed(flow, _limited))
                rates = run(server.client, changed(history.rates(server.keys), _limited))
            except Exception as error:  # The scrape of the other metrics must continue.
                reason = error_text(error)
                logger.warning("Locks not counted: using=%r error=%s", alias, reason)
                up.add_metric([alias], 0)
                continue
            up.add_metric([alias], 1)
            states = [state_of(info).code for info in page.infos]
            for code in STATES:
                locks.add_metric([alias, code], states.count(code))
            locks.add_metric([alias, UNREAD], max(0, page.total - len(states)))
            if conf.history:  # Otherwise the server counts no events.
                for event, counts in rates.counts.items():
                    recent.add_metric([alias, event], sum(counts[-RECENT_MINUTES:]))
        return up, locks, recent


def _limited(op: Op) -> Op:
    return replace(op, limit=SCRAPE_TIMEOUT_SECONDS) if isinstance(op, Batch | Call) else op


class _ProcessMetrics(Collector):
    """The metrics of this process, which count signals. They live as long as their registry."""

    def __init__(self, labels: Labels) -> None:
        self._labels = dict(labels)
        # Without the registry: a value of `_installed` that refers to its key is never deleted.
        self._families: dict[str, Any] = {
            name: kind(
                name, about, (*own, *labels), "redislock", registry=None, **OPTIONS.get(name, {})
            )
            for name, (kind, own, about) in METRICS.items()
        }
        self._lock = RLock()
        # Weak references, because a lock object that no longer exists sends no signal.
        self._acquisitions: WeakKeyDictionary[object, Values] = WeakKeyDictionary()
        self._live: dict[Any, WeakSet[object]] = {}  # by the gauge
        self._by_values: dict[Values, dict[str, Any]] = {}
        for signal in signals.LOCK_SIGNALS:
            signal.connect(self._on_acquisition)
        signals.lock_force_released.connect(self._on_force_released)
        signals.task_skipped.connect(self._on_task_skipped)

    def collect(self) -> list[Metric]:
        with self._lock:
            for gauge, acquisitions in self._live.items():
                gauge.set(len(acquisitions))
        return [metric for family in self._families.values() for metric in family.collect()]

    describe = collect

    def forget(self) -> None:
        """Forget all acquisitions, because a forked process holds no locks yet."""
        self._lock = RLock()
        self._acquisitions.clear()
        self._live.update((gauge, WeakSet()) for gauge in self._live)

    def _on_acquisition(self, signal: Signal, acquisition: object, **about: Any) -> None:
        if acquisition is None:  # It began before this receiver was connected.
            return
        values = self._acquisitions.get(acquisition)
        if values is None:
            values = about["using"], about["kind"], *self._own_values(about["name"])
            self._acquisitions[acquisition] = values
        with self._lock:
            metrics = self._by_values.get(values)
            if metrics is None:
                # All start at 0, because Prometheus sees no increase of a series that is new.
                names = [name for name, (_, own, _) in METRICS.items() if own is LOCK]
                metrics = {name: self._families[name].labels(*values) for name in names}
                self._live.update((metrics[name], WeakSet()) for name in GAUGES.values())
                self._by_values[values] = metrics
            for name in GAUGES.values():
                acquisitions = self._live[metrics[name]]
                change = acquisitions.add if GAUGES.get(signal) == name else acquisitions.discard
                change(acquisition)
                metrics[name].set(len(acquisitions))
        if signal in COUNTERS:
            metrics[COUNTERS[signal]].inc()
        if signal is signals.lock_acquired:
            metrics["wait_seconds"].observe(about["waited"])
        elif signal is signals.lock_released:
            metrics["hold_seconds"].observe(about["held"])

    def _on_force_released(self, using: str, name: str, tokens: Values, **about: Any) -> None:
        values = using, *self._own_values(name)
        self._families["force_released_total"].labels(*values).inc(len(tokens))

    def _on_task_skipped(self, sender: Any, name: str, **about: Any) -> None:
        task = getattr(sender, "name", None) or f"{sender.__module__}.{sender.__qualname__}"
        self._families["tasks_skipped_total"].labels(task, *self._own_values(name)).inc()

    def _own_values(self, name: str) -> Values:
        values = []
        for label, make in self._labels.items():
            try:
                value = str(make(name))
            except Exception:
                logger.exception("Metric label function failed: label=%s name=%r", label, name)
                value = ""
            values.append(value.encode(errors="replace").decode())  # else it breaks the scrape
        return tuple(values)


def _forget() -> None:
    for metrics in _installed.values():
        metrics.forget()


os.register_at_fork(after_in_child=_forget)
