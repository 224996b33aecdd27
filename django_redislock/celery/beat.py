"""Schedulers for `celery beat`: any number of beats run, and one of them sends.

    celery -A shop beat --scheduler django_redislock.celery.beat:PersistentScheduler
    celery -A shop beat --scheduler django_redislock.celery.beat:DatabaseScheduler

The leader records in Redis what it has sent. It sends a message first and records it then, so that
no message is missing. A leader that dies in between leaves a message that the next leader sends
again, with the same task id.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from celery.beat import Scheduler, SchedulingError
from django.core.exceptions import ImproperlyConfigured
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from django_redislock.engine.outages import is_outage
from django_redislock.exceptions import LockNotAcquired
from django_redislock.leader import Term, Terms
from django_redislock.manager import locks
from django_redislock.text import error_text, holder_text
from django_redislock.validators import Seconds

from .last_runs import LastRuns, Run

if TYPE_CHECKING:
    from .database_beat import DatabaseScheduler

__all__ = ["DatabaseScheduler", "PersistentScheduler"]

logger = logging.getLogger("django_redislock")

Entry: TypeAlias = Any
"""A `celery.beat.ScheduleEntry`, whose type stubs allow that it has no name."""

LONGEST_SLEEP_SECONDS = 5.0
"""How long the leader sleeps at most until it looks whether it still leads."""

MAX_TICK_AGE_SECONDS = 60.0
"""Celery's shortest default for `beat_remote_control_max_tick_age`."""

WAIT_SHARE = 0.8
"""The share of the allowed age of a tick that one call of `tick()` waits for a term."""

RETRY_SECONDS = 1.0
"""The pause after a request failed. Also the longest pause until a message that was not sent is
tried again."""


