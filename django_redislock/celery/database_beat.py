"""The scheduler for the schedule that django-celery-beat has in the database."""

import logging
from dataclasses import replace
from typing import Any

from django.db import Error
from django_celery_beat.schedulers import DatabaseScheduler as AnyDatabaseScheduler

from django_redislock.leader import Term
from django_redislock.text import error_text

from . import beat
from .beat import Entry, LeaderScheduler
from .last_runs import Run

logger = logging.getLogger("django_redislock")


class DatabaseScheduler(LeaderScheduler, AnyDatabaseScheduler):  # type: ignore[misc]
    """A scheduler for the schedule in the database, which can change at any time.

    The last runs in Redis count. Those in the database, which the admin shows, are written now and
    then by the leader.
    """

    _must_read = False

    _read_in: Term | None = None
    """The term in which the schedule was last read."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        try:
            return super().tick(*args, **kwargs)
        except Error as error:
            logger.warning(
                "Beat cannot use the database, will retry: name=%r error=%s",
                *(self._name, error_text(error)),
            )
            self.read_again()
            return beat.RETRY_SECONDS

    def read_again(self) -> None:
        super().read_again()
        self._must_read = True

    def schedule_changed(self) -> bool:
        """Return whether the schedule must be read again."""
        must_read = self._must_read
        self._must_read = False
        has_changed: bool = super().schedule_changed()
        return has_changed or must_read

    def all_as_schedule(self) -> dict[str, Entry]:
        """Read the schedule from the database."""
        schedule: dict[str, Entry] = super().all_as_schedule()
        if self.leads:
            self.restore(schedule.values())
            self._read_in = self._term
        return schedule

    def enabled_models(self) -> list[Any]:
        """Return all enabled periodic tasks.

        django-celery-beat leaves out those whose hour is not near. Then a daily task would be
        missed if no beat ran for some hours.
        """
        return list(self.Model.objects.enabled())

    def run_of(self, entry: Entry) -> Run:
        return replace(super().run_of(entry), row=str(entry.model.pk))

    def first_run(self, entry: Entry) -> Run:
        return self.run_of(entry)  # the database keeps it, so it is not the start of this process

    def set_last_run(self, entry: Entry, run: Run) -> None:
        super().set_last_run(entry, run)
        entry.model.last_run_at = entry.last_run_at
        entry.model.total_run_count = entry.total_run_count

    def sync(self) -> None:
        """Write the last runs to the database, if this beat leads.

        At the beginning of a term, they are those of its last term, and the database may have
        newer ones of another leader.
        """
        if self.leads and self._read_in is self._term:
            super().sync()
