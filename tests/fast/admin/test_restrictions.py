"""A subclass of `ActiveLockAdmin` decides for each lock who may see it and who may release it."""

import html
import json
import re

import pytest
from django.contrib import admin
from django.core.exceptions import FieldError
from django.db.models import Q

from django_redislock import locks
from django_redislock.admin import ActiveLockAdmin, dashboard
from django_redislock.models import ActiveLock
from tests.pages import (
    DASHBOARD,
    LIST,
    RELEASE,
    listed,
    lock_page,
    make_past,
    messages_of,
    minutes_ago,
    text_of,
    user_with,
    words_of,
)

from .test_admin import confirm, seen, select

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("empty_history")]

LEFT_OUT = "1 holder was left out, because you may not release its lock."


class ByPermission(ActiveLockAdmin):
    """Staff see and release the locks of the tenant "ours"."""

    def has_view_permission(self, request, obj=None):
        allowed = obj is None or obj.name.startswith("ours:")
        return allowed and super().has_view_permission(request, obj)


class ByQuerySet(ActiveLockAdmin):
    def get_queryset(self, request):
        return super().get_queryset(request).where(lambda lock: lock.name.startswith("ours:"))


class OnDefault(ActiveLockAdmin):
    """Shows the locks of one alias."""

    def get_queryset(self, request):
        return super().get_queryset(request).where(lambda lock: lock.using == "default")


@pytest.fixture(params=[ByPermission, ByQuerySet])
def tenant_admin(request, serve):
    serve(request.param)


@pytest.fixture
def held(hold):
    """The locks of two tenants."""
    return {name: hold(name) for name in ("ours:1", "ours:2", "theirs:1")}


@pytest.fixture
def releaser(held):
    return user_with("view_activelock", "release_activelock")


@pytest.mark.usefixtures("tenant_admin")
def test_pages_show_the_locks_of_the_tenant(releaser, held):
    for query, shown in (
        ({}, {"ours:1", "ours:2"}),
        ({"q": "1"}, {"ours:1"}),
        ({"o": "1"}, {"ours:1", "ours:2"}),
        ({"state": "held"}, {"ours:1", "ours:2"}),
    ):
        page = releaser.get(LIST, query)
        changelist = page.context["cl"]
        assert {row.name for row in changelist.result_list} == shown
        assert changelist.result_count == len(shown)
        assert {lock.name for lock in changelist.root_queryset.rows} == shown
        assert "theirs" not in text_of(page)

    locks.force_release("theirs:1")
    locks.force_release("ours:2")
    figures = releaser.get(DASHBOARD)
    assert "ours:1" in text_of(figures)
    assert "ours:2" in text_of(figures)
    assert "theirs" not in text_of(figures)
    assert (figures.context["total"], figures.context["totals"]) == (1, ())

    assert releaser.get(f"{LIST}ours_3A1/change/").status_code == 200
    assert releaser.get(f"{LIST}ours_3A1/history/", {"p": "x"}).status_code == 200
    for name in ("theirs_3A1", "theirs_3Aunknown"):
        assert releaser.get(f"{LIST}{name}/change/").status_code == 403
        assert releaser.get(f"{LIST}{name}/history/").status_code in (302, 403)


@pytest.mark.usefixtures("tenant_admin")
def test_a_foreign_lock_is_not_released(releaser, held):
    foreign = held["theirs:1"]
    refused = [
        confirm(releaser, seen(foreign)),
        releaser.post(RELEASE, {"seen": seen(foreign)}),
        select(releaser, seen(foreign)),
    ]
    assert [response.status_code for response in refused] == [403] * 3

    old = json.dumps([("theirs:1", foreign.fence_token - 1), ("ours:9", 1)])
    page = releaser.post(RELEASE, {"seen": old}, follow=True)
    assert str(foreign.fence_token) not in text_of(page)
    assert "theirs" not in text_of(page)

    every = releaser.post(RELEASE, {"all": "yes"})
    assert {row.info.name for row in every.context["held"]} == {"ours:1", "ours:2"}
    page = releaser.post(RELEASE, {"seen": seen(*held.values())})
    assert "theirs" not in text_of(page)
    assert LEFT_OUT in text_of(page)
    done = confirm(releaser, seen(*held.values()))
    assert messages_of(done)[-1] == LEFT_OUT
    assert [lock.owned() for lock in held.values()] == [False, False, True]


