"""What an operator sees and does, as a browser shows it."""

from urllib.parse import urljoin

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User

from django_redislock import locks
from tests.lock_tools import commands
from tests.tools import wait_until

from .browser import Tab
from .pages import (
    LIST,
    RELEASE,
    ask_to_release,
    ask_to_release_selected,
    confirm,
    lists,
    may_release,
    open_lock,
    path_of,
    search,
)

FORGE = """
const [address, seen, done] = arguments;
const token = document.querySelector('[name=csrfmiddlewaretoken]').value;
const body = new URLSearchParams({csrfmiddlewaretoken: token, confirmed: 'yes', seen});
fetch(address, {method: 'POST', body}).then((answer) => done(answer.status));
"""

HOSTILE_NAMES = {
    "script": "<script>document.title = 'ran'</script>",
    "attribute": "\"' onmouseover=document.title='ran' autofocus onfocus=document.title='ran' ",
    "template": "{{ 7|add:7 }}{% now 'Y' %}${7*7}",
    "long": "x" * 500,
    "long in Chinese": "锁" * 170,
    "turned around": "invoice:\N{RIGHT-TO-LEFT OVERRIDE}24",
}


@pytest.fixture(params=["with scripts", pytest.param("without scripts", marks=pytest.mark.slow)])
def either_way(request: pytest.FixtureRequest, tab: Tab) -> None:
    if request.param == "without scripts":
        tab.without_scripts()


@pytest.mark.usefixtures("either_way")
def test_looks_for_a_lock_and_opens_it(tab: Tab, viewer: User, hold) -> None:
    lock = hold("invoice:42", metadata={"site": "north"})
    hold("report")
    tab.open(LIST)
    assert lists(tab, "invoice:42")
    assert lists(tab, "report")

    search(tab, "voice")
    assert lists(tab, "invoice:42")
    assert not lists(tab, "report")

    open_lock(tab, "invoice:42")
    assert tab.get("main").text.count("invoice:42")
    for fact in (str(lock.fence_token), "mutex", "north"):
        assert fact in tab.text


@pytest.mark.usefixtures("either_way")
def test_searches_by_a_pattern(tab: Tab, viewer: User, hold) -> None:
    for name in ("invoice:4", "invoice:42", "report"):
        hold(name)
    tab.open(LIST)

    search(tab, "in*:?")

    assert lists(tab, "invoice:4")
    assert not lists(tab, "invoice:42")


@pytest.mark.usefixtures("either_way")
def test_releases_selected_ones_after_confirming(tab: Tab, releaser: User, hold) -> None:
    held = {name: hold(name) for name in ("first", "second", "third")}
    tab.open(LIST)

    ask_to_release_selected(tab, "first", "third")
    assert {lock.locked() for lock in held.values()} == {True}
    confirm(tab)

    tab.wait_for_text("Released 2 locks.")
    assert [name for name, lock in held.items() if lock.locked()] == ["second"]
    assert {entry.object_repr for entry in LogEntry.objects.all()} == {"first", "third"}


@pytest.mark.usefixtures("either_way")
def test_releases_one_from_its_own_page(tab: Tab, releaser: User, hold) -> None:
    lock = hold("invoice:42", timeout=2)
    tab.open(path_of("invoice:42"))

    ask_to_release(tab)
    tab.wait_for_text("may still be at work")
    confirm(tab)

    tab.wait_for_text("Released “invoice:42”.")
    assert not lock.locked()
    wait_until(lambda: lock.lost)


@pytest.mark.usefixtures("either_way")
def test_thinks_better_of_it(tab: Tab, releaser: User, hold) -> None:
    lock = hold("invoice:42")
    tab.open(path_of("invoice:42"))

    ask_to_release(tab)
    tab.follow(tab.get("button", "No, take me back"))

    assert lists(tab, "invoice:42")
    assert lock.owned()


@pytest.mark.usefixtures("either_way")
def test_a_lock_that_changed_hands_since_is_left_alone(tab: Tab, releaser: User, hold) -> None:
    first = hold("invoice:42")
    tab.open(path_of("invoice:42"))
    ask_to_release(tab)
    first.release()
    second = hold("invoice:42")

    confirm(tab)

    tab.wait_for_text("changed hands")
    assert second.owned()
    assert not LogEntry.objects.exists()


@pytest.mark.usefixtures("either_way")
def test_without_the_permission_nothing_is_offered(tab: Tab, viewer: User, hold) -> None:
    hold("invoice:42")
    for path in (LIST, path_of("invoice:42")):
        tab.open(path)
        assert "invoice:42" in tab.text
        assert not may_release(tab)


def test_with_the_permission_it_is(tab: Tab, releaser: User, hold) -> None:
    hold("invoice:42")
    for path in (LIST, path_of("invoice:42")):
        tab.open(path)
        assert may_release(tab)


