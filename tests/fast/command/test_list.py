"""`manage.py locks list`."""

import json
import os
import re
from datetime import datetime

import pytest

from django_redislock import locks
from django_redislock.management.formatting import HEADER
from django_redislock.management.output import width
from django_redislock.management.subcommands import list as list_command
from tests.commands import call, call_on_terminal, run, run_process
from tests.lock_tools import start, waiting
from tests.pages import postpone
from tests.round_trips import RoundTrips

from .conftest import acquire_and_release, facts, held_by_task


def listed(*arguments: str) -> set[str]:
    return {lock["name"] for lock in facts("list", *arguments)}


def test_table_has_a_line_for_each_lock(hold):
    lock = hold("invoice:42")
    info = locks.get("invoice:42")

    header, line = call("list").splitlines()

    assert " ".join(header.split()) == "NAME STATE HOLDER AGE LEFT WAITERS TASK KIND FENCE"
    assert line.startswith("invoice:42  held   ")
    assert f"{info.holder.host}:{info.holder.pid}" in line
    assert line.endswith(f" 0        -     mutex  {lock.fence_token}")
    assert lock.token not in line


def test_locks_of_one_process_are_listed(hold):
    hold("mine")
    holder = locks.get("mine").holder
    with held_by_task("sent", metadata={"queued": True}):
        assert listed() == {"mine", "sent"}
        assert listed("--process", f"{holder.host}:{holder.pid}") == {"mine"}

    assert call("list", "--process", f"{holder.host}:1") == "No active lock matches.\n"


def test_processes_are_listed_with_the_number_of_their_locks(hold, redis_server):
    assert call("list", "--by-process") == "No process holds an active lock.\n"
    for name in ("first", "second"):
        hold(name, timeout=90)
    postpone(redis_server, "second", seconds=60)
    holder = locks.get("first").holder
    with held_by_task("sent", metadata={"queued": True}):
        header, line = call("list", "--by-process").splitlines()
        [row] = facts("list", "--by-process")

    assert header.split() == ["PROCESS", "LOCKS", "STALE", "OLDEST"]
    assert line.split()[:3] == [f"{holder.host}:{os.getpid()}", "2", "1"]
    assert (row["process"], row["stale"]) == (f"{holder.host}:{os.getpid()}", 1)
    assert (row["names"], row["oldest"] > 0) == (["first", "second"], True)
    assert facts("list", "--by-process", "--process", f"{holder.host}:1") == []


def test_columns_are_aligned_with_their_headers(hold):
    for name in ("日本", "ab", "e\u0301x"):
        hold(name)

    _, *lines = call("list").splitlines()

    columns = {len(line.partition("held")[0].encode("gbk", "ignore")) for line in lines}
    assert columns == {6}


def test_a_line_shows_the_holder_rather_than_a_cooldown(nothing_left_behind):
    cooling = locks.semaphore("x", 2, at_least_for=20)
    assert cooling.acquire()
    with locks.semaphore("x", 2, auto_renewal=False) as held:
        cooling.release()
        _, line = call("list").splitlines()
        assert line.startswith("x     held (no renewal)  ")
        assert line.endswith(f" 0        -     semaphore  {held.fence_token}")
    locks.force_release("x")


def test_a_long_table_ends_with_the_number_of_other_locks(hold, monkeypatch):
    monkeypatch.setattr(list_command, "DEFAULT_ROWS", 2)
    for name in "abc":
        hold(name, timeout=30 + ord(name))

    lines = call("list").splitlines()

    assert [line[0] for line in lines] == ["N", "a", "b", "a"]
    more = "and 1 more. Give a PATTERN, a larger --limit, or --format json."
    assert lines[-1] == call("list", "--limit", "2").splitlines()[-1] == more
    assert len(call("list", "--limit", "3").splitlines()) == 4
    assert len(facts("list", "--limit", "2")) == 2


