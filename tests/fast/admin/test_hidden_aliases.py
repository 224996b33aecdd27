"""A user who may see only some locks learns nothing of hidden ones on another cache alias."""

import re

import pytest

from django_redislock import locks
from django_redislock.admin import ActiveLockAdmin
from tests.pages import DASHBOARD, LIST, RELEASE, lock_page, make_past, minutes_ago, text_of

from .test_restrictions import serve  # noqa: F401

pytestmark = pytest.mark.django_db


class OnDefault(ActiveLockAdmin):
    """Shows the locks of one alias."""

    def get_queryset(self, request):
        return super().get_queryset(request).where(lambda lock: lock.using == "default")


class OfAcme(ActiveLockAdmin):
    """Shows the locks of one tenant."""

    list_max = 2

    def get_queryset(self, request):
        return super().get_queryset(request).where(lambda lock: lock.name.startswith("acme:"))


def pages(client, using: str) -> list[str]:
    """Return some pages, without what differs between two requests."""
    found = [
        client.get(LIST, {"using": using}),
        client.get(LIST, {"using": using, "q": "secret"}),
        client.get(f"{LIST}secret/change/", {"using": "default"}, follow=True),
    ]
    texts = [f"{page.status_code} {text_of(page)}" for page in found]
    changing = r"\d\d:\d\d(:\d\d)?|[\d.]+s|csrfmiddlewaretoken.*?>|(value|data-\w+)=\"[\d.]+\""
    return [re.sub(changing, "", text) for text in texts]


@pytest.mark.parametrize("using", ["default", "other"])
def test_a_hidden_lock_on_another_alias_changes_no_page(hold, other, viewer, serve, using) -> None:  # noqa: F811
    serve(OnDefault)
    hold("acme:1")
    before = pages(viewer, using)
    lock = hold("secret", manager=other)
    assert pages(viewer, using) == before
    lock.release()
    assert other.history("secret")
    assert pages(viewer, using) == before


def test_a_quorum_lock_is_released_where_it_is_visible(three_servers, releaser, serve) -> None:  # noqa: F811
    serve(OnDefault)
    quorum = locks.quorum("payout", three_servers, timeout=60)
    with quorum:
        seen = lock_page(releaser, "payout").context["seen"]
        releaser.post(RELEASE, {"seen": seen, "confirmed": "yes"})
        assert [bool(each.get("payout")) for each in locks.everywhere()] == [False, True, True]


def test_the_number_of_locks_that_match_is_not_shown(hold, viewer, serve) -> None:  # noqa: F811
    serve(OfAcme)
    for number in range(7):
        hold(f"globex:{number}")
    hold("acme:1")
    for query in ({}, {"q": "globex:*"}):
        text = text_of(viewer.get(LIST, query))
        assert "Not all locks were read" in text
        assert not re.search(r"\b[78]\b active locks match", text)


@pytest.mark.usefixtures("empty_history")
def test_the_dashboard_does_not_say_when_hidden_events_began(
    hold,
    viewer,
    serve,  # noqa: F811
    redis_server,
) -> None:
    serve(OfAcme)
    hold("globex:1").release()
    make_past(redis_server, "globex:1", times=1, seconds=1, step=lambda _: minutes_ago(14))
    assert "begins at" not in text_of(viewer.get(DASHBOARD))
    assert locks.history("globex:1")
