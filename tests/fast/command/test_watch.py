"""The full screen of `manage.py locks watch`."""

import asyncio
import re

import pytest
from django.utils import translation

from django_redislock import locks
from django_redislock.management import watch_app
from tests.commands import Screen, draw, run, watch_screen
from tests.lock_tools import start
from tests.pages import postpone

from .conftest import acquire_and_release, held_by_task

pytestmark = pytest.mark.usefixtures("empty_history")


@pytest.fixture(autouse=True)
def no_translations():
    """Use no language, as the command does. An earlier test can have left one active."""
    with translation.override(None):
        yield


def test_without_a_terminal_it_names_the_other_command():
    done = run("watch")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "CommandError: locks watch needs a terminal. Use locks list.\n"


HEADER = r"^NAME +STATE +KIND +HOLDER( +TASK)? +AGE +LEFT +WAITERS +FENCE$"


def test_screen_shows_locks_and_what_happens(hold):
    with locks.lock("before"):
        pass
    lock = hold("invoice:42", timeout=300, auto_renewal=False)
    waiters = []

    async def scenario(screen: Screen) -> None:
        await screen.shows(r"^1 of 1 locks, 0 stale, 0 waiting\. On default, every 0\.1s\.$")
        await screen.shows(HEADER)
        await screen.shows(r"^invoice:42 +held \(no renewal\) +mutex .* 0 +\d{16}$")
        await screen.shows(r"^\d\d:\d\d:\d\d +released +before +0\.0s ")
        waiters.append(start(acquire_and_release, locks.lock("invoice:42")))
        await screen.shows(r"^invoice:42 .* 1 \([\d.]+s\) +\d{16}$")
        await by_thread(lock.release)
        await screen.shows(r"^\d\d:\d\d:\d\d +released +invoice:42 ")
        await screen.shows("^0 of 0 locks, 0 stale, 0 waiting")
        await screen.shows(r"^No active locks\.$")

    on_screen(scenario)
    assert waiters[0].result(60)


def on_screen(scenario, **options: int) -> None:
    """Run a scenario, for a minute at most, with the full screen."""

    async def run() -> None:
        async with asyncio.timeout(60), watch_screen(**options) as screen:
            await scenario(screen)

    asyncio.run(run())


