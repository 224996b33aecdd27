"""The filters of the admin's templates: what they return is safe to show."""

from __future__ import annotations

from django import template

from ..admin.addresses import page_address
from ..admin.timeline import outcome, who
from ..lock_state import (
    queued_task,
    renewal_due_in,
    renewal_interval,
    state_of_holding,
    was_renewed,
)
from ..sentences import record_metadata_text, share
from ..snapshots import Holding, LockInfo, Waiter
from ..text import (
    age,
    clock_text,
    holder_text,
    printable,
    process_text,
    short_duration,
    task_text,
    thread_text,
)

register = template.Library()

register.filter("age", age)
register.filter("clock", clock_text)
register.filter("duration", short_duration)
register.filter("holder", holder_text)
register.filter("metadata", record_metadata_text)
register.filter("outcome", outcome)
register.filter("printable", printable)
register.filter("process", process_text)
register.filter("queued", queued_task)
register.filter("renewal_due_in", renewal_due_in)
register.filter("renewal_interval", renewal_interval)
register.filter("state", state_of_holding)
register.filter("task", task_text)
register.filter("thread", thread_text)
register.filter("was_renewed", was_renewed)
register.filter("who", who)


@register.simple_tag(takes_context=True)
def page_url(context: template.Context, page: str, **query: str) -> str:
    """Return the address of a page about the cache alias of this page."""
    site = context.request.current_app  # type: ignore[attr-defined]  # it has a request
    return page_address(page, site, using=context["using"], **query)


@register.simple_tag(takes_context=True)
def lock_url(context: template.Context, name: str) -> str:
    """Return the address of the page of a lock on the cache alias of this page."""
    site = context.request.current_app  # type: ignore[attr-defined]  # it has a request
    return page_address("change", site, name, using=context["using"])


@register.filter("share")
def share_of(record: Holding | Waiter, info: LockInfo) -> dict[str, str]:
    return share(info, record)
