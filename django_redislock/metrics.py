"""Prometheus metrics, through ``prometheus_client``.

>>> from django_redislock import metrics
>>> metrics.install()

Call `install()` in `AppConfig.ready`. Install ``django-redislock[prometheus]`` to get
``prometheus_client``.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from threading import RLock
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

from django.core.cache import caches
from django.dispatch import Signal

from . import signals
from .backends import Server, servers, supports_locks, unsupported_message
from .conf import conf
from .engine import history, queries
from .engine.operations import Batch, Call, Flow, Op, changed
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

logger = logging.getLogger("django_redislock")

T = TypeVar("T")
Labels: TypeAlias = Mapping[str, Callable[[str], object]]
Values: TypeAlias = tuple[str, ...]

REPLY_TIMEOUT_SECONDS = 2.0
"""A server that does not reply in this time counts as down."""

LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

RECENT_MINUTES = 10
"""The window of ``redislock_server_recent_events``. It includes the current minute."""

# "livesum", because a dead process holds no locks and waits for none.
PER_LOCK: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "held_locks": (Gauge, "Locks held by this process.", {"multiprocess_mode": "livesum"}),
    "waiters": (
        Gauge,
        "Acquisitions of this process that wait for a lock.",
        {"multiprocess_mode": "livesum"},
    ),
    "acquired_total": (Counter, "Locks acquired by this process.", {}),
    "refused_total": (Counter, "Acquisitions that were not granted in time.", {}),
    "failed_total": (Counter, "Acquisitions that ended with an error.", {}),
    "lost_total": (Counter, "Locks lost while their holder was running.", {}),
    "wait_seconds": (
        Histogram,
        "Seconds from the call to a successful acquisition.",
        {"buckets": (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)},
    ),
    "hold_seconds": (
        Histogram,
        "Seconds from the acquisition of a lock to its release.",
        {"buckets": (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)},
    ),
}
"""The metrics with the labels of a lock: the type, the help text and further arguments."""

COUNTED = {
    signals.lock_acquired: "acquired_total",
    signals.lock_refused: "refused_total",
    signals.lock_failed: "failed_total",
    signals.lock_lost: "lost_total",
}


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
        if not LABEL_NAME.fullmatch(name):
            raise ValueError(f"labels has {name!r}, which Prometheus does not accept as a name")
        if not callable(label):
            raise ValueError(f"labels has {label!r} for {name!r}, which is not a function")
    with _installing:
        if all(each.registry() is not registry for each in _installed):
            _installed.add(_Metrics(registry, using, labels or {}))


_installing = RLock()
_installed: "WeakSet[_Metrics]" = WeakSet()


class Servers(Collector):
    """A collector that asks servers at each scrape what they count for all processes.

    `install()` registers one. In the multiprocess mode of ``prometheus_client``, the registry is
    created again for each scrape, so register one there:

    >>> registry.register(metrics.Servers())

    Args:
        using: The cache aliases. None means ``REDISLOCK_CACHE``.
    """

    def __init__(self, using: Iterable[str] | None = None) -> None:
        self.using = _aliases(using)

    def describe(self) -> tuple[GaugeMetricFamily, ...]:
        up = "1 if the server answered the last scrape, 0 if not."
        held = "Locks held on the server by any process."
        recent = f"Events of all processes in the last {RECENT_MINUTES} minutes."
        return (
            GaugeMetricFamily("redislock_server_up", up, labels=["using"]),
            GaugeMetricFamily("redislock_server_held_locks", held, labels=["using"]),
            GaugeMetricFamily("redislock_server_recent_events", recent, labels=["using", "event"]),
        )

    def collect(self) -> Iterable[Metric]:
        up, held, recent = self.describe()
        for alias in (locks.alias,) if self.using is None else self.using:
            try:
                server = servers[alias]
                count = _ask(server, queries.count(server.keys))
                rates = _ask(server, history.rates(server.keys))
            except Exception as error:  # The scrape of the other metrics must continue.
                logger.warning(
                    "Held locks not counted: using=%r error=%s", alias, error_text(error)
                )
                up.add_metric([alias], 0)
                continue
            up.add_metric([alias], 1)
            held.add_metric([alias], count)
            if conf.history:  # Otherwise the server counts no events.
                for event, counts in rates.counts.items():
                    recent.add_metric([alias, event], sum(counts[-RECENT_MINUTES:]))
        return up, held, recent


def _ask(server: Server, flow: Flow[T]) -> T:
    """Run a flow with a limit of `REPLY_TIMEOUT_SECONDS` for each reply."""

    def limited(op: Op) -> Op:
        return replace(op, limit=REPLY_TIMEOUT_SECONDS) if isinstance(op, Batch | Call) else op

    return run(server.client, changed(flow, limited))


class _Metrics(Servers):
    """Counts signals. Only its registry has a reference to it."""

    def __init__(
        self, registry: CollectorRegistry, using: Iterable[str] | None, labels: Labels
    ) -> None:
        super().__init__(using)
        self.registry = ref(registry)  # A cycle would keep both alive.
        self.labels = dict(labels)
        registry.register(self)  # First, because its collect() updates the gauges.

        def create(kind: Any, name: str, about: str, *own: str, **options: Any) -> Any:
            label_names = (*own, *labels)
            return kind(f"redislock_{name}", about, label_names, registry=registry, **options)

        self._families = {
            name: create(kind, name, about, "using", "kind", **options)
            for name, (kind, about, options) in PER_LOCK.items()
        }
        self._force_released = create(
            Counter,
            "force_released_total",
            "Holders whose lock this process force-released.",
            "using",
        )
        self._skipped = create(
            Counter,
            "tasks_skipped_total",
            "Tasks that were skipped because another instance was running or queued.",
            "task",
        )
        self._by_values: dict[Values, _Series] = {}
        self._by_acquisition: WeakKeyDictionary[object, _Series] = WeakKeyDictionary()
        for signal in signals.LOCK_SIGNALS:
            signal.connect(self._on_acquisition)
        signals.lock_force_released.connect(self._on_force_released)
        signals.task_skipped.connect(self._on_task_skipped)

    def collect(self) -> Iterable[Metric]:
        for series in list(self._by_values.values()):
            series.update()
        return super().collect()

    def forget(self) -> None:
        """Forget all acquisitions, because a forked process holds no locks yet."""
        self._by_acquisition.clear()
        for series in self._by_values.values():
            series.forget()

    def _on_acquisition(self, signal: Signal, acquisition: object, **about: Any) -> None:
        if acquisition is None:  # It began before this receiver was connected.
            return
        series = self._by_acquisition.get(acquisition)
        if series is None:
            values = about["using"], about["kind"], *self._own_labels(about["name"])
            series = self._by_values.get(values) or self._by_values.setdefault(
                values, _Series(self._families, values)
            )
            self._by_acquisition[acquisition] = series
        series.update(acquisition, signal)
        if signal in COUNTED:
            series.metrics[COUNTED[signal]].inc()
        if signal is signals.lock_acquired:
            series.metrics["wait_seconds"].observe(about["waited"])
        elif signal is signals.lock_released:
            series.metrics["hold_seconds"].observe(about["held"])

    def _on_force_released(self, using: str, name: str, tokens: Values, **about: Any) -> None:
        self._force_released.labels(using, *self._own_labels(name)).inc(len(tokens))

    def _on_task_skipped(self, sender: Any, name: str, **about: Any) -> None:
        task = getattr(sender, "name", None) or f"{sender.__module__}.{sender.__qualname__}"
        self._skipped.labels(task, *self._own_labels(name)).inc()

    def _own_labels(self, name: str) -> Values:
        return tuple(_label_value(label, make, name) for label, make in self.labels.items())


class _Series:
    """The metrics for one combination of label values.

    All of them start at 0 together, because Prometheus does not see an increase of a time series
    that did not exist before. References to acquisitions are weak, because a lock object that no
    longer exists sends no signal.
    """

    def __init__(self, families: Mapping[str, Any], values: Values) -> None:
        self.metrics = {name: family.labels(*values) for name, family in families.items()}
        self.forget()

    def forget(self) -> None:
        self._lock = RLock()
        self._holders: WeakSet[object] = WeakSet()
        self._waiters: WeakSet[object] = WeakSet()

    def update(self, acquisition: object = None, signal: Signal | None = None) -> None:
        """Set the gauges, after a signal of an acquisition if one is given."""
        with self._lock:
            if acquisition is not None:
                self._waiters.discard(acquisition)
                self._holders.discard(acquisition)
            if signal is signals.lock_waiting:
                self._waiters.add(acquisition)
            elif signal is signals.lock_acquired:
                self._holders.add(acquisition)
            self.metrics["held_locks"].set(len(self._holders))
            self.metrics["waiters"].set(len(self._waiters))


def _label_value(label: str, make: Callable[[str], object], name: str) -> str:
    try:
        value = str(make(name))
    except Exception:
        logger.exception("Metric label function failed: label=%s name=%r", label, name)
        return ""
    return value.encode(errors="replace").decode()  # Invalid UTF-8 would break the scrape.


def _aliases(using: Iterable[str] | None) -> Values | None:
    if using is None:
        return None
    aliases = tuple(dict.fromkeys(using))
    for alias in aliases:
        if alias not in caches.settings:
            raise ValueError(f"using must be a list of cache aliases, got {alias!r}")
        if not supports_locks(alias):
            raise ValueError(f"using: {unsupported_message(alias)}")
    return aliases


def _forget() -> None:
    for metrics in list(_installed):
        metrics.forget()


os.register_at_fork(after_in_child=_forget)
