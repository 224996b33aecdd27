"""Revoke the task of a holder, or remove a task from the queue of a lock, after a confirmation."""

from __future__ import annotations

import json
import logging

from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import sentences
from ..advice import join_sentences
from ..lock_state import is_queued
from ..manager import LockManager
from ..models import ActiveLock
from ..snapshots import Waiter
from ..text import error_text, printable, task_text
from .base import LOG_ERRORS, LockPages, with_unavailable_page
from .holders import Held, ShownHolder, check_holders
from .queue_entries import NOT_REMOVED, REMOVED, REMOVING, QueueEntry, log_text
from .reading import manager_of
from .tasks import ForeignTaskError, can_be_revoked, revoke, shown_task

logger = logging.getLogger("django_redislock")


class TaskPages(LockPages):
    """The pages that confirm a revocation or a removal."""

    # Revocation

    @with_unavailable_page
    def revoke_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm (POST), then revoke (POST with `confirmed`) the task of a holder."""
        self._require_release(request)
        if request.method != "POST":
            return self._to_list(request)
        asked = ShownHolder.parse(request.POST.get("seen", ""))[:1]
        check = check_holders(manager_of(request), asked, self._may_release(request))
        if not check.held:
            self._warn(request, _("Nothing to revoke."))
            return self._back(request, check)
        [held] = check.held
        if not can_be_revoked(held.holding):
            raise BadRequest("The holder has no task that can be revoked")
        using = request.GET.get("using", "")
        address = self._address("change", held.info.name, using=using)
        task = shown_task(held.holding)
        if request.POST.get("task") != task:
            self._warn(request, _("Not revoked: the task of the holder has changed."))
            return HttpResponseRedirect(address)
        if "confirmed" in request.POST:
            self._revoke(request, held)
            return HttpResponseRedirect(address)
        return self._page(
            request,
            "revoke_confirmation",
            title=_("Revoke task"),
            held=held,
            terminate=not is_queued(held.holding),
            seen=json.dumps([held.shown]),
            task=task,
            lock_url=address,
        )

    def _revoke(self, request: HttpRequest, held: Held) -> None:
        name, holding, alias = held.info.name, held.holding, held.manager.alias
        task_id, task_name = holding.holder.task_id or "", holding.holder.task_name or ""
        task, terminate = printable(f"{task_name}[{task_id}]"), not is_queued(holding)
        try:
            text = sentences.log_text(alias, holding, sentences.REVOKING)
            entry = self._log(request, name, text)
            logger.warning(
                "Revoking a task in the admin: task=%s name=%r using=%r user=%r fence_token=%d"
                " terminate=%s",
                *(task, name, alias, request.user.get_username()),
                *(holding.fence_token, terminate),
            )
            workers, ended = revoke(task_id, task_name, terminate=terminate)
            result = f"; workers that replied: {workers}"
            self._complete(entry, sentences.log_text(alias, holding, sentences.REVOKED, result))
        except ForeignTaskError as error:
            known_as = printable(str(error))
            logger.warning(
                "Task not revoked in the admin, a worker knows it under another name: task=%s"
                " known_as=%s name=%r",
                *(task, known_as, name),
            )
            self._complete(entry, sentences.log_text(alias, holding, sentences.NOT_REVOKED))
            level = messages.ERROR
            text = _(
                "Not revoked: a worker knows the task %(task)s as %(known)s, so the record of the "
                "holder in Redis is wrong."
            ) % {"task": printable(task_id), "known": known_as}
        except Exception as error:  # the brokers' libraries have no common class of errors
            logger.exception("Task not revoked in the admin: task=%s", task)
            level = messages.ERROR
            text = _("The task was not revoked: %(error)s") % {"error": error_text(error)}
        else:
            is_done = workers and (ended or not terminate)
            level = messages.SUCCESS if is_done else messages.WARNING
            text = ngettext(
                "The revocation of task %(task)s was sent: %(count)d worker replied.",
                "The revocation of task %(task)s was sent: %(count)d workers replied.",
                workers,
            ) % {"task": printable(task_id), "count": workers}
            if terminate and not ended:
                not_ended = _("No worker that replied runs the task, so no process was ended.")
                text = join_sentences([text, not_ended])
        self.message_user(request, text, level)

    # Removal from a queue

    @with_unavailable_page
    def remove_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm (POST), then remove (POST with `confirmed`) a task from the queue of a lock."""
        self._require_release(request)
        if request.method != "POST":
            return self._to_list(request)
        entry, manager = QueueEntry.parse(request.POST), manager_of(request)
        row = ActiveLock.of(entry.name, manager.alias, manager.get(entry.name))
        if not self._may_release(request)(row):
            raise PermissionDenied
        address = self._address("change", entry.name, using=request.GET.get("using", ""))
        waiter = entry.waiter(manager)
        if waiter is None:
            self._warn(request, _("Not removed: the task does not wait any more."))
            return HttpResponseRedirect(address)
        if "confirmed" in request.POST:
            self._remove(request, manager, entry, waiter)
            return HttpResponseRedirect(address)
        return self._page(
            request,
            "remove_confirmation",
            title=_("Remove task"),
            entry=entry,
            waiter=waiter,
            lock_url=address,
        )

    def _remove(
        self, request: HttpRequest, manager: LockManager, entry: QueueEntry, waiter: Waiter
    ) -> None:
        task = task_text(waiter)
        try:
            logged = self._log(request, entry.name, log_text(manager.alias, waiter, REMOVING))
        except LOG_ERRORS as error:
            logger.exception(
                "Task not removed in the admin, because the log of admin actions cannot be"
                " written: task=%s name=%r",
                *(task, entry.name),
            )
            text = _("Not removed, because the admin log cannot be written (%(error)s).")
            self.message_user(request, text % {"error": type(error).__name__}, messages.ERROR)
            return
        logger.warning(
            "Removing a task from a queue in the admin: task=%s name=%r using=%r user=%r",
            *(task, entry.name, manager.alias, request.user.get_username()),
        )
        if not entry.remove(manager):
            self._complete(logged, log_text(manager.alias, waiter, NOT_REMOVED))
            self._warn(request, _("Not removed: the task does not wait any more."))
            return
        self._complete(logged, log_text(manager.alias, waiter, REMOVED))
        text = _("Removed the task %(task)s from the queue.") % {"task": task}
        self.message_user(request, text, messages.SUCCESS)
