"""`manage.py locks history`."""

import json
import re

import pytest

from django_redislock import locks
from django_redislock.management.formatting import EVENT_HEADER
from django_redislock.management.output import width
from tests.commands import call, call_on_terminal, run
from tests.pages import ended_at

from .conftest import facts, held_by_task

pytestmark = pytest.mark.usefixtures("empty_history")


def use_once(name):
    with locks.lock(name):
        pass


def test_history_shows_the_latest_first():
    with locks.lock("a"):
        locks.lock("a", blocking=False).acquire()
    forced = locks.lock("b")
    forced.acquire()
    locks.force_release("b")

    header, *lines = call("history").splitlines()
    events = facts("history")

    assert header.split() == " ".join(EVENT_HEADER).split()
    shown = [" ".join(line.split()[2:4]) for line in lines]
    assert shown == ["forced b", "released a", "refused a"]
    assert [event["outcome"] for event in events] == ["forced", "released", "refused"]
    assert events[0]["fence_token"] == forced.fence_token
    assert events[2]["acquired_at"] is None


def test_history_by_name_pattern_outcome_and_time(redis_server):
    for name in ("old:1", "new:1", "new:2"):
        use_once(name)
    ended_at(redis_server, "old:1", ago=5400)
    with locks.lock("new:2"):
        assert not locks.lock("new:2", blocking=False).acquire()

    for arguments, expected in (
        ("", ["new:2", "new:2", "new:2", "new:1", "old:1"]),
        ("new:1", ["new:1"]),
        ("new:* --since 1h", ["new:2", "new:2", "new:2", "new:1"]),
        ("*:1 --since 2h", ["new:1", "old:1"]),
        ("*:1 --since 1h --outcome released", ["new:1"]),
        ("new:2 --outcome refused --outcome lost", ["new:2"]),
        ("--outcome lost", []),
        ("[no]*", []),
        ("--since 9999999d --limit 2", ["new:2", "new:2"]),
    ):
        found = facts("history", *arguments.split())
        assert [event["name"] for event in found] == expected, arguments
    assert run("history", "a", "--outcome", "lost").stdout == "No event matches.\n"


def test_disabled_history(settings):
    settings.REDISLOCK_HISTORY = 0
    use_once("x")

    assert call("history") == "No history is kept.\n"
    assert json.loads(call("history", "--format", "json")) == []


@pytest.mark.parametrize("columns", [64, 100])
@pytest.mark.parametrize("subcommand", ["history", "show"])
def test_history_fits_its_terminal(subcommand, columns):
    name = "日本" * 10 + "x" * 60
    use_once(name)
    arguments = [subcommand, name] if subcommand == "show" else [subcommand]

    text = call_on_terminal(*arguments, columns=columns)
    header, line = text[text.index("AT ") :].splitlines()

    assert re.match(r"AT +OUTCOME +NAME +HOLD", header)
    assert re.match(r"\d\d:\d\d:\d\d +released +(日本){7,}.*… +\S+", line)
    assert width(line) == columns
    assert name in call(*arguments)


def test_history_shows_tasks_if_there_are_any_and_the_date_of_another_day(redis_server):
    with held_by_task("x"):
        pass
    header, line = call_on_terminal("history", columns=100).splitlines()
    assert "TASK" in header.split()
    assert re.search(r"^\d\d:\d\d:\d\d +released +x .* sync \[", line)

    ended_at(redis_server, "x", ago=86400)
    day = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    on_terminal = call_on_terminal("history", columns=100)
    assert re.search(f"{day}  released  x ", on_terminal, re.MULTILINE)
    assert re.search(rf"{day}[+-]\d\d:\d\d  released  x ", call("history"), re.MULTILINE)
