import json
import os
import pty
import re
import subprocess
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_redislock import locks
from django_redislock.health import CHECKS, Finding, Health
from django_redislock.management import releasing
from django_redislock.management.subcommands import check
from tests.commands import MANAGE, call, run, run_on_terminal, run_process
from tests.tools import ROOT, Child, stopped_holder, wait_until


def names_of(text: str) -> set[str]:
    return {lock["name"] for lock in json.loads(text)}


# list


def test_table_has_a_line_for_each_lock(hold):
    lock = hold("invoice:42")
    info = locks.get("invoice:42")

    header, line = call("list").splitlines()

    assert " ".join(header.split()) == "NAME STATE KIND HOLDER TASK AGE LEFT WAITERS FENCE"
    assert line.startswith("invoice:42  held   mutex  ")
    assert f"{info.holder.host}:{info.holder.pid}" in line
    assert line.endswith(f" 0        {lock.fence_token}")
    assert lock.token not in line


def test_columns_stand_under_their_heads(hold):
    for name in ("日本", "ab", "e\u0301x"):
        hold(name)

    _, *lines = call("list").splitlines()

    columns = {len(line.partition("mutex")[0].encode("gbk", "ignore")) for line in lines}
    assert columns == {13}


def test_a_line_tells_of_who_holds_before_who_only_cools_down(nothing_left_behind):
    cooling = locks.semaphore("x", 2, at_least_for=20)
    assert cooling.acquire()
    with locks.semaphore("x", 2, auto_renewal=False) as held:
        cooling.release()
        _, line = call("list").splitlines()
        assert line.startswith("x     not renewed  semaphore  ")
        assert line.endswith(f" 0        {held.fence_token}")
    locks.force_release("x")


def test_nothing_to_list_is_no_failure():
    table, as_json = run("list"), run("list", "--format", "json")

    assert (table.returncode, table.stdout, table.stderr) == (0, "No active locks.\n", "")
    assert (as_json.returncode, json.loads(as_json.stdout), as_json.stderr) == (0, [], "")


def test_json_has_all_facts(hold):
    lock = hold("invoice:42", metadata={"why": "close", "n": [1]})

    (found,) = json.loads(call("list", "--format", "json"))

    (holding,) = found.pop("holders")
    assert found == {
        "name": "invoice:42",
        "kind": "mutex",
        "capacity": 1,
        "state": "held",
        "waiters": 0,
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


def test_json_of_many_is_one_array(hold):
    names = {f"n{number}" for number in range(30)}
    for name in names:
        hold(name)

    assert names_of(run_process("list", "--format", "json").stdout) == names


def test_pattern_and_limit_narrow_the_list(hold):
    for name in ("invoice:1", "invoice:22", "report"):
        hold(name)

    assert names_of(call("list", "invoice:?", "--format=json")) == {"invoice:1"}
    assert names_of(call("list", "in*", "--format=json")) == {"invoice:1", "invoice:22"}
    assert names_of(call("list", "invoice", "--format=json")) == set()
    assert len(names_of(call("list", "--limit", "2", "--format=json"))) == 2


def test_using_names_the_alias(hold):
    hold("here", locks.using("django_redis"))

    assert "here" in call("list", "--using", "django_redis")


def test_control_sequences_do_not_reach_the_terminal(hold):
    hold("a\u202eb")
    code = """
import threading
from django_redislock import locks
threading.current_thread().name = "\\x1b[31mred"
with locks.lock("ansi", metadata={"x": "\\x1b[2J"}):
    say("held"); hear()
"""
    with Child(code) as child:
        child.expect("held")
        table, as_json = run("list").stdout, run("list", "--format", "json").stdout
        child.tell()
        wait_until(lambda: locks.get("ansi") is None)

    assert "\\x1b[31mred" in table
    assert "a\\u202eb" in table
    assert "\x1b" not in table + as_json
    assert "\u202e" not in table + as_json


# release


def test_release_of_one(hold):
    lock = hold("invoice:42")

    done = run_process("release", "invoice:42", "--yes")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        f"Released invoice:42 (fencing token {lock.fence_token}, held by"
    )
    assert locks.get("invoice:42") is None


def test_name_that_is_not_held_is_exit_1(hold):
    hold("a")

    done = run("release", "a", "b", "--yes")

    assert done.returncode == 1
    assert "b is not held" in done.stderr
    assert locks.get("a") is None


