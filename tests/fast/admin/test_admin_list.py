"""The list of active locks in the admin: search, filters, order, several cache aliases, and the
release of all that match."""

import html
import json
import re
from urllib.parse import urlencode

import pytest
from celery import Celery
from django.contrib.admin.models import LogEntry

from django_redislock import LockNotOwnedError, locks
from django_redislock.admin import ActiveLockAdmin
from django_redislock.admin.columns import COLUMNS
from tests.pages import (
    DASHBOARD,
    LIST,
    RELEASE,
    forms_of,
    link_to,
    listed,
    lock_page,
    postpone,
    text_of,
    words_of,
)

from .test_admin import boxes, confirm, seen

pytestmark = pytest.mark.django_db


def choices(response, parameter) -> list[str]:
    (spec,) = [
        each for each in response.context["cl"].filter_specs if each.parameter_name == parameter
    ]
    return [str(each["display"]) for each in spec.choices(response.context["cl"])][1:]


def test_pages_go_up_to_a_bound_and_say_so(hold, viewer, monkeypatch):
    monkeypatch.setattr(ActiveLockAdmin, "list_per_page", 2)
    monkeypatch.setattr(ActiveLockAdmin, "list_max", 4)
    for number in range(6):
        hold(f"n{number}", timeout=40 + number)

    note = "6 active locks match. Only the 4 whose leases expire first were read."
    assert note in text_of(viewer.get(LIST, {"q": "n", "kind": "mutex"}))
    assert listed(viewer, p="9" * 40) == ["n2", "n3"]
    assert listed(viewer, p="x") == ["n0", "n1"]
    assert len(listed(viewer, all="")) == 4


# States, filters and order


def test_search_and_filters_narrow_the_list(hold, viewer):
    def acquire(name):
        hold(name)

    for name, task in (("invoice:1", "shop.pay"), ("invoice:22", "<b>\u202e")):
        in_task = Celery(set_as_current=False).task(acquire, name=task, shared=False)
        in_task.apply((name,)).get()
    hold("report")
    host = locks.get("report").holder.host

    page = viewer.get(LIST)

    assert choices(page, "task") == ["(none)", "<b>\\u202e", "shop.pay"]
    assert choices(page, "host") == [host]
    with locks.semaphore("many", 2, timeout=30):
        for query, found in (
            ({"q": "voice"}, ["invoice:1", "invoice:22"]),
            ({"q": "invoice:?"}, ["invoice:1"]),
            ({"q": "in*2"}, ["invoice:22"]),
            ({"q": "[i]nvoice"}, []),
            ({"task": "shop.pay"}, ["invoice:1"]),
            ({"task": "", "q": "e"}, ["report"]),
            ({"host": host, "q": " "}, ["invoice:1", "invoice:22", "many", "report"]),
            ({"kind": "semaphore"}, ["many"]),
            ({"kind": "no"}, []),
        ):
            assert sorted(listed(viewer, **query)) == found, query


def test_each_column_sorts_both_ways(hold, viewer):
    for number, name in enumerate("bca"):
        hold(name, timeout=30 + number)

    for place in range(len(COLUMNS)):
        up, down = listed(viewer, o=place), listed(viewer, o=f"-{place}")
        assert set(up) == set(down) == set("abc")
        assert COLUMNS[place].__name__ != "lease" or up == down[::-1] == ["b", "c", "a"]


def test_stale_locks_and_those_with_waiters_come_first(redis_server, hold, wait, viewer):
    for name in ("a", "late", "stale", "waited"):
        hold(name, timeout=60 if name == "a" else 90)
    wait("waited")
    postpone(redis_server, "late", seconds=35)
    postpone(redis_server, "stale", seconds=50)

    assert listed(viewer) == ["stale", "late", "waited", "a"]
    assert choices(viewer.get(LIST), "state")[:2] == ["stale (1)", "late (1)"]


# Several aliases


def offered(response) -> list[str]:
    """The cache aliases that the list offers, beginning with the chosen one."""
    [line] = re.findall("<p><span>Cache alias</span>(.*?)</p>", text_of(response))
    found = re.findall(r'<a href="\?using=\w+"( aria-current="true")?>(\w+)</a>', line)
    return [alias for _, alias in sorted(found, reverse=True)]


