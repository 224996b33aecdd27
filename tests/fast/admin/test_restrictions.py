"""A subclass of `ActiveLockAdmin` decides for each lock who may see it and who may release it."""

import html
import json
import re

import pytest
from django.contrib import admin
from django.core.exceptions import FieldError
from django.db.models import Q
from django.urls import path

from django_redislock import locks
from django_redislock.admin import ActiveLockAdmin, dashboard
from django_redislock.models import ActiveLock
from tests.pages import DASHBOARD, LIST, RELEASE, lock_page, text_of, user_with, words_of

from .test_admin import confirm, messages_of, seen

pytestmark = pytest.mark.django_db

urlpatterns: list[object] = []


@pytest.fixture
def serve(settings):
    """Serve the pages of an admin class."""

    def serve(admin_class):
        site = admin.AdminSite()
        site.register(ActiveLock, admin_class)
        urlpatterns[:] = [path("admin/", site.urls)]

    settings.ROOT_URLCONF = __name__
    return serve


class ByPermission(ActiveLockAdmin):
    """Staff see and release the locks of the tenant "ours"."""

    def has_view_permission(self, request, obj=None):
        allowed = obj is None or obj.name.startswith("ours:")
        return allowed and super().has_view_permission(request, obj)


class ByQuerySet(ActiveLockAdmin):
    def get_queryset(self, request):
        return super().get_queryset(request).where(lambda lock: lock.name.startswith("ours:"))


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
class TestTenant:
    @pytest.mark.parametrize("query", [{}, {"q": "1"}, {"o": "1"}, {"state": "held"}])
    def test_the_list_has_its_locks_only(self, releaser, query):
        response = releaser.get(LIST, query)

        assert "ours:1" in text_of(response)
        assert "theirs" not in text_of(response)
        assert response.context["cl"].result_count == (1 if "q" in query else 2)

    def test_the_filters_offer_nothing_of_others(self, hold, releaser):
        with locks.lock("ours:task"):
            hold("theirs:task")
            rows = releaser.get(LIST).context["cl"].root_queryset.rows
        assert {lock.name for lock in rows} == {"ours:1", "ours:2", "ours:task"}

    def test_the_page_of_a_lock(self, releaser):
        assert releaser.get(f"{LIST}ours_3A1/change/").status_code == 200
        for name in ("theirs_3A1", "theirs_3Aunknown"):
            assert releaser.get(f"{LIST}{name}/change/").status_code == 403

    def test_the_history_of_a_lock(self, releaser):
        assert releaser.get(f"{LIST}ours_3A1/history/", {"p": "x"}).status_code == 200
        assert releaser.get(f"{LIST}theirs_3A1/history/").status_code in (302, 403)

    def test_the_dashboard_has_its_locks_only(self, releaser):
        locks.force_release("theirs:1")
        locks.force_release("ours:2")

        response = releaser.get(DASHBOARD)

        assert "ours:1" in text_of(response)
        assert "ours:2" in text_of(response)
        assert "theirs" not in text_of(response)
        assert response.context["total"] == 1
        assert response.context["totals"] == ()

    def test_a_release_of_a_foreign_lock_is_refused(self, releaser, held):
        foreign = held["theirs:1"]

        responses = [
            confirm(releaser, seen(foreign)),
            releaser.post(RELEASE, {"seen": seen(foreign)}),
            releaser.post(
                LIST,
                {"action": "release_selected", "_selected_action": seen(foreign), "index": 0},
            ),
        ]

        assert [response.status_code for response in responses] == [403] * 3
        assert foreign.owned()

    def test_a_foreign_lock_among_others_is_left_out(self, releaser, held):
        page = releaser.post(RELEASE, {"seen": seen(*held.values())})
        done = confirm(releaser, seen(*held.values()))

        assert "theirs" not in text_of(page)
        left_out = "1 holder was left out, because you may not release its lock."
        assert left_out in text_of(page)
        assert [lock.owned() for lock in held.values()] == [False, False, True]
        assert (
            messages_of(done)[-1] == "1 holder was left out, because you may not release its lock."
        )

    def test_a_foreign_lock_that_changed_hands_is_not_shown(self, releaser, held):
        foreign = held["theirs:1"]
        old = json.dumps([("theirs:1", foreign.fence_token - 1), ("ours:9", 1)])

        page = releaser.post(RELEASE, {"seen": old}, follow=True)

        assert str(foreign.fence_token) not in text_of(page)
        assert "theirs" not in text_of(page)

    def test_release_all_that_match(self, releaser, held):
        page = releaser.post(RELEASE, {"all": "yes"})
        releaser.post(RELEASE, {"seen": page.context["seen"], "confirmed": "yes"})

        assert {row.info.name for row in page.context["held"]} == {"ours:1", "ours:2"}
        assert [lock.owned() for lock in held.values()] == [False, False, True]


