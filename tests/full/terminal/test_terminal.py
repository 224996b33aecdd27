"""`manage.py locks` `show`, `history` and `watch`, on a real server and a real terminal."""

import json
import os
import re
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from django_redislock import locks
from django_redislock.management import completion
from django_redislock.management.presenting import HEADER
from django_redislock.management.subcommands import SUBCOMMANDS
from django_redislock.management.watching import Watcher, new_events
from django_redislock.testing import EmbeddedServer
from django_redislock.text import age, holder_text
from tests.commands import MANAGE, Lines, Terminal, call, run, run_process
from tests.lock_tools import hanging, start, waiting
from tests.pages import postpone
from tests.tools import ROOT, Child, wait_until

ANSI = "\x1b["

DIES = """
from django_redislock import locks
locks.lock(sys.argv[1], timeout=float(sys.argv[2]), metadata={"why": "close"}).acquire()
say("held"); hear()
"""

TASK = """
import threading
from celery import Celery
from django_redislock import locks
threading.current_thread().name = "another thread"
@Celery().task(name="sync")
def sync():
    with locks.lock("x", timeout=90, auto_renewal=False):
        say("held"); hear()
sync.apply()
"""


@pytest.fixture
def no_past(redis_server) -> None:
    """Other tests have left a history."""
    redis_server.flushdb()


def facts(*arguments: str) -> dict:
    return json.loads(call(*arguments, "--format", "json"))


@contextmanager
def dead_holder(name: str, *, timeout: float) -> Iterator[int]:
    with Child(DIES, name, str(timeout)) as child:
        child.expect("held")
        child.kill()
        yield child.pid
    locks.force_release(name)


# list


def test_a_list_fits_its_terminal(hold):
    names = ["x" * 512, "invoice:42", "日本" * 30]
    for name in names:
        hold(name, timeout=90)

    with Terminal("list", columns=80) as terminal:
        assert terminal.end() == 0
    header, *lines = terminal.text.splitlines()[:4]

    assert terminal.raw.count(b"\n") == 4
    assert header.split() == [column for column in HEADER if column != "TASK"]
    shown = sorted(line.split()[0] for line in lines)
    assert all(map(re.fullmatch, ("inv.*", "x+…", "(日本)+日?…"), shown))
    assert all(re.search(r" \d{16}$", line) for line in lines)
    assert all(name in run_process("list").stdout for name in names)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_list_shows_tasks_where_there_are_any(hold, encoding):
    hold("x" * 512, timeout=90)

    with Child(TASK) as child:
        child.expect("held")
        with Terminal("list", columns=90, PYTHONIOENCODING=encoding) as terminal:
            assert terminal.end() == 0
        child.tell()
        assert child.wait() == 0

    assert terminal.text.split("\n")[0].split() == list(HEADER)
    assert terminal.raw.count(b"\n") == 3
    assert terminal.shows(r"^x +not renewed +mutex .* sync")
    assert terminal.shows(r"^x{5,}(…|\.\.\.) +held")


def test_a_list_that_fits_is_shown_whole(hold):
    hold("x", timeout=90)

    with Terminal("list", columns=200) as terminal:
        assert terminal.end() == 0

    assert terminal.text.split("\n")[0].split() == list(HEADER)


def test_a_list_has_trouble_first(hold):
    for number, timeout in enumerate((300, 100, 200)):
        hold(f"held:{number}", timeout=timeout)
    hold("waited for", timeout=600)
    waiter = start(acquire_and_release, locks.lock("waited for"))
    waiting(locks, "waited for", 1)

    with dead_holder("stuck", timeout=6):
        wait_until(lambda: locks.get("stuck").is_stale)
        lines = call("list").splitlines()
    locks.force_release("waited for")

    assert waiter.result(60)
    starts = ["NAME", "stuck", "waited for", "held:1", "held:2", "held:0"]
    assert [line[: len(name)] for line, name in zip(lines, starts, strict=True)] == starts


# show


