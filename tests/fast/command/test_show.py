"""`manage.py locks show`."""

import json
import os
import re
import shlex
from contextlib import suppress

import pytest

from django_redislock import LockNotOwnedError, locks
from django_redislock.lock_state import STALE
from tests.commands import Done, call, call_on_terminal, run
from tests.lock_tools import start, waiting
from tests.pages import acquired_before, postpone

from .conftest import acquire_and_release, facts, held_by_task


def test_show_of_a_renewed_lock(hold):
    lock = hold("invoice:42", metadata={"customer": "c-1"})

    done = run("show", "invoice:42")

    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert re.fullmatch(rf"invoice:42 \(mutex\): held, \S+:{os.getpid()} for [\d.]+s", first)
    assert lines[0] == "In use: releasing is not safe."
    assert lines[1].startswith("The process of the holder was running ")
    assert re.fullmatch(rf"Holder \S+:{os.getpid()}: held", lines[3])
    assert f"  Fencing token {lock.fence_token}" in lines
    assert '  Metadata      {"customer": "c-1"}' in lines
    assert lock.token not in done.stdout


def test_show_says_in_english_that_a_renewal_is_overdue(redis_server, hold, settings):
    settings.LANGUAGE_CODE = "de"
    for name, seconds in (("late", 35), ("stuck", 60)):
        hold(name, timeout=90)
        postpone(redis_server, name, seconds=seconds)

    late, stuck = call("show", "late"), call("show", "stuck")

    assert re.search(r"^Renewal overdue for 5\.\ds: check the process first\.$", late, re.M)
    assert "last renewed 35s ago, and its renewal was due every 30s. The holder may be" in late
    assert "  Renewed " not in late
    assert re.search("^late +late ", call("list"), re.M)
    overdue = r"stuck \(mutex\): stale, \S+ for 1m 00s\nRenewal overdue for 30s: "
    assert re.match(overdue, stuck)
    assert "The holder is dead or paused, or cannot reach Redis." in stuck
    assert facts("show", "stuck")["state"] == "stale"
    assert facts("show", "stuck")["holders"][0]["is_stale"]


def test_show_of_leases_without_renewal_and_cooldowns(hold):
    hold("once", auto_renewal=False)
    lock = hold("daily", at_least_for=20)
    lock.release()

    assert "Not known whether releasing is safe.\nAutomatic renewal is off" in call("show", "once")
    cooling = call("show", "daily")
    assert "daily (mutex): cooldown\nIn cooldown.\nThe holder has released the lock, " in cooling
    assert re.search(r"which stays locked for another (19|20)s\.", cooling)
    assert "held for" not in cooling
    assert cooling.endswith("Next: To end the cooldown now, run: manage.py locks release daily\n")
    locks.force_release("daily")


def test_show_of_a_lock_whose_renewal_starts_later(redis_server, hold):
    hold("daily", timeout=30, at_least_for=60)
    first = call("show", "daily")
    postpone(redis_server, "daily", seconds=40)
    acquired_before(redis_server, "daily", seconds=80)
    later = call("show", "daily")

    assert "Renewal starts later: not known whether releasing is safe." in first
    assert "Renewed before: check the process first." in later


def test_show_of_a_lock_whose_lease_was_extended(hold):
    hold("daily", timeout=30).extend(60)
    text = call("show", "daily")
    assert text.startswith("daily (mutex): held (no renewal), ")
    assert "\nExtended: not known whether releasing is safe.\n" in text
    hold("once", auto_renewal=False).extend(60)
    assert "\nAutomatic renewal is off" in call("show", "once")


def test_show_has_all_holders_and_the_queue_in_its_order(nothing_left_behind):
    with locks.semaphore("export", 2), locks.semaphore("export", 2, metadata={"n": 1}):
        first = start(acquire_and_release, locks.semaphore("export", 2, metadata={"n": 2}))
        waiting(locks, "export", 1)
        second = start(acquire_and_release, locks.semaphore("export", 2, weight=2))
        waiting(locks, "export", 2)
        text, known = call("show", "export"), facts("show", "export")
        on_terminal = call_on_terminal("show", "export", columns=60)

    assert (first.result(60), second.result(60)) == (True, True)
    assert text.startswith("export (semaphore): held\n")
    assert text.count("\nHolder ") == 2
    assert "\n2 waiters\n" in text
    assert text.count("  Weight        1/2\n") == 2
    table = on_terminal.partition("\nPOSITION")[2].splitlines()
    assert max(map(len, table[1:3])) <= 60
    assert [waiter["weight"] for waiter in known["queue"]] == [1, 2]
    assert known["queue"][0]["metadata"] == {"n": 2}
    assert len(known["holders"]) == known["waiters"] == 2


def test_a_holder_that_renews_decides_the_state_of_a_lock(nothing_left_behind):
    with locks.semaphore("export", 2, auto_renewal=False), locks.semaphore("export", 2) as renewed:
        shown, listed, fence = call("show", "export"), call("list"), renewed.fence_token

    assert shown.startswith("export (semaphore): held\nIn use: releasing is not safe.\n")
    assert re.search(rf"^export +held .* semaphore +{fence}$", listed, re.M)


def test_show_of_readers_and_writers(nothing_left_behind):
    with locks.read_lock("prices"):
        writer = start(acquire_and_release, locks.write_lock("prices"))
        waiting(locks, "prices", 1)
        reader = start(acquire_and_release, locks.read_lock("prices"))
        waiting(locks, "prices", 2)
        read = call("show", "prices")
    assert (writer.result(60), reader.result(60)) == (True, True)
    with locks.write_lock("prices"):
        written = call("show", "prices")

    assert "\n  Access        reads\n" in read
    header = r"\nPOSITION +WAITS FOR +WAITER +TASK +ACCESS +METADATA"
    assert re.search(rf"{header}\n1 .* writes .*\n2 .* reads ", read)
    assert "\n  Access        writes\n" in written
    assert "1000000" not in read + written