class LeaderScheduler(Scheduler):
    """A scheduler that sends only while it leads.

    A subclass can set `lock_name`, `lock_timeout` and `lock_using`.
    """

    lock_name: ClassVar[str | None] = None
    """The name of the leader's lock. None means ``beat:`` and the name of the Celery app. Beats
    with different schedules need different names."""

    lock_timeout: ClassVar[Seconds] = 15
    """The lease in seconds. If the leader dies, another beat leads after this time."""

    lock_using: ClassVar[str | None] = None
    """The cache alias. None means ``REDISLOCK_CACHE``."""

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        self._name = self.lock_name or f"beat:{app.main or 'celery'}"
        self._manager = locks.using(self.lock_using)
        self._last_runs = LastRuns(self._manager, self._name)
        self._longest_wait = longest_wait(app.conf)
        self._terms = self._new_terms()
        self._term: Term | None = None
        self._is_ticking = False
        self._has_to_exit = False
        self._term_began = datetime.now(UTC)
        self._fence_token = 0
        self._leader_seen = ""
        self._has_another_led = False
        self._reserved: dict[str, Entry] = {}
        self._failed: set[str] = set()
        super().__init__(app, *args, **kwargs)

    @property
    def info(self) -> str:
        return f"    . lock -> {self._name}"

    # The terms

    @property
    def leads(self) -> bool:
        """Whether this beat leads, by its own clock."""
        return self._term is not None and not self._term.lost

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, if this beat leads or begins to lead.

        Returns:
            The seconds to sleep until the next call.
        """
        self._is_ticking = True
        try:
            seconds = self._lead(*args, **kwargs) if self.leads else self._stand()
        finally:
            self._is_ticking = False
        if self._has_to_exit:
            raise SystemExit
        return seconds

    def _lead(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, and return the seconds to sleep until the next tick."""
        seconds: float = super().tick(*args, **kwargs)
        self._record()
        if seconds and self._failed:  # all other entries have had their turn
            self._failed.clear()
            self.read_again()
            return min(seconds, RETRY_SECONDS)
        return min(seconds, LONGEST_SLEEP_SECONDS)

    def close(self) -> None:
        """Write what is left to write, and step down."""
        super().close()
        # A signal handler of Celery calls this, too, possibly while a message is being sent. It
        # then raises SystemExit, and Celery calls this method again. In a finalizer, such as that
        # of redis-py's connections, Python ignores that exception, so a tick raises another one.
        self._has_to_exit = True
        if not self._is_ticking:
            if self.leads:
                self._record()
            self._step_down()

    def _new_terms(self) -> Terms:
        return self._manager.leader(
            self._name, timeout=self.lock_timeout, blocking_timeout=self._longest_wait
        )

    def _step_down(self) -> None:
        self._term = None
        self._terms.close()
        self._terms = self._new_terms()  # Celery may resume a scheduler that it has closed

    def _stand(self) -> float:
        """Wait for a term, and return the seconds to sleep until the next tick."""
        if self._term:
            self._term = None
            logger.warning("Beat does not lead any more, and stands by: name=%r", self._name)
        try:
            self._note_leader()
            term = next(self._terms)
            if self._begin(term):
                return 0
        except LockNotAcquired:
            return 0
        except RedisError as error:
            logger.warning(
                "Beat cannot lead, will retry: name=%r error=%s", self._name, error_text(error)
            )
        self._step_down()
        return RETRY_SECONDS

    def _begin(self, term: Term) -> bool:
        """Continue where the last leader stopped. Return False if a newer leader has begun."""
        fence_token = term.fence_token or 0
        has_begun = self._last_runs.begin(fence_token, has_another_led=self._has_another_led)
        if not has_begun:
            logger.warning(
                "Beat cannot lead, the last runs have a larger fencing token: name=%r token=%d",
                *(self._name, fence_token),
            )
            return False
        self._term = term
        self._term_began = datetime.now(UTC)
        self._fence_token = fence_token
        self._has_another_led = False
        logger.info("Beat leads: name=%r fence_token=%d", self._name, fence_token)
        self.read_again()
        return True

    def _note_leader(self) -> None:
        """Log who leads, and note whether it is another beat."""
        info = self._manager.get(self._name)
        if info is None or info.first is None:
            self._leader_seen = ""
            return
        if info.first.fence_token != self._fence_token:
            self._has_another_led = True
        leader = holder_text(info.first)
        if leader != self._leader_seen:
            logger.info("Beat stands by: name=%r leader=%s", self._name, leader)
        self._leader_seen = leader

    # The schedule

    def read_again(self) -> None:
        """Let the next tick begin with the schedule and the last runs as they are now."""
        self.old_schedulers = None

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Calculate when each entry is due, from the last runs."""
        self.restore(self.schedule.values())
        super().populate_heap(*args, **kwargs)

    def restore(self, entries: Iterable[Entry]) -> None:
        """Give all entries of the schedule their last runs, and forget all others."""
        names = set()
        for entry in entries:
            names.add(entry.name)
            first_run = self.first_run(entry)
            run = self._last_runs.get(entry.name)
            if run is None or run.row != first_run.row:
                # The first period begins now for all leaders, and not again with each leader.
                run = first_run
                self._last_runs.note(entry.name, run)
            self.set_last_run(entry, run)
        self._last_runs.forget_others(names)
        self._record()

    def run_of(self, entry: Entry) -> Run:
        """Return the last run of an entry. Celery's times without a time zone are in UTC."""
        at: datetime = entry.last_run_at
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        return Run(at.astimezone(UTC), entry.total_run_count)

    def first_run(self, entry: Entry) -> Run:
        """Return the last run of an entry that has no record.

        For Celery, its first period begins when the process starts. A beat may have stood by since
        then for days, while another one led.
        """
        run = self.run_of(entry)
        return replace(run, at=max(run.at, self._term_began))

    def set_last_run(self, entry: Entry, run: Run) -> None:
        """Set the last run of an entry, in the time zone that the entry uses."""
        zone = entry.last_run_at.tzinfo
        entry.last_run_at = run.at.astimezone(zone) if zone else run.at.replace(tzinfo=None)
        entry.total_run_count = run.count

    # One message

    def is_due(self, entry: Entry) -> Any:
        """Return whether an entry is due, and the seconds until the next look at it."""
        if entry.name in self._failed:  # older versions of Celery ask at once
            return False, LONGEST_SLEEP_SECONDS
        return super().is_due(entry)

    def reserve(self, entry: Entry) -> Entry:
        """Return the entry for the time after this run."""
        following = super().reserve(entry)
        self._reserved[entry.name] = following
        return following

    def apply_entry(self, entry: Entry, producer: Any = None) -> None:
        """Send a message that is due, unless the leader was deposed since the tick began."""
        if self.leads:
            super().apply_entry(entry, producer=producer)

    def apply_async(
        self, entry: Entry, producer: Any = None, advance: bool = True, **kwargs: Any
    ) -> Any:
        """Send a message, and record that it was sent."""
        following = self.reserve(entry) if advance else self._reserved[entry.name]
        options = entry.options
        last_run = self.run_of(entry)
        task_id = last_run.next_task_id(self._name, entry.name)
        entry.options = {"task_id": task_id, **options}
        try:
            result = super().apply_async(entry, producer=producer, advance=False, **kwargs)
        except SchedulingError as error:
            if is_unreachable(error):
                self._failed.add(entry.name)
                self.set_last_run(following, last_run)
                raise
            self._note_run(following)  # as in Celery, an entry that cannot be sent is left out
            raise
        finally:
            entry.options = options
        self._note_run(following)
        return result

    def _note_run(self, following: Entry) -> None:
        self._last_runs.note(following.name, self.run_of(following))
        self._record()

    def _record(self) -> None:
        """Record what is new. If Redis is unreachable, it is recorded later."""
        entries = sorted(self._last_runs.unrecorded)
        if self._term is None or not entries:
            return
        try:
            is_newest = self._last_runs.record(self._fence_token)
        except RedisError as error:
            logger.warning(
                "Beat cannot record its last runs, will retry: name=%r entries=%d error=%s",
                *(self._name, len(entries), error_text(error)),
            )
            return
        if not is_newest:
            self._term = None
            logger.warning(
                "Beat was deposed while it sent, so the new leader may send the same messages "
                "again, with the same task ids: name=%r entries=%s",
                *(self._name, ", ".join(entries)),
            )