def test_nothing_to_list_is_no_failure():
    table, as_json = run("list"), run("list", "--format", "json")

    assert (table.returncode, table.stdout, table.stderr) == (0, "No active locks.\n", "")
    assert (as_json.returncode, json.loads(as_json.stdout), as_json.stderr) == (0, [], "")
    assert call("list", "x*") == "No active lock matches.\n"


def test_json_has_all_facts(hold):
    lock = hold("invoice:42", metadata={"why": "close", "n": [1]})

    (found,) = facts("list")

    (holding,) = found.pop("holders")
    assert found == {
        "name": "invoice:42",
        "kind": "mutex",
        "capacity": 1,
        "state": "held",
        "waiters": 0,
        "longest_wait": 0.0,
    }
    assert holding["token"] == lock.token
    assert holding["fence_token"] == lock.fence_token
    assert holding["timeout"] == 30
    assert 0 < holding["ttl"] <= 30
    assert holding["holder"]["pid"] == os.getpid()
    assert holding["metadata"] == {"why": "close", "n": [1]}
    acquired, expires = (datetime.fromisoformat(holding[k]) for k in ("acquired_at", "expires_at"))
    assert acquired.tzinfo
    assert acquired < expires


def test_pattern_and_limit_narrow_the_list(hold):
    for name in ("invoice:1", "invoice:22", "report"):
        hold(name)

    assert listed("invoice:?") == {"invoice:1"}
    assert listed("in*") == {"invoice:1", "invoice:22"}
    assert listed("invoice") == set()
    assert len(listed("--limit", "2")) == 2
    hold("here", locks.using("django_redis"))
    assert "here" in listed("--using", "django_redis")


def test_a_list_has_trouble_first(hold, redis_server):
    for number in (3, 1, 2):
        hold(f"held:{number}")
    hold("waited for", timeout=600)
    waiter = start(acquire_and_release, locks.lock("waited for"))
    waiting(locks, "waited for", 1)
    hold("stuck", timeout=90)
    postpone(redis_server, "stuck", seconds=60)

    lines = call("list").splitlines()
    locks.force_release("waited for")

    assert waiter.result(60)
    starts = ["NAME", "stuck", "waited for", "held:1", "held:2", "held:3"]
    assert [line[: len(name)] for line, name in zip(lines, starts, strict=True)] == starts


@pytest.mark.parametrize("columns", [48, 64, 80, 90])
def test_a_list_fits_its_terminal(hold, columns):
    names = ["x" * 512, "invoice:42", "日本" * 30]
    for name in names:
        hold(name, timeout=90)

    header, *lines = call_on_terminal("list", columns=columns).splitlines()

    assert header.split()[:2] == ["NAME", "STATE"]
    assert max(map(width, [header, *lines])) == columns
    assert header.index("STATE") == 34
    shown = sorted(line.split()[0] for line in lines)
    assert all(map(re.fullmatch, ("inv.*", "x+…", "(日本)+日?…"), shown))
    assert all(name in call("list") for name in names)


def test_a_list_shows_tasks_if_there_is_room(hold):
    hold("x" * 512, timeout=90)

    with held_by_task("x"):
        header, *lines = call_on_terminal("list", columns=130).splitlines()

    assert header.split() == [*HEADER]
    task, long = sorted(lines)
    assert re.search(r"^x +held \(no renewal\) .* sync .* mutex ", task)
    assert re.search("^x{31}…  held", long)


def test_an_ascii_stream_gets_ascii(hold):
    hold("日本")

    done = run_process("list", PYTHONIOENCODING="ascii")

    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u65e5\\u672c" in done.stdout


def test_listing_asks_no_more_of_a_server_that_is_full(hold, redis_server):
    def asked():
        with RoundTrips(of_this_thread=True) as made:
            call("list")
        return made.count

    hold("x")
    call("list")
    before = asked()
    with redis_server.pipeline(transaction=False) as pipe:
        for number in range(2000):
            pipe.set(f"unrelated:{number}", "x")
        pipe.execute()
    after = asked()
    redis_server.flushdb()

    assert before == after > 0
