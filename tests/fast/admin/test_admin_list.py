"""The list of active locks in the admin: requests to Redis, filters, order, columns, release
of all that match."""

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
from django_redislock.text import age
from tests.lock_tools import start, waiting
from tests.pages import (
    DASHBOARD,
    LIST,
    RELEASE,
    acquired_before,
    link_to,
    lock_page,
    postpone,
    round_trips,
    text_of,
    words_of,
)
from tests.tools import wait_until

from .conftest import acquire_and_release
from .test_admin import boxes, confirm, messages_of

pytestmark = pytest.mark.django_db


def names_of(response) -> list[str]:
    return [row.name for row in response.context["cl"].result_list]


def listed(client, **query) -> list[str]:
    return names_of(client.get(LIST, query))


def choices(response, parameter) -> list[str]:
    (spec,) = [
        each for each in response.context["cl"].filter_specs if each.parameter_name == parameter
    ]
    return [str(each["display"]) for each in spec.choices(response.context["cl"])][1:]


def only_cell(response, column) -> str:
    (cell,) = cells(response, column)
    return cell


def cells(response, column) -> list[str]:
    """The contents of a column."""
    pattern = rf'<t[dh] class="field-{column}">(.*?)</t[dh]>'
    return re.findall(pattern, text_of(response), re.DOTALL)


# Requests to Redis


def test_a_page_costs_five_round_trips_at_most(hold, viewer):
    for number in range(30):
        hold(f"n{number}")
    viewer.get(LIST)

    with round_trips() as asked:
        response = viewer.get(LIST)

    assert len(response.context["cl"].result_list) == 30
    assert 0 < len(asked) <= 5


def test_pages_go_up_to_a_bound(hold, viewer, monkeypatch):
    monkeypatch.setattr(ActiveLockAdmin, "list_per_page", 2)
    monkeypatch.setattr(ActiveLockAdmin, "list_max", 4)
    for number in range(6):
        hold(f"n{number}", timeout=40 + number)

    changelist = viewer.get(LIST, {"p": 2}).context["cl"]
    assert [row.name for row in changelist.result_list] == ["n2", "n3"]
    assert changelist.result_count == 4
    for page in ("3", "9" * 40):
        assert listed(viewer, p=page, o="") == ["n2", "n3"]
    for page in ("-1", "0", "x"):
        assert listed(viewer, p=page) == ["n0", "n1"]
    assert len(listed(viewer, all="")) == 4
    monkeypatch.setattr(ActiveLockAdmin, "list_max_show_all", 3)
    assert listed(viewer, all="", p=2) == ["n2", "n3"]


# States


def test_only_a_lease_that_was_renewed_is_shown_as_renewed(hold, viewer, redis_server):
    hold("renewed", timeout=60)
    acquired_before(redis_server, "renewed", seconds=25)
    first, granted = hold("granted"), locks.lock("granted", timeout=30)
    waiter = start(granted.acquire)
    wait_until(lambda: locks.get("granted").waiters)
    first.release()
    assert waiter.result()  # a waiter confirms its grant

    page = viewer.get(LIST)

    state = dict(zip(names_of(page), cells(page, "state"), strict=True))
    assert re.search(r'>renewed <span data-age="\d\.\d{3}">\d\.\ds</span> ago<', state["renewed"])
    assert ">renewed " not in state["granted"]
    assert "Renewed" in words_of(lock_page(viewer, "renewed"))
    assert "Renewed" not in words_of(lock_page(viewer, "granted"))
    locks.force_release("granted")


def test_a_row_shows_the_holder_rather_than_a_cooldown(viewer):
    cooling = locks.semaphore("x", 2, at_least_for=20)
    assert cooling.acquire()
    with locks.semaphore("x", 2):
        cooling.release()
        page = viewer.get(LIST)
        assert "●</span>&nbsp;held" in only_cell(page, "state")
        assert "<meter" in only_cell(page, "lease")
        assert listed(viewer, state="held") == ["x"]
        assert listed(viewer, state="cooldown") == []
    locks.force_release("x")


def test_lease_is_a_meter_with_its_seconds(hold, viewer):
    hold("x", timeout=60)

    lease = only_cell(viewer.get(LIST), "lease")

    assert re.search(r'<meter min="0" max="60.000" optimum="60.000" value="5\d\.', lease)
    assert 'aria-label="Left of a lease of 1m 00s"' in lease
    assert re.search(r'<span data-left="5\d\.\d+">5\ds</span> of 1m 00s', lease)