def test_show_says_who_holds_and_that_it_lives(hold):
    lock = hold("invoice:42", metadata={"customer": "c-1"})

    done = run("show", "invoice:42")

    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert re.fullmatch(
        rf"invoice:42 \(mutex\) is held by \S+:{os.getpid()}, for \S+; renewed \S+ ago\.",
        first,
    )
    assert f"  fence     {lock.fence_token}" in lines
    assert '  metadata  {"customer": "c-1"}' in lines
    assert lock.token not in done.stdout


@pytest.mark.slow
def test_show_says_that_a_holder_is_dead():
    with dead_holder("stuck", timeout=4) as pid:
        wait_until(lambda: locks.get("stuck").is_stale)
        text, as_json = call("show", "stuck"), facts("show", "stuck")

    assert f":{pid}, for " in text
    assert re.search(r"Renewal overdue for \S+: check the process first\.", text)
    assert "The holder is dead or paused, or cannot reach Redis." in text
    assert as_json["holders"][0]["is_stale"]


def test_show_says_that_a_renewal_is_overdue_before_the_holder_is_stale(redis_server, hold):
    hold("late", timeout=90)
    postpone(redis_server, "late", seconds=35)

    text = call("show", "late")

    assert "; renewal overdue, last renewed 35s ago." in text
    assert re.search(r"^Renewal overdue for 5\.\ds: check the process first\. ", text, re.M)
    assert "Renewal was due every 30s. The holder may be busy" in text
    assert re.search("^late +overdue ", call("list"), re.M)


def test_show_says_what_just_runs_down_or_cools_down(hold):
    hold("once", auto_renewal=False)
    lock = hold("daily", at_least_for=20)
    lock.release()

    assert "Not known whether releasing is safe: automatic renewal is off." in call("show", "once")
    cooling = call("show", "daily")
    assert "(mutex) was released, and stays taken for another 19s." in cooling
    assert "held for" not in cooling
    locks.force_release("daily")


def test_show_does_not_say_that_nobody_renews_what_may_be_renewed(hold):
    hold("daily", timeout=1.5, at_least_for=2)
    first = call("show", "daily")
    wait_until(lambda: age(locks.get("daily").first) > 2)
    later = call("show", "daily")

    assert "Renewal starts later (at_least_for): not known whether releasing is safe." in first
    assert "s of 2.0s left, renewal starts later\n" in first
    assert "Renewed before: check the process first." in later
    assert "s of 2.0s left, renewed before\n" in later


def test_show_says_how_who_holds_stands_before_who_only_cools_down(nothing_left_behind):
    cooling = locks.semaphore("export", 2, at_least_for=20)
    assert cooling.acquire()
    with locks.semaphore("export", 2):
        cooling.release()
        assert "In use: releasing is not safe." in call("show", "export")
    locks.force_release("export")


def test_show_has_all_holders_and_the_queue_in_its_order(nothing_left_behind):
    with locks.semaphore("export", 2), locks.semaphore("export", 2, metadata={"n": 1}):
        first = start(acquire_and_release, locks.semaphore("export", 2, metadata={"n": 2}))
        waiting(locks, "export", 1)
        second = start(acquire_and_release, locks.semaphore("export", 2, weight=2))
        waiting(locks, "export", 2)
        text, known = call("show", "export"), facts("show", "export")

    assert (first.result(60), second.result(60)) == (True, True)
    assert "export (semaphore) is held by 2 holders, for " in text
    assert "2 wait for it, the longest for " in text
    assert text.count("  weight    1 of 2") == 2
    assert [waiter["weight"] for waiter in known["queue"]] == [1, 2]
    assert known["queue"][0]["metadata"] == {"n": 2}
    assert len(known["holders"]) == known["waiters"] == 2


def test_show_says_who_reads_and_who_writes(nothing_left_behind):
    with locks.read_lock("prices"):
        writer = start(acquire_and_release, locks.write_lock("prices"))
        waiting(locks, "prices", 1)
        reader = start(acquire_and_release, locks.read_lock("prices"))
        waiting(locks, "prices", 2)
        read = call("show", "prices")
    assert (writer.result(60), reader.result(60)) == (True, True)
    with locks.write_lock("prices"):
        written = call("show", "prices")

    assert "\n  access    reads\n" in read
    assert re.search(r"\nWAITS FOR +HOLDER +TASK +ACCESS +METADATA\n.* writes .*\n.* reads ", read)
    assert "\n  access    writes\n" in written
    assert "1000000" not in read + written