class PersistentScheduler(LeaderScheduler):
    """A scheduler for the schedule in Celery's configuration, without a file.

    The schedule is `beat_schedule`, and what was added with `add_periodic_task()`.
    """

    def setup_schedule(self) -> None:
        self.merge_inplace(self.app.conf.beat_schedule)
        self.install_default_entries(self.schedule)


def longest_wait(conf: Any) -> float | None:
    """Return how many seconds one call of `tick()` may wait for a term, or None for no limit.

    A beat with Celery's remote control answers no ping if its last tick is too old. Without, there
    is no limit, because the history lists each wait that ends without a lock.
    """
    if not conf.get("beat_enable_remote_control"):
        return None
    max_age = conf.get("beat_remote_control_max_tick_age")
    if max_age == 0:  # any age is allowed
        return None
    return WAIT_SHARE * (MAX_TICK_AGE_SECONDS if max_age is None else max_age)


def is_unreachable(error: BaseException | None) -> bool:
    """Return whether a message was not sent because the broker, the result backend or another
    server cannot be reached, so that it may be sent a little later."""
    while error is not None:
        if isinstance(error, OperationalError | OSError) or is_outage(error):
            return True
        error = error.__cause__ or error.__context__
    return False


if not TYPE_CHECKING:  # Its models can only be imported after Django's apps are ready.

    def __getattr__(name: str) -> Any:
        if name != "DatabaseScheduler":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from .database_beat import DatabaseScheduler
        except (ImportError, RuntimeError) as error:
            raise ImproperlyConfigured(
                "DatabaseScheduler needs django-celery-beat: pip install django-celery-beat, and "
                "add 'django_celery_beat' to INSTALLED_APPS."
            ) from error
        return DatabaseScheduler