def test_a_name_of_spaces_alone_can_be_seen_and_followed(hold, viewer):
    hold("  ")
    shown = r"\x20\x20"
    [link] = re.findall(rf'<a href="([^"]+)">{re.escape(shown)}</a>', viewer.get(LIST).text)
    response = viewer.get(html.unescape(link))
    assert response.context["title"] == shown


# Filters


def test_filter_by_kind_task_and_host(hold, viewer):
    def acquire(name):
        hold(name)

    for name, task in (("a", "shop.pay"), ("b", "<b>\u202e")):
        in_task = Celery(set_as_current=False).task(acquire, name=task, shared=False)
        in_task.apply((name,)).get()
    hold("c")
    host = locks.get("a").holder.host

    page = viewer.get(LIST)

    assert choices(page, "task") == ["(none)", "<b>\\u202e", "shop.pay"]
    assert choices(page, "host") == [host]
    assert "<b>\\" not in text_of(page)
    assert listed(viewer, task="shop.pay") == ["a"]
    assert listed(viewer, task="<b>\\u202e") == ["b"]
    assert listed(viewer, task="") == ["c"]
    assert listed(viewer, host=host) == ["a", "b", "c"]
    assert "gone" in choices(viewer.get(LIST, {"task": "gone"}), "task")
    with locks.semaphore("many", 2, timeout=30):
        assert listed(viewer, kind="semaphore") == ["many"]
        assert listed(viewer, kind="mutex") == ["a", "b", "c"]
        assert listed(viewer, kind="no") == []


# Order


def test_each_column_sorts_both_ways(other, hold, viewer):
    for number, name in enumerate("bca"):
        hold(name, timeout=30 + number)
        wait_until(lambda name=name: age(locks.get(name).first) > 0)
    columns = [each.__name__ for each in COLUMNS]
    expected = {"name": "abc", "lease": "bca", "age": "acb"}

    for place, column in enumerate(columns):
        up, down = listed(viewer, o=place), listed(viewer, o=f"-{place}")
        assert set(up) == set(down) == set("abc")
        if column in expected:
            assert up == down[::-1] == list(expected[column])


def test_stale_locks_and_those_with_waiters_come_first(redis_server, hold, wait, viewer):
    for name in ("a", "late", "stale", "waited"):
        hold(name, timeout=60 if name == "a" else 90)
    wait("waited")
    postpone(redis_server, "late", seconds=35)
    postpone(redis_server, "stale", seconds=50)

    page = viewer.get(LIST)

    assert names_of(page) == ["stale", "late", "waited", "a"]
    assert listed(viewer, o="1")[0] == "stale"
    states = dict(each.rsplit(" ", 1) for each in choices(page, "state"))
    assert (states["stale"], states["late"], states["held"]) == ("(1)", "(1)", "(2)")
    assert choices(viewer.get(LIST, {"q": "a"}), "state")[0] == "stale (1)"
    assert choices(viewer.get(LIST, {"kind": "semaphore"}), "state") == []


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
    assert (names_of(page), names_of(others)) == (["x"], ["x", "y"])
    assert (offered(page), offered(others)) == (["default", "other"], ["other", "default"])
    assert f'href="{LIST}x/change/"' in text_of(page)
    assert f'href="{LIST}x/change/?using=other"' in text_of(others)
    assert f'href="{DASHBOARD}?using=other"' in text_of(others)
    assert "Release all" not in text_of(others)
    assert listed(releaser, using="other", q="y", kind="mutex") == ["y"]

    release = f"{RELEASE}?using=other"
    confirmation = releaser.post(release, {"seen": boxes(releaser, using="other")["x"]})
    assert "Cache alias other" in words_of(confirmation)
    confirmed = {"seen": confirmation.context["seen"], "confirmed": "yes"}
    assert releaser.post(release, confirmed).url == f"{LIST}?using=other"
    assert here.owned()
    assert not there.owned()
    assert listed(releaser, using="other") == ["y"]
    assert LogEntry.objects.get().change_message.startswith("Force-released on other. ")


def test_an_alias_that_is_unknown_or_not_on_redis(releaser, unusable):
    assert releaser.get(LIST, {"using": "nonsense"}).status_code == 404
    assert ask_for_all(releaser, using="nonsense").status_code == 404
    assert releaser.get(LIST, {"using": "memory"}).status_code == 503
    assert offered(releaser.get(LIST)) == ["default", "away"]