def acquire_and_release(lock) -> bool:
    with lock:
        return lock.locked()


def test_show_of_a_free_lock_has_its_history(no_past):
    with locks.lock("done"):
        pass

    done = run("show", "done")

    assert done.returncode == 0
    assert done.stdout.startswith("done is free.\n")
    assert re.search(r"  released  done  ", done.stdout)
    assert facts("show", "done")["history"][0]["outcome"] == "released"


@pytest.mark.parametrize("format", ["text", "json"])
def test_show_of_what_nobody_knows_is_exit_1(no_past, format):
    done = run_process("show", "no\u202esuch", "--format", format)

    assert done.returncode == 1
    assert done.stderr == "CommandError: no\\u202esuch is not held, and has no history\n"
    if format == "json":
        assert json.loads(done.stdout)["state"] == "free"
    else:
        assert done.stdout == ""


# release


def test_an_answer_of_no_releases_nothing(hold):
    lock = hold("x")
    with Terminal("release", "x") as terminal:
        terminal.shows(r"^Release 1\? \[y/N\]")
        terminal.press("n\n")
        terminal.shows(r"^Nothing was released\.$")
        assert terminal.colour_of("Nothing") == "default"
        assert terminal.end() == 1
    assert lock.owned()


# history


def test_history_tells_what_became_of_locks_the_latest_first(no_past):
    with locks.lock("a"):
        locks.lock("a", blocking=False).acquire()
    forced = locks.lock("b")
    forced.acquire()
    locks.force_release("b")

    header, *lines = call("history").splitlines()
    told = json.loads(call("history", "--format", "json"))

    assert header.split() == ["AT", "OUTCOME", "NAME", "HELD", "WAITED", "HOLDER", "TASK", "FENCE"]
    assert [line.split()[2:4] for line in lines] == [
        ["forced", "b"],
        ["released", "a"],
        ["refused", "a"],
    ]
    assert [event["outcome"] for event in told] == ["forced", "released", "refused"]
    assert told[0]["fence_token"] == forced.fence_token
    assert told[2]["acquired_at"] is None


def test_history_of_one_lock_or_of_some_outcomes_or_of_a_few(no_past):
    for name in "aabbb":
        with locks.lock(name):
            locks.lock(name, blocking=False).acquire()

    def outcomes(*arguments: str) -> list[str]:
        lines = call("history", *arguments, "--format", "jsonl").splitlines()
        return [json.loads(line)["outcome"] for line in lines]

    assert len(outcomes()) == 10
    assert len(outcomes("a")) == 4
    assert outcomes("a", "--outcome", "refused") == ["refused"] * 2
    assert outcomes("--outcome", "refused", "lost", "--limit", "2") == ["refused"] * 2
    assert outcomes("--outcome", "lost") == []
    assert run("history", "a", "--outcome", "lost").stdout == "No history.\n"


def test_history_looks_back_for_what_is_rare(no_past):
    locks.lock("rare").acquire()
    locks.force_release("rare")
    for _ in range(30):
        with locks.lock("often"):
            pass

    (line,) = call("history", "--outcome", "forced", "--limit", "1").splitlines()[1:]

    assert " rare " in line


def test_history_that_is_off_says_so(no_past, settings):
    settings.REDISLOCK_HISTORY = 0
    with locks.lock("x"):
        pass

    assert call("history") == "No history is kept.\n"
    assert call("history", "--format", "json") == "[]\n"


@pytest.mark.parametrize("columns", [64, 80, 100])
@pytest.mark.parametrize("subcommand", ["history", "show"])
def test_history_fits_its_terminal(no_past, subcommand, columns):
    name = "日本" * 10 + "x" * 60
    with locks.lock(name) as lock:
        fence = str(lock.fence_token)
    arguments = [subcommand, name] if subcommand == "show" else [subcommand]

    with Terminal(*arguments, columns=columns) as terminal:
        assert terminal.end() == 0
    header, line, *rest = terminal.text[terminal.text.index("AT ") :].splitlines()

    wanted = ["AT", "OUTCOME", "NAME", "HELD", "WAITED", "HOLDER", "FENCE"]
    if columns == 64:
        wanted.remove("WAITED")
    assert header.split() == wanted
    assert re.match(r"\d\d:\d\d:\d\d +released +日", line)
    assert line.endswith(f"  {fence}")
    assert not "".join(rest).strip()
    assert name in run_process(*arguments).stdout


