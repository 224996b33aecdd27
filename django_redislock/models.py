"""An unmanaged model that gives locks permissions and pages in the admin. It has no table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from .conf import conf
from .lock_state import HANDOVER, LockState, primary_holder, state_of_holding
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
    """The snapshot. Only instances that `of()` creates have it."""

    using: str = ""
    """The cache alias. Empty means ``REDISLOCK_CACHE``."""

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

    @cached_property
    def elsewhere(self) -> str:
        """The cache alias, or an empty string for ``REDISLOCK_CACHE``: the ``using`` of a URL."""
        return "" if self.using == conf.cache else self.using

    @cached_property
    def primary(self) -> Holding | None:
        """The holder that a line about the lock shows."""
        return primary_holder(self.info)

    @cached_property
    def state(self) -> LockState:
        """The state of that holder."""
        return state_of_holding(self.primary) if self.primary else HANDOVER

    @classmethod
    def of(cls, info: LockInfo, using: str = "") -> ActiveLock:
        lock = cls(name=info.name)
        lock.info = info
        lock.using = using
        return lock