def test_an_empty_list_says_of_which_alias_it_is(other, hold, viewer):
    hold("x")
    assert "No lock of “other” is held now." in text_of(viewer.get(LIST, {"using": "other"}))


def release_of(client, name: str, **query):
    """Return the confirmation of a release, and the page after it."""
    address = f"{RELEASE}?{urlencode(query)}"
    asked = client.post(address, {"seen": boxes(client, **query)[name]})
    confirmed = {"seen": asked.context["seen"], "confirmed": "yes"}
    return asked, client.post(address, confirmed, follow=True)


PART_OF_A_QUORUM = "A quorum lock stays held until a majority of its servers have released it."


@pytest.mark.parametrize("using", ["default", "third"])
def test_a_quorum_lock_is_released_on_all_its_servers(three_servers, hold, releaser, using):
    quorum = locks.quorum("payout", three_servers, timeout=60)
    assert quorum.acquire()
    hold("payout-2")
    shown = lock_page(releaser, "payout", using=using)

    asked, done = release_of(releaser, "payout", using=using)

    assert [each.get("payout") for each in locks.everywhere()] == [None] * 3
    with pytest.raises(LockNotOwnedError):
        quorum.release()
    assert len(asked.context["held"]) == 1
    assert "Released “payout”." in words_of(done)
    for response in (shown, asked, done):
        assert PART_OF_A_QUORUM in words_of(response)
    assert PART_OF_A_QUORUM not in words_of(lock_page(releaser, "payout-2"))
    assert LogEntry.objects.filter(change_message__startswith="Force-released").count() == 3


@pytest.mark.filterwarnings("default")
def test_a_quorum_lock_is_released_on_the_servers_that_respond(three_servers, releaser, unusable):
    quorum = locks.quorum("payout", three_servers, timeout=60)
    assert quorum.acquire()
    _, done = release_of(releaser, "payout", using="second")
    assert "Released “payout”." in words_of(done)
    with pytest.raises(LockNotOwnedError):
        quorum.release()


def test_the_waiter_of_a_quorum_lock_is_shown_where_it_is_queued(three_servers, releaser):
    quorum = locks.quorum("payout", three_servers, timeout=60)
    assert quorum.acquire()
    waiter = start(acquire_and_release, locks.quorum("payout", three_servers))
    waiting(locks.using("default"), "payout", 1)

    pages = [lock_page(releaser, "payout", using=each) for each in three_servers]
    asked, _ = release_of(releaser, "payout", using="third")
    waiter.result(60)

    assert [len(page.context["waiters"]) for page in pages] == [1, 0, 0]
    for response in (*pages, asked):
        assert "Each of its waiters is in the queue of only one of them." in words_of(response)
    assert "Nobody waits." not in words_of(asked)


def test_an_unreachable_alias_costs_only_its_pages(hold, releaser, unusable):
    lock = hold("x")

    page = releaser.get(LIST)
    failures = [
        releaser.get(LIST, {"using": "away"}),
        releaser.post(f"{RELEASE}?using=away", {"seen": json.dumps([("y", 1)])}),
        ask_for_all(releaser, using="away", kind="mutex"),
    ]

    assert names_of(page) == ["x"]
    for each in failures:
        assert each.status_code == 503
        assert "The locks of “away” cannot be read: " in html.unescape(text_of(each))
    assert names_of(releaser.get(LIST + link_to(failures[0], "Cache alias default"))) == ["x"]
    assert lock.owned()


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"LOCATION": "redis://127.0.0.1", "OPTIONS": {"db": "x"}}, "db must be"),
        ({"OPTIONS": {"socket_timeout": "5"}}, "socket_timeout must be"),
        ({"LOCATION": "redis://.example.com:6379/0"}, ""),
        ({"OPTIONS": {"pool_class": "redis.NoPool"}}, "NoPool"),
    ],
)
def test_a_mistake_in_another_alias_costs_only_its_pages(hold, viewer, settings, entry, text):
    settings.CACHES = {**settings.CACHES, "other": {**settings.CACHES["default"], **entry}}
    hold("x")

    for address in (LIST, f"{LIST}x/change/", DASHBOARD):
        assert viewer.get(address).status_code == 200
        page = viewer.get(address, {"using": "other"})
        assert page.status_code == 503
        assert text in text_of(page)


# Release all that match


def ask_for_all(client, **query):
    return client.post(f"{RELEASE}?{urlencode(query)}", {"all": "yes"})


