"""An unmanaged model that gives locks permissions and pages in the admin. It has no table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django.db import models
from django.utils.translation import gettext_lazy as _

from .conf import conf
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

    elsewhere: str = ""
    """The cache alias, or an empty string for ``REDISLOCK_CACHE``: the ``using`` of a URL."""

    shares: tuple[ActiveLock, ...] = ()
    """The same quorum lock on its other servers."""

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("release_activelock", "Can release active lock"),)
        verbose_name = _("active lock")
        verbose_name_plural = _("active locks")

    def __str__(self) -> str:
        return printable(self.name)

    @property
    def aliases(self) -> list[str]:
        """The cache aliases: several for a quorum lock."""
        return [self.using, *[share.using for share in self.shares]]

    def add_share(self, share: ActiveLock) -> None:
        """Add the same quorum lock on another server, perhaps the one where its waiters queue."""
        self.shares += (share,)
        if share.info.waiters > self.info.waiters:
            waiters, longest_wait = share.info.waiters, share.info.longest_wait
            self.info = replace(self.info, waiters=waiters, longest_wait=longest_wait)
            self.urgency = urgency(self.info, self.state)

    @classmethod
    def of(cls, name: str, using: str, info: LockInfo | None) -> ActiveLock:
        """Return a lock. Without `info`, it is free."""
        lock = cls(name=name)
        lock.using = using
        lock.elsewhere = "" if using == conf.cache else using
        if info:
            lock.info = info
            lock.primary = primary_holder(info)
            lock.state = state_of_holding(lock.primary)
            lock.urgency = urgency(info, lock.state)
        return lock