@pytest.mark.usefixtures("tenant_admin")
def test_a_list_that_has_not_read_its_locks_says_so(releaser, hold, monkeypatch):
    monkeypatch.setattr(ActiveLockAdmin, "list_max", 1)
    monkeypatch.setattr(dashboard, "MAX_READ", 1)
    hold("theirs:first", timeout=20)

    for query in ({}, {"q": "theirs:*"}):
        page = releaser.get(LIST, query)
        assert page.context["cl"].result_count == 0
        assert "Not all locks were read" in text_of(page)
        assert not re.search(r"\d active locks match", text_of(page))
    assert listed(releaser, q="ours:1") == ["ours:1"]
    figures = releaser.get(DASHBOARD)
    assert f"active {figures.context['total']}+ " in words_of(figures)


def test_the_dashboard_does_not_say_when_hidden_events_began(serve, hold, viewer, redis_server):
    serve(ByQuerySet)
    hold("theirs:1").release()
    make_past(redis_server, "theirs:1", times=1, seconds=1, step=lambda _: minutes_ago(14))
    assert "begins at" not in text_of(viewer.get(DASHBOARD))
    assert locks.history("theirs:1")


# Another alias


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
def test_a_hidden_lock_on_another_alias_changes_no_page(hold, other, viewer, serve, using):
    serve(OnDefault)
    hold("acme:1")
    before = pages(viewer, using)
    lock = hold("secret", manager=other)
    assert pages(viewer, using) == before
    lock.release()
    assert other.history("secret")
    assert pages(viewer, using) == before


def test_a_quorum_lock_is_released_where_it_is_visible(three_servers, releaser, serve):
    serve(OnDefault)
    with locks.quorum("payout", three_servers, timeout=60):
        confirm(releaser, lock_page(releaser, "payout").context["seen"])
        assert [bool(each.get("payout")) for each in locks.everywhere()] == [False, True, True]


def test_the_admin_log_has_no_entries_of_hidden_aliases(serve, other, hold, releaser):
    class OneAlias(ActiveLockAdmin):
        visible = ""

        def get_queryset(self, request):
            return super().get_queryset(request).where(lambda lock: self.visible in lock.using)

    serve(OneAlias)
    for manager in (locks, other):
        form = {"seen": seen(hold("x", manager)), "confirmed": "yes"}
        releaser.post(f"{RELEASE}?using={manager.alias}", form)
    events = ["Force-released", "Force-released on other"]
    cases = [("", "", events), ("default", "", events[:1]), ("other", "other", events[1:])]

    for OneAlias.visible, using, expected in cases:
        page = lock_page(releaser, "x", using=using)
        [href] = re.findall(r'<a href="([^"]+)" class="historylink"', text_of(page))
        entries = releaser.get(html.unescape(href)).context["action_list"]
        assert [str(each.get_change_message()).split(". ")[0] for each in entries] == expected

    assert releaser.get(f"{LIST}x/history/").status_code == 302


# What a subclass can do


class ReleasesOurs(ActiveLockAdmin):
    def has_release_permission(self, request, obj=None):
        allowed = obj is None or obj.name.startswith("ours:")
        return allowed and super().has_release_permission(request, obj)


def test_a_lock_that_can_be_seen_but_not_released(serve, releaser, held):
    serve(ReleasesOurs)

    page = releaser.get(f"{LIST}theirs_3A1/change/")
    everything = releaser.post(RELEASE, {"all": "yes"})

    assert "theirs:1" in listed(releaser)
    assert page.status_code == 200
    assert RELEASE not in text_of(page)
    assert RELEASE in text_of(releaser.get(f"{LIST}ours_3A1/change/"))
    assert {row.info.name for row in everything.context["held"]} == {"ours:1", "ours:2"}
    assert confirm(releaser, seen(held["theirs:1"])).status_code == 403
    assert held["theirs:1"].owned()


def test_something_else_than_a_queryset_of_locks_is_explained(serve, releaser):
    class Wrong(ActiveLockAdmin):
        def get_queryset(self, request):
            return self.found

    serve(Wrong)
    for Wrong.found in ([], ActiveLock.objects.filter(name="ours:1")):
        for page in ("", "?q=ours", "ours_3A1/change/", "ours_3A1/history/"):
            response = releaser.get(LIST + page)
            assert response.status_code == 503
            assert "Wrong.get_queryset() must return" in text_of(response)


def test_a_query_set_that_was_read_can_be_narrowed_but_has_no_lookups(hold, rf, admin_user):
    hold("ours:1")
    hold("theirs:1")
    request = rf.get(LIST)
    request.user = admin_user
    every = ActiveLockAdmin(ActiveLock, admin.site).get_queryset(request)

    assert len(every) == 2
    narrow = every.where(lambda lock: lock.name.startswith("ours:"))
    assert [lock.name for lock in narrow[0:10]] == ["ours:1"]
    assert every.filter(pk__in=["theirs:1"]).count() == 1
    with pytest.raises(FieldError, match="Use where"):
        every.filter(Q(name="ours:1"))