def test_history_shows_tasks_where_there_are_any(no_past):
    with Child(TASK) as child:
        child.expect("held")
        child.tell()
        assert child.wait() == 0

    with Terminal("history", columns=80) as terminal:
        assert terminal.end() == 0

    assert "TASK" in terminal.text.split("\n")[0].split()
    assert terminal.shows(r"released +x .* sync \[")


def test_history_shows_the_date_of_another_day(no_past, redis_server):
    with locks.lock("x"):
        pass
    (key,) = redis_server.scan_iter("*:history:ended")
    ((_, fields),) = redis_server.xrange(key)
    at = datetime(2026, 1, 31, 18, 0, 40, tzinfo=UTC)
    redis_server.delete(key)
    redis_server.xadd(key, fields | {"at": int(at.timestamp() * 1000)})

    with Terminal("history") as terminal:
        assert terminal.end() == 0

    assert terminal.shows(r"^2026-01-31 18:00:40 +released +x ")
    assert "\n2026-01-31 18:00:40+00:00  released  x " in run_process("history").stdout


# What is shown, and how


def test_metadata_is_hidden_wherever_it_is_shown(no_past, hold, settings):
    settings.REDISLOCK_REDACT = ["*secret*"]
    lock = hold("x", metadata={"api_secret": "hunter2", "why": "close"})
    told = [call("show", "x"), call("show", "x", "--format", "json")]
    told.append(call("list", "--format", "json"))
    lock.release()
    told += [call("history", "--format", "json"), call("history", "--format", "jsonl")]

    assert all("***" in text and "close" in text for text in told)
    assert not any("hunter2" in text for text in told)


def test_metadata_steers_no_terminal(hold):
    hold("x", metadata={"why": "\x1b[2J\u202eabc", "日本": "é"})

    text = call("show", "x") + call("show", "x", "--format", "json")

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "日本" in text


@pytest.mark.slow
def test_an_ascii_terminal_gets_ascii(hold):
    hold("日本")
    hold("ab")

    done = run_process("list", PYTHONIOENCODING="ascii")
    shown = run_process("show", "日本", PYTHONIOENCODING="ascii")

    assert (done.returncode, done.stderr, shown.returncode, shown.stderr) == (0, "", 0, "")
    assert "\\u65e5\\u672c" in shown.stdout
    header, *lines = done.stdout.splitlines()
    assert {line.index("mutex") for line in lines} == {header.index("KIND")}


@pytest.mark.parametrize(
    ("arguments", "environment", "coloured"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        pytest.param([], {"NO_COLOR": ""}, True, marks=pytest.mark.slow),
        pytest.param([], {"DJANGO_COLORS": "nocolor"}, False, marks=pytest.mark.slow),
        (["--no-color"], {}, False),
        (["--force-color"], {"NO_COLOR": "1"}, True),
    ],
)
def test_colours_on_a_terminal_are_djangos(hold, arguments, environment, coloured):
    hold("x")

    with Terminal("list", *arguments, **environment) as terminal:
        assert terminal.end() == 0

    assert "x" in terminal.text
    assert (ANSI.encode() in terminal.raw) is coloured


@pytest.mark.slow
def test_a_pipe_gets_colours_only_when_forced(hold):
    hold("x")

    assert ANSI not in run_process("show", "x").stdout
    assert ANSI in run_process("show", "x", "--force-color").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["show"],
        ["show", ""],
        ["show", "x", "--format", "table"],
        ["history", "--outcome", "won"],
        ["history", "--limit", "0"],
        ["watch", "--interval", "0"],
        ["watch", "--interval", "soon"],
        ["watch", "--interval", "2h"],
        ["watch", "--limit", "-1"],
    ],
)
def test_wrong_use_is_exit_2(arguments):
    done = run(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["show", "x", "--format", "json"], ["history"]])
