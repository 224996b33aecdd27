"""Release the holders that a page showed, after a confirmation."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from redis.exceptions import RedisError

from .. import sentences, validators
from ..advice import quorum_text
from ..lock_state import state_of_holding
from ..manager import locks
from . import holders
from .base import LOG_ERRORS, LockPages, with_unavailable_page
from .holders import ShownHolder, left_out_texts, names_of
from .queryset import LockQuerySet
from .reading import read_locks

logger = logging.getLogger("django_redislock")


class ReleasePages(LockPages):
    """The action of the list, and the page that confirms a release."""

    release_max = 500
    """The maximum number of holders that one confirmation releases."""

    @admin.action(
        permissions=["release"],
        description=gettext_lazy("Release selected %(verbose_name_plural)s"),
    )
    def release_selected(self, request: HttpRequest, queryset: LockQuerySet) -> HttpResponse:
        """Ask for confirmation; only `release_view` releases."""
        return self._ask(request, ShownHolder.parse(*request.POST.getlist(ACTION_CHECKBOX_NAME)))

    @with_unavailable_page
    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Confirm (POST), then release (POST with `confirmed`) the holders that a page showed."""
        self._require_release(request)
        if request.method != "POST":
            return HttpResponseRedirect(self._list_url())
        if "all" in request.POST:
            try:
                matching = self.get_changelist_instance(request).queryset
            except IncorrectLookupParameters:
                return HttpResponseRedirect(self._list_url())
            rows = filter(self._may_release(request), matching)
            shown = [each for row in rows for each in holders.shown_holders(row)]
            failures = read_locks(request, self.list_max).failures
            return self._ask(request, shown, [sentences.failure_text(*each) for each in failures])
        shown = ShownHolder.parse(request.POST.get("seen", ""))
        if "confirmed" not in request.POST:
            return self._ask(request, shown)
        if len(shown) > self.release_max:
            raise BadRequest(f"At most {self.release_max} holders are released at a time")
        return self._release(request, shown)

    def _ask(
        self, request: HttpRequest, shown: Sequence[ShownHolder], notes: Sequence[str] = ()
    ) -> HttpResponse:
        """Show the holders to release, and the changes since the page was opened."""
        check = holders.check_holders(shown[: self.release_max], self._may_release(request))
        if check.failures and not (check.held or check.changed):
            return self.unavailable(request, *check.failures[0])
        if not check.held:
            self._warn(request, *notes, _("Nothing to release."))
            return self._back(request, check)
        notes = [*notes, *left_out_texts(check)]
        states = list(dict.fromkeys(state_of_holding(holding) for _shown, holding in check.held))
        return self._page(
            request,
            "release_confirmation",
            title=ngettext("Release lock", "Release locks", len(check.rows)),
            held=check.rows,
            states=states,
            is_running=any(state.code not in ("cooldown", "queued") for state in states),
            several_aliases=len(locks.everywhere()) > 1,
            changes=check.changed,
            queues=sentences.queue_texts(check.waiters),
            notes=[*notes, quorum_text()] if check.has_quorum else notes,
            release_max=self.release_max,
            reason_max=validators.MAX_REASON_CHARACTERS,
            more=max(len(shown) - self.release_max, 0),
            seen=json.dumps([each for each, _holding in check.held]),
        )

    def _release(self, request: HttpRequest, shown: Sequence[ShownHolder]) -> HttpResponse:
        reason = request.POST.get("reason", "").strip()[: validators.MAX_REASON_CHARACTERS] or None
        check = holders.check_holders(shown, self._may_release(request))
        released: list[ShownHolder] = []
        for number, (holder, holding) in enumerate(check.held):
            rest = [each for each, _holding in check.held[number:]]
            user, alias = request.user.get_username(), holder.manager.alias
            fields = (holder.name, alias, user, holding.fence_token)
            try:
                text = sentences.log_text(holder.using, holding, sentences.REQUESTED)
                entry = self._log(request, holder.name, text)
            except LOG_ERRORS as error:
                logger.exception(
                    "Lock not force-released in the admin, because the log of admin actions cannot"
                    " be written: name=%r using=%r user=%r fence_token=%d",
                    *fields,
                )
                self.message_user(
                    request, sentences.unlogged_text(names_of(rest), error), messages.ERROR
                )
                break
            logger.warning(
                "Force-releasing a lock in the admin: name=%r using=%r user=%r fence_token=%d",
                *fields,
            )
            try:
                found = holder.manager.force_release(
                    holder.name, holding.stored_token, by=request.user, reason=reason
                )
            except RedisError as error:
                self._warn(request, sentences.failure_text(alias, error, is_release=True))
                check.unconfirmed += rest
                break
            event = sentences.RELEASED if found else sentences.NOT_RELEASED
            self._complete(entry, sentences.log_text(holder.using, holding, event))
            if found:
                released.append(holder)
            else:
                check.changed.append((holder, None))
        if released or not check.unconfirmed:
            level = messages.SUCCESS if released else messages.WARNING
            self.message_user(request, sentences.released_text(names_of(released)), level)
        if check.unconfirmed:
            self._warn(request, sentences.unconfirmed_text(names_of(check.unconfirmed)))
        if released and check.has_quorum:
            self._warn(request, quorum_text())
        return self._back(request, check)
