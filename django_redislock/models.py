"""An unmanaged model that gives locks permissions and pages in the admin. It has no table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.utils.translation import gettext_lazy as _

from .lock_state import LockState, primary_holder, state_of_holding, urgency
from .text import printable

if TYPE_CHECKING:
    from .snapshots import Holding, LockInfo


class NoRowsManager(models.Manager["ActiveLock"]):
    """Returns no rows and sends no query, so that `dumpdata` works."""

    def get_queryset(self) -> models.QuerySet[ActiveLock]:
        return super().get_queryset().none()


class ActiveLock(models.Model):
    """A lock with a holder or a waiter: a row in the list of the admin."""

    name = models.CharField(_("name"), max_length=512, primary_key=True)

    objects = NoRowsManager()

    info: LockInfo
    """The snapshot. A free lock has none, and no state."""

    primary: Holding | None = None
    """The holder that a line about the lock shows."""

    state: LockState
    """The state of that holder."""

    urgency: tuple[int, float, str]
    """A sort key: overdue renewals first, then the longest waits."""

    using: str = ""
    """The cache alias."""

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("release_activelock", "Can release active lock"),)
        verbose_name = _("active lock")
        verbose_name_plural = _("active locks")

    def __str__(self) -> str:
        return printable(self.name)

    @classmethod
    def of(cls, name: str, using: str, info: LockInfo | None) -> ActiveLock:
        """Return a lock. Without `info`, it is free."""
        lock = cls(name=name)
        lock.using = using
        if info:
            lock.info = info
            lock.primary = primary_holder(info)
            lock.state = state_of_holding(lock.primary)
            lock.urgency = urgency(info, lock.state)
        return lock