def test_redis_away_is_one_line(arguments):
    done = run_process(*arguments, REDIS_URL="redis://127.0.0.1:1/0")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("CommandError: The locks on 'default' can't be reached: ")
    assert done.stderr.count("\n") == 1


def test_shells_can_complete_each_subcommand():
    (action,) = completion.parser()._subparsers._group_actions

    assert set(action.choices) == set(SUBCOMMANDS)
    assert "--outcome" in action.choices["history"]._option_string_actions


# watch, in lines


def test_lines_tell_what_there_is_and_what_changes(no_past, hold):
    hold("already")

    with Lines() as lines:
        lines.expect(r"held +already  mutex  \S+  fence \d+$")
        lock = hold("new", metadata={"x": 1})
        lines.expect(rf"taken +new  mutex  .*fence {lock.fence_token}$")
        waiter = start(acquire_and_release, locks.lock("new"))
        lines.expect(r"waiting +new  1 waits$")
        lock.release()
        assert waiter.result(60)
        lines.expect(r"released +new .* held ")
        lines.expect(r"released +new .* waited ")
        status, err = lines.end()

    assert (status, err) == (0, "")
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00  \w", line) for line in lines.said)


@pytest.mark.slow
def test_lines_tell_stale_and_expired(no_past):
    with Lines("stuck*") as lines, dead_holder("stuck:1", timeout=2):
        lines.expect(r"stale +stuck:1 .* left$")
        lines.expect(r"expired +stuck:1 .* held 2\.")
        assert lines.end(signal.SIGINT) == (0, "")


def test_lines_are_of_what_matches(no_past, hold):
    hold("a0")
    with Lines("a?") as lines:
        lines.expect("held +a0 ")
        for name in ("b1", "abc", "a1"):
            hold(name).release()
        lines.expect("released +a1")
        lines.end()

    assert {line.split()[3] for line in lines.said} == {"a0", "a1"}


@pytest.mark.slow
def test_lines_without_a_history_tell_what_is_gone(no_past, hold, tmp_path):
    tmp_path.joinpath("no_history.py").write_text(
        "from tests.settings import *\nREDISLOCK_HISTORY = 0\n"
    )
    paths = os.pathsep.join((str(tmp_path), str(ROOT)))
    with Lines(DJANGO_SETTINGS_MODULE="no_history", PYTHONPATH=paths) as lines:
        lock = hold("x")
        lines.expect("(taken|held) +x ")
        lock.release()
        lines.expect("gone +x ")
        assert lines.end() == (0, "")


def test_no_event_between_two_looks_is_missed(no_past):
    with locks.lock("first"):
        pass
    with Lines("--interval", "2") as lines:
        with locks.lock("mark"):
            lines.expect("(held|taken) +mark ")
        for number in range(300):
            with locks.lock(f"n{number}"):
                pass
        lines.expect("released +n299 ", timeout=30)
        lines.end()

    ended = [line.split()[3] for line in lines.said if line.split()[2] == "released"]
    assert ended == ["mark", *(f"n{number}" for number in range(300))]


def test_what_ended_before_the_first_look_is_not_told_as_new(no_past):
    def pass_through(*names: str) -> None:
        for name in names:
            with locks.lock(name):
                pass

    others = [f"other:{number}" for number in range(60)]
    watcher = Watcher(locks, "mine:*", 100)
    pass_through("mine:before", *others)
    before = watcher.look()
    pass_through("mine:since", *others)
    assert [event.name for event in new_events(before, watcher.look())] == ["mine:since"]


@pytest.mark.slow
def test_lines_wait_for_redis_to_come_back():
    with EmbeddedServer() as server, Child(DIES, "ready", "9", REDIS_URL=server.url) as child:
        child.expect("held")
        watch_through_an_outage(server)


def watch_through_an_outage(server: EmbeddedServer) -> None:
    with Lines(REDIS_URL=server.url) as lines:
        lines.expect("held +ready ")
        server.stop()
        lines.expect("away +Redis  .")
        server.start()
        lines.expect("back +Redis")
        assert lines.end() == (0, "")
    assert sum("away" in line for line in lines.said) == 1