@pytest.mark.usefixtures("tenant_admin")
def test_a_list_that_has_not_read_its_locks_says_so(releaser, hold, monkeypatch):
    monkeypatch.setattr(ActiveLockAdmin, "list_max", 1)
    monkeypatch.setattr(dashboard, "MAX_READ", 1)
    hold("theirs:first", timeout=20)

    page, found = releaser.get(LIST), releaser.get(LIST, {"q": "ours:1"})
    figures = releaser.get(DASHBOARD)

    assert page.context["cl"].result_count == 0
    note = "Not all locks were read"
    assert note in text_of(page)
    assert [row.name for row in found.context["cl"].result_list] == ["ours:1"]
    # Which of the others are counted depends on the events of recent minutes.
    assert f"active {figures.context['total']}+ " in words_of(figures)


def test_the_admin_log_has_no_entries_of_hidden_aliases(serve, other, hold, releaser):
    class OneAlias(ActiveLockAdmin):
        visible = ""

        def get_queryset(self, request):
            return super().get_queryset(request).where(lambda lock: self.visible in lock.using)

    serve(OneAlias)
    for manager in (locks, other):
        lock = hold("x", manager)
        form = {"seen": json.dumps([("x", lock.fence_token)]), "confirmed": "yes"}
        releaser.post(f"{RELEASE}?using={manager.alias}", form)
    events = ["Force-released", "Force-released on other"]
    cases = [("", "", events), ("default", "", events[:1]), ("other", "other", events[1:])]

    for OneAlias.visible, using, expected in cases:
        page = lock_page(releaser, "x", using=using)
        [href] = re.findall(r'<a href="([^"]+)" class="historylink"', text_of(page))
        entries = releaser.get(html.unescape(href)).context["action_list"]
        assert [str(each.get_change_message()).split(". ")[0] for each in entries] == expected

    assert releaser.get(f"{LIST}x/history/").status_code == 302


class ReleasesOurs(ActiveLockAdmin):
    def has_release_permission(self, request, obj=None):
        allowed = obj is None or obj.name.startswith("ours:")
        return allowed and super().has_release_permission(request, obj)


def test_a_lock_that_can_be_seen_but_not_released(serve, releaser, held):
    serve(ReleasesOurs)

    listed = text_of(releaser.get(LIST))
    page = releaser.get(f"{LIST}theirs_3A1/change/")
    everything = releaser.post(RELEASE, {"all": "yes"})

    assert "theirs:1" in listed
    assert page.status_code == 200
    assert RELEASE not in text_of(page)
    assert RELEASE in text_of(releaser.get(f"{LIST}ours_3A1/change/"))
    assert {row.info.name for row in everything.context["held"]} == {"ours:1", "ours:2"}
    assert confirm(releaser, seen(held["theirs:1"])).status_code == 403
    assert held["theirs:1"].owned()


@pytest.mark.parametrize("found", [[], ActiveLock.objects.filter(name="ours:1")])
def test_something_else_than_a_queryset_of_locks_is_explained(serve, releaser, found):
    class Wrong(ActiveLockAdmin):
        def get_queryset(self, request):
            return found

    serve(Wrong)

    for page in ("", "?q=ours", "?kind=mutex", "ours_3A1/change/", "ours_3A1/history/"):
        response = releaser.get(LIST + page)
        assert response.status_code == 503
        assert "Wrong.get_queryset() must return" in text_of(response)


def test_a_query_set_that_was_read_can_be_narrowed(hold, rf, admin_user):
    hold("ours:1")
    hold("theirs:1")
    request = rf.get(LIST)
    request.user = admin_user
    every = ActiveLockAdmin(ActiveLock, admin.site).get_queryset(request)

    assert len(every) == 2
    narrow = every.where(lambda lock: lock.name.startswith("ours:"))
    assert [lock.name for lock in narrow[0:10]] == ["ours:1"]
    assert every.filter(pk__in=["theirs:1"]).count() == 1


def test_a_lookup_is_an_error(rf, admin_user):
    request = rf.get(LIST)
    request.user = admin_user
    every = ActiveLockAdmin(ActiveLock, admin.site).get_queryset(request)

    with pytest.raises(FieldError, match="Use where"):
        every.filter(Q(name="ours:1"))


def test_an_address_with_a_lookup_shows_the_list(viewer):
    response = viewer.get(f"{LIST}?name=ours", follow=True)

    assert response.redirect_chain == [(f"{LIST}?e=1", 302)]
    assert response.status_code == 200