def test_names_are_no_patterns(hold):
    hold("abc")

    assert run("release", "a*", "--yes").returncode == 1
    assert locks.get("abc")


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["--pattern", "a?"], {"b1"}),
        (["--all"], set()),
        (["--older-than", "1h"], {"a1", "a2", "b1"}),
        (["--older-than", "0"], set()),
        (["--pattern", "a*", "--older-than", "5m"], {"a1", "a2", "b1"}),
    ],
)
def test_release_by_what_matches(hold, arguments, left):
    for name in ("a1", "a2", "b1"):
        hold(name)
    wait_until(lambda: all(releasing.age(info.first) > 0 for info in locks.active()))

    done = run("release", *arguments, "--yes")

    assert done.returncode == 0
    assert {info.name for info in locks.active()} == left
    assert ("No active lock matches." in done.stdout) == (len(left) == 3)


def test_older_than_counts_from_the_acquisition(hold):
    hold("old", timeout=30)
    wait_until(lambda: releasing.age(locks.get("old").first) > 0.5)
    hold("new")

    call("release", "--all", "--older-than", "0.5s", "--yes")

    assert [info.name for info in locks.active()] == ["new"]


def test_named_but_too_young_is_refused(hold):
    hold("young")

    done = run("release", "young", "--older-than", "2h", "--yes")

    assert done.returncode == 1
    assert "young has been held for" in done.stderr
    assert locks.get("young")


def test_token_has_to_be_the_holders(hold):
    lock = hold("x")

    wrong = run("release", "x", "--token", "other", "--yes")
    assert (wrong.returncode, lock.owned()) == (1, True)
    right = run("release", "x", "--token", lock.token, "--yes")

    assert (right.returncode, lock.owned()) == (0, False)


def test_new_holder_is_not_released(hold):
    old = hold("x")
    (seen,) = releasing.choose(locks, releasing.Choice(names=("x",))).chosen
    old.release()
    new = hold("x")

    assert not releasing.release(locks, seen)
    assert new.owned()


def test_dry_run_releases_nothing(hold):
    hold("x")

    done = run("release", "x", "--dry-run")
    gone = run("release", "gone", "--dry-run")

    assert done.returncode == 0
    assert done.stdout.startswith("Would release x (")
    assert gone.returncode == 1
    assert locks.get("x")


def test_what_would_be_released_tells_whether_its_holder_lives(hold):
    hold("lives")
    hold("once", auto_renewal=False)
    hold("daily", at_least_for=20).release()

    with stopped_holder("stuck", timeout=6):
        told = call("release", "--all", "--dry-run")
    locks.force_release("daily")

    assert re.search(r"^Would release lives \(.* for \S+s; renewed \S+s ago\)$", told, re.M)
    assert re.search(
        r"^Would release stuck \(.* for \S+s; STALE, renewal overdue, last renewed \S+s ago\)$",
        told,
        re.M,
    )
    assert re.search(r"^Would release once \(.* for \S+s; not renewed\)$", told, re.M)
    assert re.search(r"^Would release daily \(.*, released; cools down for \d+s\)$", told, re.M)


def test_who_only_cools_down_is_not_said_to_go_on(hold):
    hold("daily", at_least_for=20).release()

    status, text = run_on_terminal("y\n", "release", "daily")

    assert status == 0
    assert "goes on" not in text


def test_refuses_without_a_terminal_to_ask_on(hold):
    hold("x")

    done = run_process("release", "x")

    assert done.returncode == 1
    assert "--yes" in done.stderr
    assert done.stderr.count("\n") == 1
    assert locks.get("x")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("y\n", 0),
        pytest.param("n\n", 1, marks=pytest.mark.slow),
        pytest.param("\n", 1, marks=pytest.mark.slow),
        ("\x04", 1),
    ],
)
def test_asks_on_a_terminal(hold, answer, status):
    hold("x")

    returncode, text = run_on_terminal(answer, "release", "x")

    assert returncode == status
    told = re.match(r"To be released: x \(.*; renewed \S+s ago\)\r?\n(.*)\r?\nRelease 1\?", text)
    assert told
    assert "goes on until it notices" in told[1]
    assert (locks.get("x") is None) == (status == 0)


# check


def test_check_has_a_line_for_each_finding():
    done = run("check")

    header, *lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert header.split() == ["CHECK", "STATUS", "FOUND"]
    assert [line.split()[0] for line in lines] == list(CHECKS)
    assert "A lock was acquired and released in" in done.stdout


def test_check_as_json_is_all_there_is_on_stdout():
    done = run_process("check", "--format", "json")

    told = json.loads(done.stdout)
    findings = {each["id"]: each for each in told["findings"]}
    assert (done.returncode, done.stderr) == (0, "")
    assert (told["alias"], told["status"]) == ("default", "warning")
    assert list(findings) == list(CHECKS)
    assert findings["locking"]["status"] == "ok"
    assert findings["locking"]["facts"]["ping_ms"] > 0
    assert findings["persistence"]["facts"]["aof"] is False