@pytest.mark.slow
def test_lines_end_when_their_reader_leaves():
    read, write = os.pipe()
    watching = subprocess.Popen(
        [*MANAGE, "watch", "nothing:*", "--interval", "1h"],
        cwd=ROOT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        stdin=subprocess.DEVNULL,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    os.close(read)

    _, err = watching.communicate(timeout=60)

    assert (watching.returncode, err) == (0, "")


# watch, on a full screen


def test_screen_shows_locks_and_what_happened(no_past, hold):
    lock = hold("invoice:42", timeout=10, auto_renewal=False)

    with Terminal("watch", "--interval", "0.2") as terminal:
        terminal.shows(r"^1 lock held, 0 stale, nobody waits$")
        terminal.shows(r"^NAME +HOLDER +AGE +LEASE +WAITERS$")
        terminal.shows(rf"^invoice:42 +\S+:{os.getpid()} .*█+░* +\d\.\ds +ends +-$")
        waiter = start(acquire_and_release, locks.lock("invoice:42"))
        terminal.shows(r"^invoice:42 .* 1$")
        lock.release()
        assert waiter.result(60)
        terminal.shows(r"^\d\d:\d\d:\d\d +released +invoice:42 .* held ")
        terminal.shows(r"released +invoice:42 .* waited ")
        terminal.shows(r"^0 locks held")
        terminal.press("q")
        assert terminal.end() == 0


def test_bars_run_down_between_two_looks(hold):
    hold("x", timeout=20, auto_renewal=False)

    with Terminal("watch", "--interval", "1h") as terminal:
        full = terminal.shows(r"^x .*?(█+░*) +1\ds")[1].count("█")
        terminal.shows(rf"^x .*?(█{{1,{full - 1}}}░+) +1\ds")
        terminal.press("q")
        assert terminal.end() == 0


def test_stale_locks_come_first_and_in_red(hold):
    for number in range(3):
        hold(f"alive:{number}")

    with dead_holder("stuck", timeout=8), Terminal("watch", "--interval", "0.2") as terminal:
        terminal.shows(r"WAITERS\nstuck .* stale ")
        assert terminal.colour_of("stuck") == "red"
        assert terminal.colour_of("alive:0") == "default"
        terminal.press("q")
        assert terminal.end() == 0


def test_more_locks_than_lines_are_counted(hold):
    for number in range(30):
        hold(f"n{number:02}")

    with Terminal("watch", rows=14) as terminal:
        terminal.shows(r"^30 locks held")
        terminal.shows(r"^n06 ")
        terminal.shows(r"^and 23 more$")
        terminal.press("q")
        assert terminal.end() == 0


def test_it_says_of_how_many_locks_it_tells(hold):
    lock = hold("contended", timeout=600)
    waiter = start(acquire_and_release, locks.lock("contended"))
    waiting(locks, "contended", 1)
    hold("ends:first", timeout=300)

    with Terminal("watch", "--limit", "1") as terminal:
        terminal.shows(r"^2 locks held; of the 1 whose leases end first 0 stale, nobody waits$")
        terminal.press("q")
        assert terminal.end() == 0
    lock.release()
    assert waiter.result(60)


@pytest.mark.parametrize(
    "how",
    [
        "q",
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in ("\x03", signal.SIGTERM, signal.SIGINT)
        ),
    ],
)
def test_the_terminal_is_as_it_was_however_it_ends(how):
    with Terminal("watch") as terminal:
        terminal.shows("locks held")
        assert not termios.tcgetattr(terminal.theirs)[3] & termios.ECHO
        if isinstance(how, signal.Signals):
            terminal.process.send_signal(how)
        elif how == "q":
            terminal.press(how)
        else:  # Ctrl-C of a terminal that has no session of its own
            os.killpg(terminal.process.pid, signal.SIGINT)

        assert terminal.end() == 0
        assert termios.tcgetattr(terminal.theirs) == terminal.modes

    assert terminal.raw.count(b"\x1b[?1049h") == terminal.raw.count(b"\x1b[?1049l") == 1
    assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")
    assert b"Traceback" not in terminal.raw