def test_the_list_has_the_locks_of_one_alias(other, hold, releaser):
    here, there = hold("x"), hold("x", other)
    hold("y", other)

    page, others = releaser.get(LIST), releaser.get(LIST, {"using": "other"})
    assert (listed(releaser), listed(releaser, using="other")) == (["x"], ["x", "y"])
    assert (offered(page), offered(others)) == (["default", "other"], ["other", "default"])
    for address in (f"{LIST}x/change/?using=other", f"{DASHBOARD}?using=other"):
        assert f'href="{address}"' in text_of(others)
    dashboard = releaser.get(DASHBOARD, {"using": "other"})
    assert link_to(dashboard, "All locks") == f"{LIST}?using=other"
    [form] = forms_of(lock_page(releaser, "x", using="other"), f"{RELEASE}?using=other")
    assert form["seen"] == seen(there)

    asked, done = release_of(releaser, "x", using="other")
    assert "Cache alias other" in words_of(asked)
    assert done.redirect_chain == [(f"{LIST}?using=other", 302)]
    assert (here.owned(), there.owned()) == (True, False)
    assert LogEntry.objects.get().change_message.startswith("Force-released on other. ")


def release_of(client, name: str, **query):
    """Return the confirmation of a release, and the page after it."""
    address = f"{RELEASE}?{urlencode(query)}"
    asked = client.post(address, {"seen": boxes(client, **query)[name]})
    confirmed = {"seen": asked.context["seen"], "confirmed": "yes"}
    return asked, client.post(address, confirmed, follow=True)


@pytest.mark.filterwarnings("default")
def test_a_quorum_lock_is_released_on_the_servers_that_respond(three_servers, releaser, unusable):
    quorum = locks.quorum("payout", three_servers, timeout=60)
    assert quorum.acquire()

    _, done = release_of(releaser, "payout", using="third")

    assert "Released “payout”." in words_of(done)
    with pytest.raises(LockNotOwnedError):
        quorum.release()
    assert LogEntry.objects.filter(change_message__startswith="Force-released").count() == 3


def failing(client, alias, *, answers):
    """Return the responses of each page about an alias, which all have this status."""
    text = json.dumps([("x", 1)])
    query = urlencode({"using": alias})
    found = [client.get(f"{page}?{query}") for page in (LIST, DASHBOARD, f"{LIST}x/change/")]
    forms = ({"seen": text}, {"seen": text, "confirmed": "yes"}, {"all": "yes"})
    found += [client.post(f"{RELEASE}?{query}", form) for form in forms]
    assert [each.status_code for each in found] == [answers] * len(found)
    return found


BROKEN = {
    "no server": {"LOCATION": "redis://127.0.0.1:1/0"},
    "an option": {"OPTIONS": {"socket_timeout": "5"}},
    "no Redis": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_alias_costs_only_its_pages(hold, releaser, settings, what):
    entry = {**settings.CACHES["default"], **BROKEN[what]}
    settings.CACHES = {**settings.CACHES, "broken": entry}
    hold("x")
    if what == "no server":
        settings.REDISLOCK_CACHE = "broken"

    for response in failing(releaser, "broken", answers=503):
        assert "The locks of “broken” cannot be read: " in html.unescape(text_of(response))
        assert link_to(response, "Cache alias default") == "?using=default"

    assert listed(releaser, using="default") == ["x"]
    for page in (DASHBOARD, f"{LIST}x/change/"):
        assert releaser.get(page, {"using": "default"}).status_code == 200


def test_an_alias_that_does_not_exist(releaser, unusable):
    failing(releaser, "nonsense", answers=404)
    assert offered(releaser.get(LIST)) == ["default", "away"]


# Release all that match


def test_release_of_all_that_match_leads_back_to_the_page(hold, releaser, monkeypatch):
    monkeypatch.setattr(ActiveLockAdmin, "list_per_page", 1)
    kept, *others = [hold(name) for name in ("b:1", "a:1", "a:2")]
    page = text_of(releaser.get(LIST, {"q": "a:", "p": "2"}))
    assert "Release all 2 matching locks…" in page
    [action] = re.findall(r'<form id="redislock-all" method="post" action="([^"]*)"', page)

    confirmation = releaser.post(html.unescape(action), {"all": "yes"})
    assert all(lock.owned() for lock in others)
    [action] = re.findall(rf'<form method="post" action="({RELEASE}[^"]*)"', text_of(confirmation))
    done = releaser.post(
        html.unescape(action), {"seen": confirmation.context["seen"], "confirmed": "yes"}
    )

    assert done.url == f"{LIST}?q=a%3A&p=2"
    assert [info.name for info in locks.active()] == [kept.name]


def test_more_than_the_bound_are_not_released(hold, releaser, monkeypatch):
    monkeypatch.setattr(ActiveLockAdmin, "release_max", 2)
    held = [hold(f"n{number}", timeout=30 + number) for number in range(5)]

    confirmation = releaser.post(f"{RELEASE}?kind=mutex", {"all": "yes"})

    note = "At most 2 holders are released at a time. 3 more holders match, and stay as they are."
    assert note in text_of(confirmation)
    assert confirm(releaser, seen(*held)).status_code == 400
    assert all(lock.owned() for lock in held)
    confirm(releaser, confirmation.context["seen"])
    assert [lock.owned() for lock in held] == [False, False, True, True, True]
