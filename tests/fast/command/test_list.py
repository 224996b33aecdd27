"""`manage.py locks list`."""

import os
from datetime import datetime

import pytest

from django_redislock import locks
from django_redislock.management.output import width
from tests.commands import call, call_on_terminal, run
from tests.pages import postpone

from .conftest import facts, held_by_task


def listed(*arguments: str) -> set[str]:
    return {lock["name"] for lock in facts("list", *arguments)}


def test_table_has_a_line_for_each_lock_and_json_all_facts(hold):
    lock = hold("invoice:42", metadata={"why": "close", "n": [1]})
    info = locks.get("invoice:42")

    _header, line = call("list").splitlines()
    (found,) = facts("list")

    assert line.startswith("invoice:42  held   ")
    assert f"{info.holder.host}:{info.holder.pid}" in line
    assert line.endswith(f" 0        -     mutex  {lock.fence_token}")
    assert lock.token not in line

    (holding,) = found["holders"]
    assert (found["state"], found["waiters"]) == ("held", 0)
    assert (holding["token"], holding["fence_token"]) == (lock.token, lock.fence_token)
    assert 0 < holding["ttl"] <= holding["timeout"] == 30
    assert holding["holder"]["pid"] == os.getpid()
    assert holding["metadata"] == {"why": "close", "n": [1]}
    assert datetime.fromisoformat(holding["acquired_at"]).tzinfo


def test_locks_and_processes_are_narrowed(hold, redis_server):
    assert run("list") == (0, "No active locks.\n", "")
    assert facts("list") == []
    for name in ("invoice:1", "invoice:22"):
        hold(name, timeout=90)
    postpone(redis_server, "invoice:22", seconds=60)
    host = locks.get("invoice:1").holder.host
    process = f"{host}:{os.getpid()}"

    with held_by_task("sent", metadata={"queued": True}):
        assert listed() == {"invoice:1", "invoice:22", "sent"}
        assert listed("--process", process) == {"invoice:1", "invoice:22"}
        assert call("list").splitlines()[1].startswith("invoice:22  stale")
        _, line = call("list", "--by-process").splitlines()
        [row] = facts("list", "--by-process")

    assert line.split()[:3] == [process, "2", "1"]
    assert (row["process"], row["stale"], row["oldest"] > 0) == (process, 1, True)
    assert row["names"] == ["invoice:1", "invoice:22"]
    assert listed("invoice:?") == {"invoice:1"}
    assert listed("in*") == {"invoice:1", "invoice:22"}
    assert listed("--limit", "1") == {"invoice:22"}
    hold("here", locks.using("django_redis"))
    assert "here" in listed("--using", "django_redis")


@pytest.mark.parametrize("columns", [48, 90])
def test_a_list_fits_its_terminal(hold, columns):
    names = ["x" * 512, "invoice:42", "日本" * 30]
    for name in names:
        hold(name, timeout=90)

    header, *lines = call_on_terminal("list", columns=columns).splitlines()

    assert header.split()[:2] == ["NAME", "STATE"]
    assert max(map(width, [header, *lines])) == columns
    assert all(name in call("list") for name in names)