def test_the_terminal_is_as_it_was_while_it_is_stopped():
    with Terminal("watch") as terminal:
        terminal.shows("locks held")
        # Nobody is there to continue what is stopped in a session of its own, so it goes on.
        terminal.press("\x1a")
        wait_until(lambda: terminal.read(0.1) and terminal.raw.count(b"\x1b[?1049h") == 2)
        terminal.shows("locks held")
        terminal.press("q")
        assert terminal.end() == 0
        assert termios.tcgetattr(terminal.theirs) == terminal.modes

    left, entered = terminal.raw.index(b"\x1b[?1049l"), terminal.raw.rindex(b"\x1b[?1049h")
    assert left < entered
    assert b"\x1b[?25h" in terminal.raw[:entered]


def test_screen_waits_for_redis_and_keys_work_meanwhile():
    with EmbeddedServer() as server, Terminal("watch", REDIS_URL=server.url) as terminal:
        terminal.shows("^0 locks held")
        server.stop()
        terminal.shows(r"^Redis is away; seen \S+ ago: .")
        server.start()
        terminal.shows(r"q ends it$")
        with hanging(server):
            terminal.press("q")
            assert terminal.end() == 0


def test_screen_has_no_characters_that_its_terminal_lacks(hold):
    hold("日本[red]")

    with Terminal("watch", PYTHONIOENCODING="ascii", NO_COLOR="1") as terminal:
        terminal.shows(r"^\\u65e5\\u672c\[red\] .* #+\.* +\d+s +-$")
        terminal.press("q")
        assert terminal.end() == 0

    assert terminal.raw.isascii()
    assert not re.search(rb"\x1b\[[0-9;]*[1-9][0-9;]*m", terminal.raw)


def test_a_small_terminal_and_a_long_name_are_no_trouble(hold):
    hold("x" * 500)

    with Terminal("watch", rows=6, columns=40) as terminal:
        terminal.shows(r"^xx.*…")
        terminal.press("q")
        assert terminal.end() == 0


@pytest.mark.parametrize(
    ("columns", "header"),
    [(40, "NAME +AGE +LEASE +WAITERS"), (64, "NAME +HOLDER +AGE +LEASE +WAITERS")],
)
def test_a_narrow_terminal_shows_names_before_anything_else(hold, columns, header):
    hold("invoice:2026:42")

    with Terminal("watch", columns=columns) as terminal:
        terminal.shows(f"^{header}$")
        terminal.shows(r"^invoice\S* ")
        terminal.press("q")
        assert terminal.end() == 0


def test_80_columns_show_who_holds_beside_a_task():
    with Child(TASK) as child, Terminal("watch", columns=80) as terminal:
        child.expect("held")
        shown = holder_text(locks.get("x").first)[:13]
        terminal.shows(r"^NAME +HOLDER +TASK +AGE +LEASE +WAITERS$")
        terminal.shows(rf"^x +{re.escape(shown)}.* sync")
        terminal.press("q")
        assert terminal.end() == 0
        child.tell()
        assert child.wait() == 0


def test_without_rich_it_says_what_to_install_and_prints_lines(hold, tmp_path: Path):
    tmp_path.joinpath("rich.py").write_text("raise ModuleNotFoundError(name='rich')\n")
    hold("x")

    paths = os.pathsep.join((str(tmp_path), str(ROOT)))
    with Terminal("watch", PYTHONPATH=paths) as terminal:
        terminal.shows(r"pip install 'django-redislock\[terminal\]'")
        terminal.shows(r"held +x ")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0

    assert b"\x1b[?1049h" not in terminal.raw


def test_a_dumb_terminal_gets_lines(hold):
    hold("x")

    with Terminal("watch", TERM="dumb") as terminal:
        terminal.shows(r"held +x ")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0

    assert "pip install" not in terminal.text


@pytest.mark.slow
def test_only_watching_needs_rich(tmp_path: Path):
    tmp_path.joinpath("rich.py").write_text("raise ModuleNotFoundError(name='rich')\n")

    done = run_process("list", PYTHONPATH=os.pathsep.join((str(tmp_path), str(ROOT))))

    assert (done.returncode, done.stderr) == (0, "")
