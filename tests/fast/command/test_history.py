"""`manage.py locks history`."""

import json
import re
from datetime import UTC, datetime

import pytest

from django_redislock import locks
from django_redislock.management.formatting import EVENT_HEADER
from django_redislock.management.output import width
from tests.commands import call, call_on_terminal, run

from .conftest import facts, held_by_task

pytestmark = pytest.mark.usefixtures("empty_history")


def test_history_shows_the_latest_first():
    with locks.lock("a"):
        locks.lock("a", blocking=False).acquire()
    forced = locks.lock("b")
    forced.acquire()
    locks.force_release("b")

    header, *lines = call("history").splitlines()
    events = json.loads(call("history", "--format", "json"))

    assert header.split() == " ".join(EVENT_HEADER).split()
    assert [line.split()[2:4] for line in lines] == [
        ["forced", "b"],
        ["released", "a"],
        ["refused", "a"],
    ]
    assert [event["outcome"] for event in events] == ["forced", "released", "refused"]
    assert events[0]["fence_token"] == forced.fence_token
    assert events[2]["acquired_at"] is None


def test_history_of_one_lock_or_of_some_outcomes_or_of_a_few():
    for name in "aabbb":
        with locks.lock(name):
            locks.lock(name, blocking=False).acquire()

    def outcomes(*arguments: str) -> list[str]:
        return [event["outcome"] for event in facts("history", *arguments)]

    assert len(outcomes()) == 10
    assert len(outcomes("a")) == 4
    assert outcomes("a", "--outcome", "refused") == ["refused"] * 2
    assert outcomes("--outcome", "refused", "--outcome", "lost", "a") == ["refused"] * 2
    assert outcomes("--outcome", "lost") == []
    assert run("history", "a", "--outcome", "lost").stdout == "No event matches.\n"


def test_history_by_pattern_and_time(redis_server):
    for name in ("old:1", "new:1", "new:2"):
        with locks.lock(name):
            pass
    ended_before(redis_server, "old:1", seconds=5400)

    def names(*arguments: str) -> list[str]:
        return [event["name"] for event in facts("history", *arguments)]

    assert names("new:*") == names("--since", "1h") == ["new:2", "new:1"]
    assert names("*:1", "--since", "2h") == ["new:1", "old:1"]
    assert names("*:1", "--since", "1h", "--outcome", "released") == ["new:1"]
    assert names("[no]*") == []
    assert len(names("--since", "9999999d")) == 3


def ended_before(redis_server, name: str, *, seconds: float) -> None:
    """Let the only event of this lock have happened that long ago."""
    for key in redis_server.scan_iter("*:history:ended"):
        entries = [fields for _, fields in redis_server.xrange(key)]
        redis_server.delete(key)
        for fields in entries:
            late = {"at": int(fields["at"]) - seconds * 1000} if fields["name"] == name else {}
            redis_server.xadd(key, fields | late)


def test_history_finds_rare_outcomes():
    locks.lock("rare").acquire()
    locks.force_release("rare")
    for _ in range(30):
        with locks.lock("often"):
            pass

    (line,) = call("history", "--outcome", "forced", "--limit", "1").splitlines()[1:]

    assert " rare " in line


def test_disabled_history(settings):
    settings.REDISLOCK_HISTORY = 0
    with locks.lock("x"):
        pass

    assert call("history") == "No history is kept.\n"
    assert call("history", "--format", "json") == "[]\n"


@pytest.mark.parametrize("columns", [64, 80, 100])
@pytest.mark.parametrize("subcommand", ["history", "show"])
def test_history_fits_its_terminal(subcommand, columns):
    name = "日本" * 10 + "x" * 60
    with locks.lock(name):
        pass
    arguments = [subcommand, name] if subcommand == "show" else [subcommand]

    text = call_on_terminal(*arguments, columns=columns)
    header, line, *rest = text[text.index("AT ") :].splitlines()

    assert re.match(r"AT +OUTCOME +NAME +HOLD", header)
    assert re.match(r"\d\d:\d\d:\d\d +released +(日本){7,}.*… +\S+", line)
    assert width(line) == columns
    assert rest == []
    assert name in call(*arguments)


def test_history_shows_tasks_if_there_are_any():
    with held_by_task("x"):
        pass

    header, line = call_on_terminal("history", columns=100).splitlines()

    assert "TASK" in header.split()
    assert re.search(r"released +x .* sync \[", line)


def test_history_shows_the_date_of_another_day(redis_server):
    with locks.lock("x"):
        pass
    (key,) = redis_server.scan_iter("*:history:ended")
    ((_, fields),) = redis_server.xrange(key)
    at = datetime(2026, 1, 31, 18, 0, 40, tzinfo=UTC)
    redis_server.delete(key)
    redis_server.xadd(key, fields | {"at": int(at.timestamp() * 1000)})

    assert "\n2026-01-31 18:00:40  released  x " in call_on_terminal("history", columns=100)
    assert "\n2026-01-31 18:00:40+00:00  released  x " in call("history")
