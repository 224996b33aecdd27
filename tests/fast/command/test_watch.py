"""`manage.py locks watch`, without a terminal and on a full screen, one look after the other."""

import os
import re

import pytest

from django_redislock import locks
from django_redislock.management.screen import Eyes
from django_redislock.management.watching import Watcher, new_events
from django_redislock.text import holder_text
from tests.commands import draw, watch
from tests.lock_tools import start, waiting
from tests.pages import postpone
from tests.tools import wait_until

from .conftest import acquire_and_release, held_by_task

pytestmark = pytest.mark.usefixtures("empty_history")


def nothing():
    """A step between two looks in which nothing happens."""


def use(*names):
    for name in names:
        with locks.lock(name):
            pass


def assert_match(lines, patterns):
    assert len(lines) == len(patterns), lines
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00  {pattern}", line)


# In lines


def test_lines_show_what_there_is_and_what_changes(hold):
    hold("already")
    new, waiters = [], []

    def acquire():
        new.append(hold("new", metadata={"x": 1}))

    def queue():
        waiters.append(start(acquire_and_release, locks.lock("new")))
        waiting(locks, "new", 1)

    def release():
        fence_tokens.append(new[0].fence_token)
        new[0].release()
        assert waiters[0].result(60)

    fence_tokens = []
    lines = watch(nothing, acquire, queue, release)

    patterns = [
        r"held +already  mutex  \S+  fence \d+",
        rf"taken +new  mutex  .*fence {fence_tokens[0]}",
        r"waiting +new  1 waits",
        r"released +new .* held .*",
        r"released +new .* waited .*",
    ]
    assert_match(lines, patterns)


def test_lines_show_stale_renewed_and_expired_locks(hold, redis_server):
    lock = hold("stuck:1", timeout=90)
    short = hold("stuck:2", timeout=0.4, auto_renewal=False)

    lines = watch(
        nothing,
        lambda: postpone(redis_server, "stuck:1", seconds=60),
        lock.reacquire,
        lambda: wait_until(lambda: not short.owned() and locks.history("stuck:2")),
        arguments=["stuck*"],
    )

    shown = [line.split()[2:4] for line in lines]
    assert sorted(shown[:2]) == [["held", "stuck:1"], ["held", "stuck:2"]]
    assert ["stale", "stuck:1"] in shown
    assert ["renewed", "stuck:1"] in shown
    assert ["expired", "stuck:2"] in shown


def test_lines_are_limited_to_what_matches(hold):
    hold("a0")

    lines = watch(nothing, lambda: use("b1", "abc", "a1"), arguments=["a?"])

    assert [line.split()[2:4] for line in lines] == [["held", "a0"], ["released", "a1"]]


def test_lines_without_a_history_show_what_is_gone(hold, settings):
    settings.REDISLOCK_HISTORY = 0
    lock = hold("x")

    lines = watch(nothing, lock.release)

    assert [line.split()[2:4] for line in lines] == [["held", "x"], ["gone", "x"]]


def test_no_event_between_two_looks_is_missed():
    names = [f"n{number}" for number in range(300)]
    use("first")

    lines = watch(nothing, lambda: use(*names))

    assert [line.split()[2:4] for line in lines] == [["released", name] for name in names]


def test_what_ended_before_the_first_look_is_not_new():
    others = [f"other:{number}" for number in range(60)]
    watcher = Watcher(locks, "mine:*", 100)
    use("mine:before", *others)
    before = watcher.look()
    use("mine:since", *others)

    assert [event.name for event in new_events(before, watcher.look())] == ["mine:since"]


def test_lines_show_that_redis_was_unreachable(hold, settings, disconnect):
    hold("ready")
    caches = settings.CACHES

    def connect():
        settings.CACHES = caches

    lines = watch(nothing, disconnect, nothing, connect)

    assert_match(lines, [r"held +ready  .*", r"away +Redis  .+", r"back +Redis"])


# On a full screen


def looking(limit=100):
    return Eyes(Watcher(locks, None, limit), 1)