def _forge(tab: Tab, lock) -> int:
    """The status that a release gets which no page offered."""
    tab.open(LIST)
    seen = f'[["{lock.name}", {lock.fence_token}]]'
    return tab.driver.execute_async_script(FORGE, RELEASE, seen)


def test_a_forged_release_is_forbidden(tab: Tab, viewer: User, hold) -> None:
    lock = hold("invoice:42")
    tab.expect_complaint("status of 403")
    assert _forge(tab, lock) == 403
    assert lock.owned()


def test_but_to_those_who_may_release(tab: Tab, releaser: User, hold) -> None:
    lock = hold("invoice:42")
    assert _forge(tab, lock) == 200
    assert not lock.owned()


def test_a_visitor_who_may_see_nothing_is_refused(tab: Tab, log_in, hold) -> None:
    hold("invoice:42")
    log_in()
    tab.expect_complaint("status of 403")
    tab.open(LIST)
    assert "invoice:42" not in tab.text


def test_a_stranger_is_asked_to_log_in(tab: Tab) -> None:
    tab.open(LIST)
    assert tab.path == f"/admin/login/?next={LIST}"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=kind, marks=[pytest.mark.slow] * (kind not in ("script", "long")))
        for kind, name in HOSTILE_NAMES.items()
    ],
)
def test_a_name_is_text_that_fits_wherever_it_stands(
    tab: Tab, releaser: User, hold, name: str
) -> None:
    lock = hold(name, metadata={name: name})
    tab.open(LIST)
    _is_harmless(tab)

    tab.follow(tab.get("main").find_element("css selector", "tbody th a"))
    _is_harmless(tab)

    ask_to_release(tab)
    _is_harmless(tab)

    confirm(tab)
    _is_harmless(tab)
    assert not lock.locked()


def test_the_spaces_of_a_name_are_seen_wherever_it_stands(tab: Tab, releaser: User, hold) -> None:
    name = " nightly  report"
    hold(name)
    tab.open(LIST)
    assert _shows(tab, name)

    tab.follow(tab.get("main").find_element("css selector", "tbody th a"))
    assert _shows(tab, name)

    ask_to_release(tab)
    assert _shows(tab, name)

    confirm(tab)
    assert _shows(tab, name)

    tab.open(f"{LIST}dashboard/")
    assert _shows(tab, name)


def _shows(tab: Tab, text: str) -> bool:
    return text in tab.get("main").get_property("innerText")


def _is_harmless(tab: Tab) -> None:
    assert tab.driver.title != "ran"
    assert not tab.scrolls_sideways()
    assert tab.complaints() == []


LINKS = """
return [...document.querySelectorAll('#content a[href], #content-main a[href]')]
    .map((link) => link.getAttribute('href')).filter((address) => address);
"""


@pytest.mark.slow
def test_clicking_through_everything_never_scans_the_keys(
    tab: Tab, releaser: User, hold, redis_server
) -> None:
    for name in ("a:1", "a:2"):
        hold(name).release()
        hold(name)
    with commands(redis_server) as asked:
        seen = visit_all(tab)
        open_release(tab, "a:1")
    assert locks.get("a:1") is None
    assert len(seen) > 30
    assert asked["evalsha"] > 100
    assert not {"keys", "scan", "flushdb"} & asked.keys()


def visit_all(tab: Tab) -> set[str]:
    """Open our pages and follow what they link, one step far from each."""
    seen: set[str] = set()
    for start in (LIST, path_of("a:1"), f"{LIST}dashboard/"):
        tab.open(start)
        here = {urljoin(start, address) for address in tab.script(LINKS)}
        for address in sorted(each for each in here - seen if each.startswith(LIST)):
            tab.open(address)
            assert tab.get("main")
        seen |= here
    return seen


def open_release(tab: Tab, name: str) -> None:
    tab.open(path_of(name))
    ask_to_release(tab)
    confirm(tab)


def test_a_dark_page_is_dark(tab: Tab, viewer: User) -> None:
    tab.open(LIST)
    light = _brightness(tab)
    tab.emulate(scheme="dark")
    assert light > 200
    assert _brightness(tab) < 60


def _brightness(tab: Tab) -> float:
    colour = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    return sum(tab.script(colour)[:3]) / 3


def test_locks_that_are_away_are_said_to_be(tab: Tab, viewer: User, settings) -> None:
    away = settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {"default": away}
    tab.expect_complaint("status of 503")

    tab.open(LIST)

    tab.wait_for_text("The locks can't be read")


def test_nothing_locked_is_said_too(tab: Tab, viewer: User) -> None:
    assert locks.count() == 0
    tab.open(LIST)
    tab.wait_for_text("Nothing is locked now.")