def test_check_can_fail_on_a_warning():
    done = run("check", "--fail-on", "warning", "--using", "django_redis", "--format=json")

    assert done.returncode == 1
    assert json.loads(done.stdout)["alias"] == "django_redis"
    assert done.stderr.startswith("CommandError: Locks on 'django_redis': ")
    assert "persistence (warning)" in done.stderr


@pytest.mark.parametrize("form", ["table", "json"])
def test_check_of_a_server_that_is_away_fails_and_tells(form):
    secret = "redis://me:s3cret@127.0.0.1:1/0"

    done = run_process("check", "--format", form, REDIS_URL=secret)

    assert done.returncode == 1
    assert done.stderr == "CommandError: Locks on 'default': connection (failed)\n"
    assert "127.0.0.1:1" in done.stdout
    assert "s3cret" not in done.stdout
    if form == "json":
        assert json.loads(done.stdout)["status"] == "failed"


def test_what_the_server_says_can_not_steer_the_terminal():
    told = Finding("locking", "failed", "it said \x1b[2J\u202e", {"said": "\x1b[2J\u202e"})
    health = Health("default", (told,))

    shown = "".join(check.as_table(health)) + check.as_json(health)

    assert "\x1b" not in shown
    assert "\u202e" not in shown


# Errors


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["lst"],
        ["list", ""],
        ["list", "a\x1b"],
        ["list", "--limit", "0"],
        ["list", "--limit", "-1"],
        ["list", "--limit", "x"],
        ["list", "--limit", "1000001"],
        ["list", "--limit", "9" * 5000],
        ["watch", "--limit", "1000000000000000000"],
        ["history", "--limit", "1000000000000000000"],
        ["list", "--format", "xml"],
        ["list", "--using", "nowhere"],
        ["check", "x"],
        ["check", "--format", "xml"],
        ["check", "--fail-on", "unknown"],
        ["check", "--using", "nowhere"],
        ["release"],
        ["release", "", "--yes"],
        ["release", "x" * 513, "--yes"],
        ["release", "--older-than", "soon", "--yes"],
        ["release", "a", "--all", "--yes"],
        ["release", "a", "--pattern", "b", "--yes"],
        ["release", "--all", "--pattern", "b", "--yes"],
        ["release", "--all", "--token", "t", "--yes"],
        ["release", "a", "b", "--token", "t", "--yes"],
        ["release", "--yes", "--dry-run"],
    ],
)
def test_wrong_use_is_exit_2(arguments):
    done = run(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        pytest.param(["list", "--format=json"], marks=pytest.mark.slow),
        pytest.param(["release", "x", "--yes"], marks=pytest.mark.slow),
    ],
)
def test_redis_away_is_one_line(arguments):
    done = run_process(*arguments, REDIS_URL="redis://127.0.0.1:1/0")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("CommandError: The locks on 'default' can't be reached: ")
    assert done.stderr.count("\n") == 1


def test_redis_away_names_the_alias(settings):
    away = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "away": away}

    done = run("list", "--using", "away")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("CommandError: The locks on 'away' can't be reached: ")


@pytest.mark.parametrize("arguments", [["list"], ["watch"], ["release", "--all"]])
def test_mistaken_options_are_one_line(settings, arguments):
    mistaken = {**settings.CACHES["default"], "OPTIONS": {"socket_timeoutt": 5}}
    settings.CACHES = {**settings.CACHES, "mistaken": mistaken}
    settings.REDISLOCK_CACHE = "mistaken"

    done = run(*arguments)

    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch("CommandError: .*'mistaken': .*socket_timeoutt.*\n", done.stderr)


def test_check_finds_mistaken_options(settings):
    mistaken = {**settings.CACHES["default"], "OPTIONS": {"socket_timeoutt": 5}}
    settings.CACHES = {**settings.CACHES, "mistaken": mistaken}

    done = run("check", "--using", "mistaken")

    assert done.returncode == 1
    assert re.search("^client +failed .*socket_timeoutt", done.stdout, re.MULTILINE)