def assert_shows(text, *patterns):
    for pattern in patterns:
        assert re.search(rf"^{pattern} *$", text, re.MULTILINE), text


def test_screen_shows_locks_and_what_happened(hold):
    lock, eyes = hold("invoice:42", timeout=10, auto_renewal=False), looking()

    assert_shows(
        draw(eyes),
        "1 lock held, 0 stale, nobody waits",
        "on default, every 1s; q ends it",
        "NAME +HOLDER +AGE +LEASE +WAITERS",
        rf"invoice:42 +\S+:{os.getpid()} .*█+░* +\d+\.\ds +ends +-",
    )
    waiter = start(acquire_and_release, locks.lock("invoice:42"))
    waiting(locks, "invoice:42", 1)
    assert_shows(draw(eyes), r"invoice:42 .* 1")
    lock.release()
    assert waiter.result(60)
    assert_shows(
        draw(eyes),
        r"\d\d:\d\d:\d\d +released +invoice:42 .* held .*",
        r"\d\d:\d\d:\d\d +released +invoice:42 .* waited .*",
        "0 locks held, .*",
    )


def test_bars_become_shorter_between_two_looks(hold, monkeypatch):
    hold("x", timeout=20, auto_renewal=False)
    eyes = looking()
    full = draw(eyes).count("█")

    monkeypatch.setattr(eyes, "_look_once", nothing)
    eyes.seen_at -= 5

    assert full - 3 <= draw(eyes).count("█") < full


def test_stale_locks_come_first(hold, redis_server):
    for number in range(3):
        hold(f"alive:{number}")
    hold("stuck", timeout=90)
    postpone(redis_server, "stuck", seconds=60)

    assert_shows(draw(looking()), r".*WAITERS *\nstuck .* stale .*", "4 locks held, 1 stale, .*")


def test_more_locks_than_lines_are_counted(hold):
    for number in range(30):
        hold(f"n{number:02}")

    assert_shows(draw(looking(), rows=14), "30 locks held, .*", "n06 .*", "and 23 more")


def test_the_summary_says_how_many_locks_it_covers(hold):
    lock = hold("contended", timeout=600)
    waiter = start(acquire_and_release, locks.lock("contended"))
    waiting(locks, "contended", 1)
    hold("ends:first", timeout=300)

    text = draw(looking(limit=1))

    lock.release()
    assert waiter.result(60)
    assert_shows(text, "2 locks held; of the 1 whose leases end first 0 stale, nobody waits")


def test_screen_has_no_characters_that_its_terminal_lacks(hold):
    hold("日本[red]")

    text = draw(looking(), encoding="ascii")

    assert_shows(text, r"\\u65e5\\u672c\[red\] .* #+\.* +\d+s +-")
    assert text.isascii()


@pytest.mark.parametrize(
    ("columns", "header"),
    [(42, "NAME +AGE +LEASE +WAITERS"), (64, "NAME +HOLDER +AGE +LEASE +WAITERS")],
)
def test_a_narrow_screen_shows_the_names(hold, columns, header):
    hold("invoice:2026:42")

    assert_shows(draw(looking(), columns=columns), header, r"invoice\S* .*")


def test_a_small_screen_and_a_long_name(hold):
    hold("x" * 500)

    text = draw(looking(), columns=40, rows=6)

    assert_shows(text, "xx.*….*")
    assert max(map(len, text.splitlines())) <= 40


def test_80_columns_show_the_holder_and_the_task():
    with held_by_task("x"):
        holder = holder_text(locks.get("x").first)[:13]
        text = draw(looking(), columns=80)

    assert_shows(
        text, "NAME +HOLDER +TASK +AGE +LEASE +WAITERS", rf"x +{re.escape(holder)}.* sync.*"
    )


def test_screen_says_that_redis_is_unreachable(hold, disconnect):
    hold("x")
    eyes = looking()
    draw(eyes)
    disconnect()

    assert_shows(draw(eyes), r"Redis is away; seen \S+ ago: .+", "x .*")