def test_show_of_a_free_lock_has_its_history(empty_history):
    with locks.lock("done"):
        pass

    done = run("show", "done")

    assert done.returncode == 0
    assert done.stdout.startswith("done is free. Its history is below.\n")
    assert re.search(r"  released  done  ", done.stdout)
    assert facts("show", "done")["history"][0]["outcome"] == "released"


def test_show_of_a_queued_task(hold):
    with held_by_task("sync:7", metadata={"queued": True, "broker_queue": "slow"}):
        shown, state = call("show", "sync:7"), facts("show", "sync:7")["state"]

    assert state == "queued"
    assert re.match(r"sync:7 \(mutex\): queued for [\d.]+s, sent by \S+\nQueued: the task", shown)
    assert "\nThe task was sent by " in shown
    sender = r"\nSender \S+: queued\n  Task +sync \[id-1\]\n  Since +\S+ \S+, \S+ ago\n"
    assert re.search(sender, shown)
    assert "It is in the broker queue “slow”. The queue lock expires in 1m " in shown
    assert "\nNext: Check that the message of the task is still in the broker, and" in shown
    assert shown.endswith("\nIf the message is gone, run: manage.py locks release sync:7\n")


@pytest.mark.parametrize(
    ("eta", "text"),
    [
        ("2020-01-01T00:00:00+00:00", r"It could have started at 2020-01-01 "),
        ("2099-01-01T00:00:00+00:00", r"It starts at 2099-01-01 .* at the earliest\."),
    ],
)
def test_show_of_a_queued_task_with_an_eta(eta, text):
    with held_by_task("sync:7", metadata={"queued": True, "eta": eta}):
        assert re.search(text, call("show", "sync:7"))


def test_show_ends_with_the_next_step(hold, redis_server):
    hold("it's stuck", timeout=90)
    postpone(redis_server, "it's stuck", seconds=60)
    hold("alive")
    with held_by_task("task"):
        task = call("show", "task")

    stuck, alive = call("show", "it's stuck"), call("show", "alive")

    host, pid = locks.get("alive").holder.host, os.getpid()
    exists = f"\nNext: To see whether the process exists, run on {host}: ps -p {pid}\n"
    assert f"\n0 waiters\n{exists}{STALE.release}\n" in stuck
    assert stuck.endswith(
        "\nIf the process is gone, run: manage.py locks release 'it'\"'\"'s stuck'\n"
    )
    sees = f"\nNext: To see what the process does, run on {host}: py-spy dump --pid {pid}\n"
    assert alive.endswith(sees)
    assert f"{exists}If the process is gone, " in task


@pytest.mark.parametrize("name", ["-x", "it's"])
def test_the_release_command_can_be_run_as_it_is(hold, name):
    hold(name, locks.using("django_redis"), auto_renewal=False)
    hold("another lock", locks.using("django_redis"), auto_renewal=False)

    assert run_release_of(call("show", "--using=django_redis", "--", name)).returncode == 0

    assert [each.name for each in locks.using("django_redis").active()] == ["another lock"]


def run_release_of(shown: str) -> Done:
    """Run the command that releases the lock, as the last line of the text has it."""
    subcommand, *arguments = shlex.split(shown.rpartition("run: manage.py locks ")[2])
    return run(subcommand, "--yes", *arguments)


def test_the_next_step_spares_holders_that_may_be_running(redis_server, nothing_left_behind):
    with suppress(LockNotOwnedError), locks.semaphore("pool", 2, timeout=90):
        postpone(redis_server, "pool", seconds=60)
        with locks.semaphore("pool", 2, timeout=90) as alive:
            shown = call("show", "pool")
            assert run_release_of(shown).returncode == 0
            assert alive.owned()

    assert "Some renewals are overdue.\n1 of 2 holders has not renewed its lease" in shown


@pytest.mark.parametrize("format", ["text", "json"])
def test_show_of_an_unknown_lock_is_exit_1(empty_history, format):
    done = run("show", "no\u202esuch", "--format", format)

    assert done.returncode == 1
    assert done.stderr == "CommandError: no\\u202esuch is not held, and has no history\n"
    if format == "json":
        assert json.loads(done.stdout)["state"] == "free"
    else:
        assert done.stdout == ""


def test_metadata_is_hidden_wherever_it_is_shown(empty_history, hold, settings):
    settings.REDISLOCK_REDACT = ["*secret*"]
    lock = hold("x", metadata={"api_secret": "hunter2", "why": "close"})
    texts = [call("show", "x"), call("show", "x", "--format=json"), call("list", "--format=json")]
    lock.release()
    texts.append(call("history", "--format=json"))

    assert all("***" in text and "close" in text for text in texts)
    assert not any("hunter2" in text for text in texts)


def test_show_says_that_there_may_be_more_events():
    for _ in range(9):
        acquire_and_release(locks.lock("busy"))
    assert "\nHistory\n" in call("show", "busy")
    acquire_and_release(locks.lock("busy"))

    assert "\nHistory, the latest 10 events\n" in call("show", "busy")


def test_show_breaks_lines_between_words_on_a_terminal(hold):
    hold("x")

    shown = call_on_terminal("show", "x", columns=50)

    paragraph = shown.splitlines()[2:-1]
    assert re.fullmatch(r"The process of the holder was running [\d.]+s ago,", paragraph[0])
    assert max(len(line) for line in paragraph[:6]) <= 50
