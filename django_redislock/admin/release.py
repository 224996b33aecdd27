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
from .base import LOG_ERRORS, LockPages, with_unavailable_page
from .holders import ShownHolder, check_holders, on_all_servers, shown_holders
from .queryset import LockQuerySet
from .reading import known_aliases, manager_of

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
            return self._to_list(request)
        if "all" in request.POST:
            try:
                matching = self.get_changelist_instance(request).queryset
            except IncorrectLookupParameters:
                return HttpResponseRedirect(self._address("changelist"))
            rows = filter(self._may_release(request), matching)
            return self._ask(request, [each for row in rows for each in shown_holders(row)])
        shown = ShownHolder.parse(request.POST.get("seen", ""))
        if "confirmed" not in request.POST:
            return self._ask(request, shown)
        if len(shown) > self.release_max:
            raise BadRequest(f"At most {self.release_max} holders are released at a time")
        return self._release(request, shown)

    def _ask(self, request: HttpRequest, shown: Sequence[ShownHolder]) -> HttpResponse:
        """Show the holders to release, and the changes since the page was opened."""
        manager = manager_of(request)
        check = check_holders(manager, shown[: self.release_max], self._may_release(request))
        if not check.held:
            self._warn(request, _("Nothing to release."))
            return self._back(request, check)
        states = list(dict.fromkeys(state_of_holding(each.holding) for each in check.held))
        return self._page(
            request,
            "release_confirmation",
            title=ngettext("Release lock", "Release locks", len(check.held)),
            held=check.held,
            states=states,
            is_running=any(state.code not in ("cooldown", "queued") for state in states),
            alias=manager.alias,
            aliases=known_aliases(),
            changes=check.changed,
            denied=sentences.denied_text(check.denied),
            queues=sentences.queue_texts(manager, [each.info for each in check.held]),
            quorum=quorum_text() if check.has_quorum else "",
            release_max=self.release_max,
            reason_max=validators.MAX_REASON_CHARACTERS,
            more=max(len(shown) - self.release_max, 0),
            seen=json.dumps([each.shown for each in check.held]),
        )

    def _release(self, request: HttpRequest, shown: Sequence[ShownHolder]) -> HttpResponse:
        reason = request.POST.get("reason", "").strip()[: validators.MAX_REASON_CHARACTERS] or None
        may_release = self._may_release(request)
        check = check_holders(manager_of(request), shown, may_release)
        released: list[str] = []
        unconfirmed: list[str] = []
        holds = [each for held in check.held for each in on_all_servers(held, may_release)]
        for number, held in enumerate(holds):
            name, holding, alias = held.info.name, held.holding, held.manager.alias
            fields = (name, alias, request.user.get_username(), holding.fence_token)
            rest = [each.info.name for each in holds[number:]]
            try:
                text = sentences.log_text(alias, holding, sentences.REQUESTED)
                entry = self._log(request, name, text)
            except LOG_ERRORS as error:
                logger.exception(
                    "Lock not force-released in the admin, because the log of admin actions cannot"
                    " be written: name=%r using=%r user=%r fence_token=%d",
                    *fields,
                )
                self.message_user(request, sentences.unlogged_text(rest, error), messages.ERROR)
                break
            logger.warning(
                "Force-releasing a lock in the admin: name=%r using=%r user=%r fence_token=%d",
                *fields,
            )
            try:
                found = held.manager.force_release(
                    name, holding.stored_token, by=request.user, reason=reason
                )
            except RedisError as error:
                self._warn(request, sentences.failure_text(alias, error, is_release=True))
                unconfirmed = rest
                break
            event = sentences.RELEASED if found else sentences.NOT_RELEASED
            self._complete(entry, sentences.log_text(alias, holding, event))
            if found:
                released.append(name)
            else:
                check.changed.append((held.shown, None))
        if released or not unconfirmed:
            level = messages.SUCCESS if released else messages.WARNING
            self.message_user(request, sentences.released_text(released), level)
        if unconfirmed:
            self._warn(request, sentences.unconfirmed_text(unconfirmed))
        if released and check.has_quorum:
            self._warn(request, quorum_text())
        return self._back(request, check)