async def by_thread(function):
    """Call a function outside of any task, so that a lock belongs to the thread of the test."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(lambda: done.set_result(function()))
    return await done


def test_screen_shows_the_details_of_a_lock_in_english(hold, settings):
    settings.LANGUAGE_CODE = "de"
    hold("a", metadata={"customer": "c-1"})
    hold("b[red]", metadata={"why": "[/] [bold]x"})

    async def scenario(screen: Screen) -> None:
        await screen.shows("^b")
        await screen.press("down", "enter")
        await screen.shows(r"b\[red\] \(mutex\): held")
        await screen.shows(r'metadata +\{"why": "\[/\] \[bold\]x"\}')
        await screen.shows("In use: releasing is not safe")
        await screen.shows("Next: To see what the process does")
        await screen.press("escape")
        await screen.press("up", "enter")
        await screen.shows(r'metadata +\{"customer": "c-1"\}')
        await screen.press("q")
        await screen.shows("^ Enter Details  / Search  r Release  q Quit$")

    on_screen(scenario)


def test_details_of_a_lock_that_has_ended(hold, settings):
    settings.REDISLOCK_HISTORY = 0
    lock = hold("x")

    async def scenario(screen: Screen) -> None:
        await screen.shows("^x ")
        await by_thread(lock.release)
        await screen.press("enter")
        await screen.shows("x is not held, and has no history")

    on_screen(scenario, interval=3600)


@pytest.mark.parametrize(("key", "is_released"), [("y", True), ("n", False), ("enter", False)])
def test_screen_releases_a_lock_after_a_question(hold, key, is_released):
    kept, lock = hold("a"), hold("b")

    async def scenario(screen: Screen) -> None:
        await screen.shows("^b ")
        await screen.press("end", "r")
        await screen.shows(r"To be released: b \(.*held by")
        await screen.shows("held: The holder is not stopped: it keeps working alongside")
        await screen.shows(r"Release 1 lock\? \[y/N\]")
        await screen.press(key)
        await screen.shows("forced +b " if is_released else "^2 of 2 locks")
        await screen.shows("q Quit$")

    on_screen(scenario)
    assert kept.owned()
    assert lock.owned() is not is_released


def test_screen_releases_no_newer_holder(hold):
    lock, newer = hold("x"), []

    async def scenario(screen: Screen) -> None:
        await screen.shows("^x ")
        await screen.press("r")
        await screen.shows(r"Release 1 lock\?")
        await by_thread(lock.release)
        newer.append(await by_thread(lambda: hold("x")))
        await screen.press("y")
        await screen.shows("x was not released: the holder has changed")

    on_screen(scenario, interval=3600)
    assert newer[0].owned()


def test_screen_searches(hold):
    for name in ("invoice:1", "invoice:2", "quit report", "[red]"):
        hold(name)

    async def scenario(screen: Screen) -> None:
        async def search(text: str, count: int) -> str:
            await screen.press("slash", "home", "shift+end", "delete")
            await screen.press(*text, "enter")
            return await screen.shows(f"^{count} of ")

        await screen.shows("^4 of 4 locks")
        assert "report" not in await search("nvoic", 2)
        assert "invoice" not in await search("q?it*", 1)
        assert "[red]" in await search("[", 1)
        await screen.shows(r"^\[red\] +held")
        await search("", 4)
        await screen.press("slash", *"none", "escape", "enter")
        await screen.shows("Next: ")

    on_screen(scenario)


def test_the_selection_stays_with_its_lock(hold, redis_server):
    hold("a"), hold("b", timeout=90)

    async def scenario(screen: Screen) -> None:
        await screen.shows("^b ")
        await screen.press("down")
        postpone(redis_server, "b", seconds=60)
        await screen.shows(r"FENCE\nb +stale ")
        await screen.press("enter")
        await screen.shows(r"b \(mutex\): stale")

    on_screen(scenario)


def assert_shows(text, *patterns):
    for pattern in patterns:
        assert re.search(rf"^{pattern} *$", text, re.MULTILINE), text


def test_the_summary_says_how_many_locks_it_covers(hold, monkeypatch):
    monkeypatch.setattr(watch_app, "MAX_READ", 1)
    hold("ends:last", timeout=600)
    hold("ends:first", timeout=300)

    assert_shows(draw(), r"1 of 2 locks, 0 stale, 0 waiting of the first 1\..*", "ends:first .*")


def test_a_stale_lock_is_shown_although_its_lease_is_the_last_to_expire(
    hold, redis_server, monkeypatch
):
    monkeypatch.setattr(watch_app, "MAX_LOCKS", 1)
    hold("alive", timeout=20)
    hold("stuck", timeout=90)
    postpone(redis_server, "stuck", seconds=60)

    assert_shows(draw(), r"1 of 2 locks, 1 stale, 0 waiting\..*", "stuck +stale .*")


def test_a_small_screen_and_a_long_name(hold):
    hold("x" * 500)

    text = draw(columns=60, rows=8)

    assert_shows(text, "NAME +STATE +HOLDER +AGE +LEFT +WAITERS", "xx.*….*")
    assert max(map(len, text.splitlines())) <= 60


def test_screen_shows_the_task():
    with held_by_task("x"):
        assert_shows(draw(), "NAME .* TASK +AGE .*", r"x +held .* sync \[id-1\] .*")


def test_screen_says_that_redis_is_unreachable(hold, disconnect, settings):
    hold("x")
    caches = settings.CACHES

    async def scenario(screen: Screen) -> None:
        await screen.shows("^x ")
        disconnect()
        await screen.shows(r"^Read \S+ ago\. The locks on 'default' can't be reached: .+")
        text = await screen.shows("^x ")
        assert "s3cret" not in text
        settings.CACHES = caches
        await screen.shows(r"\A(?![^\0]*reached)")

    on_screen(scenario)


def test_an_unexpected_error_ends_the_screen(settings):
    mistaken = {**settings.CACHES["default"], "OPTIONS": {"socket_timeoutt": 5}}
    settings.CACHES = {**settings.CACHES, "default": mistaken}

    async def scenario() -> None:
        async with asyncio.timeout(60), watch_screen() as screen:
            await screen.ends()
        assert "socket_timeoutt" in str(screen.app.return_value)

    asyncio.run(scenario())
