"""`manage.py locks history`."""

import re

import pytest

from django_redislock import locks
from tests.commands import call, call_on_terminal
from tests.pages import ended_at

from .conftest import facts

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

    _, *lines = call("history").splitlines()
    events = facts("history")

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
        ("*:1 --since 1h --outcome released", ["new:1"]),
        ("new:2 --outcome refused --outcome lost", ["new:2"]),
        ("--since 9999999d --limit 2", ["new:2", "new:2"]),
    ):
        found = facts("history", *arguments.split())
        assert [event["name"] for event in found] == expected, arguments


def test_an_event_of_another_day_has_its_date(redis_server):
    use_once("x")
    ended_at(redis_server, "x", ago=86400)
    day = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.search(f"{day}  released  ", call_on_terminal("history", columns=100), re.MULTILINE)
    assert re.search(rf"{day}[+-]\d\d:\d\d  released  ", call("history"), re.MULTILINE)