def run_unread(
    *arguments: str, stdin: Any = subprocess.DEVNULL, **environment: str
) -> tuple[int, str]:
    """Its exit status and its errors, where the reader of its output has left."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run(
            [*MANAGE, *arguments],
            cwd=ROOT,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"} | environment,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    return done.returncode, done.stderr


def test_reader_may_leave_early(hold):
    hold("x")

    assert run_unread("list") == (0, "")


def test_what_was_chosen_is_released_whether_or_not_anybody_reads(hold):
    # More than what a pipe's writer keeps for itself.
    held = [hold(f"{number:0>500}") for number in range(30)]

    names = [lock.name for lock in held[:2]]
    assert run_unread("release", *names, "free", "--yes") == (
        1,
        "CommandError: free is not held\n",
    )
    assert run_unread("release", "--all", "--yes") == (0, "")

    assert not any(lock.owned() for lock in held)


def run_redirected(redirection: str, *arguments: str) -> tuple[int, str]:
    """Its exit status and its errors, with streams as a shell redirects them."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *MANAGE, *arguments],
        cwd=ROOT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


FULL = "CommandError: What was released can't be told: No space left on device\n"


@pytest.mark.parametrize(
    ("redirection", "told"),
    [(">&-", (0, "")), ("<&- >&- 2>&-", (0, "")), (">/dev/full", (1, FULL))],
)
def test_what_was_chosen_is_released_whether_or_not_it_can_be_told(hold, redirection, told):
    held = [hold(f"{number}") for number in range(3)]

    assert run_redirected(redirection, "release", "--all", "--yes") == told

    assert not any(lock.owned() for lock in held)


def test_whose_code_calls_it_keeps_its_own_stdout_where_another_stream_is_full(hold, capfd):
    held = [hold(f"{number}") for number in range(3)]
    full = Path("/dev/full").open("w")  # noqa: SIM115  to close it fails, too
    with pytest.raises(CommandError) as caught:
        call_command("locks", "release", "--all", "--yes", stdout=full)
    with suppress(OSError):
        full.close()
    assert str(caught.value) == FULL.partition(": ")[2].rstrip()
    assert not any(lock.owned() for lock in held)
    os.write(1, b"goes on")
    assert capfd.readouterr().out == "goes on"


def test_streams_that_are_closed_fail_no_check():
    assert run_redirected("<&- >&- 2>&-", "check") == (0, "")


def test_there_is_no_terminal_to_ask_on_where_stdin_is_closed(hold):
    lock = hold("x")

    status, error = run_redirected("<&-", "release", "--all")

    assert (status, error.partition(":")[2].strip()[:8]) == (1, "Refused:")
    assert lock.owned()


@pytest.mark.parametrize("count", [1, 30])
def test_nothing_is_released_where_nobody_reads_what_is_asked(hold, count):
    held = [hold(f"{number:0>500}") for number in range(count)]
    ours, theirs = pty.openpty()

    with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs, "rb") as stdin:
        keyboard.write(b"y\n")
        done = run_unread("release", "--all", stdin=stdin)

    assert done == (1, "Nothing was released.\n")
    assert all(lock.owned() for lock in held)


@pytest.mark.parametrize("form", ["table", "json"])
def test_check_fails_whether_or_not_anybody_reads(form):
    done = run_unread("check", "--format", form, REDIS_URL="redis://127.0.0.1:1/0")

    assert done == (1, "CommandError: Locks on 'default': connection (failed)\n")


def test_listing_asks_no_more_of_a_server_that_is_full(hold, redis_server):
    hold("x")
    calls = [commands_of_a_list(redis_server)]

    with redis_server.pipeline(transaction=False) as pipe:
        for number in range(5000):
            pipe.set(f"unrelated:{number}", "x")
        pipe.execute()
    calls.append(commands_of_a_list(redis_server))
    redis_server.flushdb()

    assert calls[0] == calls[1]
    assert not {"keys", "scan"} & calls[0].keys()


def commands_of_a_list(client) -> dict[str, int]:
    call("list")
    client.config_resetstat()
    call("list")
    stats = client.info("commandstats")
    return {key.removeprefix("cmdstat_"): stat["calls"] for key, stat in stats.items()}


def test_djangos_own_options_may_follow(hold):
    hold("x")

    done = run_process(
        "list", "--settings", "tests.settings", "--no-color", "-v", "0", "--traceback"
    )

    assert done.returncode == 0
    assert "x" in done.stdout


def test_help_tells_the_exit_statuses():
    assert "1 what was named is not held" in " ".join(run("--help").stdout.split())
    assert "--older-than" in run("release", "--help").stdout


def test_half_a_character_leaves_json_whole(hold):
    hold("x", metadata={"half": "\ud800", "whole": "\U0001f512"})

    text = run("list", "--format", "json").stdout

    [holder] = json.loads(text)[0]["holders"]
    assert holder["metadata"] == {"half": "?", "whole": "\U0001f512"}
    assert text.isascii()