def test_release_of_all_that_match(hold, releaser):
    kept, *others = [hold(name) for name in ("b:1", "a:1", "a:2")]
    page = releaser.get(LIST, {"q": "a:"})
    assert "Release all 2 matching locks…" in text_of(page)
    assert f'action="{RELEASE}?q=a%3A"' in text_of(page)

    confirmation = ask_for_all(releaser, q="a:")
    assert all(lock.owned() for lock in others)
    assert {row.info.name for row in confirmation.context["held"]} == {"a:1", "a:2"}
    done = releaser.post(
        f"{RELEASE}?q=a%3A", {"seen": confirmation.context["seen"], "confirmed": "yes"}
    )

    assert done.url == f"{LIST}?q=a%3A"
    assert [info.name for info in locks.active()] == [kept.name]
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize("query", [{}, {"kind": "mutex"}])
def test_more_than_the_bound_are_not_released(hold, releaser, monkeypatch, query):
    monkeypatch.setattr(ActiveLockAdmin, "release_max", 2)
    monkeypatch.setattr(ActiveLockAdmin, "list_per_page", 1)
    held = [hold(f"n{number}", timeout=30 + number) for number in range(5)]

    confirmation = ask_for_all(releaser, **query)

    note = "At most 2 holders are released at a time. 3 more holders match, and stay as they are."
    assert note in text_of(confirmation)
    assert all(lock.owned() for lock in held)
    confirm(releaser, confirmation.context["seen"])
    assert [lock.owned() for lock in held] == [False, False, True, True, True]


def test_a_release_leads_back_to_the_same_page_of_the_list(hold, releaser, monkeypatch):
    monkeypatch.setattr(ActiveLockAdmin, "list_per_page", 1)
    for name in ("n1", "n2"):
        hold(name)
    page = text_of(releaser.get(LIST, {"q": "n", "p": "2"}))
    [action] = re.findall(r'<form id="redislock-all" method="post" action="([^"]*)"', page)
    address = html.unescape(action)
    confirmation = releaser.post(address, {"all": "yes"})
    [action] = re.findall(rf'<form method="post" action="({RELEASE}[^"]*)"', text_of(confirmation))
    fields = {"seen": confirmation.context["seen"], "confirmed": "yes"}

    assert releaser.post(html.unescape(action), fields).url == f"{LIST}?q=n&p=2"


def test_no_form_releases_more_than_the_bound(hold, releaser, monkeypatch):
    monkeypatch.setattr(ActiveLockAdmin, "release_max", 1)
    held = [hold(name) for name in "ab"]
    seen = json.dumps([(lock.name, lock.fence_token) for lock in held])

    assert len(releaser.post(RELEASE, {"seen": seen}).context["held"]) == 1
    assert confirm(releaser, seen).status_code == 400
    assert all(lock.owned() for lock in held)


def test_nothing_matches_any_more(hold, releaser):
    done = ask_for_all(releaser, q="x")

    assert done.url == f"{LIST}?q=x"
    assert messages_of(done) == ["Nothing to release."]


def test_confirmation_says_what_it_cannot_do(hold, releaser):
    hold("x", timeout=60)
    hold("y", timeout=30, auto_renewal=False)

    both = ask_for_all(releaser)

    for notified in ("within 20s", "on its next release or check"):
        assert text_of(both).count(f"<td>{notified}</td>") == 1
    one = text_of(ask_for_all(releaser, q="x"))
    assert one.count("The holder is not stopped") == 1
    assert one.count("only if you check fencing tokens. To stop its work, stop its process") == 1


def test_only_the_selected_holder_of_a_semaphore_is_released(nothing_left_behind, releaser):
    first, second = (locks.semaphore("x", 2, timeout=30) for _ in range(2))
    assert first.acquire(blocking=False)
    box = boxes(releaser)["x"]
    assert second.acquire(blocking=False)

    confirmation = releaser.post(RELEASE, {"seen": box})
    confirm(releaser, confirmation.context["seen"])

    assert len(confirmation.context["held"]) == 1
    assert (first.owned(), second.owned()) == (False, True)
    second.release()


def test_release_asks_in_batches(hold, releaser):
    seen = json.dumps([(name, hold(name).fence_token) for name in map(str, range(40))])

    releaser.post(RELEASE, {"seen": seen})  # loads the script
    with round_trips() as asked:
        releaser.post(RELEASE, {"seen": seen})

    assert len(asked) <= 5
