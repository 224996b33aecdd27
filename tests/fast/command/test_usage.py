"""Usage, help, errors, and the command as a subprocess."""

import re
import shlex

import pytest

from tests.commands import run, run_process

WRONG = [
    ("", "", "lst"),
    ("list", "''", "'a\x1b'", "--format xml", "--using nowhere"),
    ("list --limit", "0", "-1", "x", "1000001", "9" * 5000),
    ("check", "x", "--format xml", "--fail-on unknown", "--using nowhere"),
    ("show", "", "''", "x --format table"),
    ("history", "--outcome won", "--format jsonl", "--limit 0", "--limit 1000000000000000000"),
    (
        "release",
        "",
        "--yes --dry-run",
        "'' --yes",
        f"{'x' * 513} --yes",
        "--older-than soon --yes",
    ),
    ("release --yes", "a --all", "a --pattern b", "--all --pattern b"),
    ("run", "", "x", "x --", "x true", "-- true", "'' -- true"),
    ("run x", "--skip --wait 1 -- true", "--wait soon -- true", "--timeout 0 -- true"),
    (
        "run x",
        "--timeout 11000d -- true",
        "--grace -1 -- true",
        "--conflict-exit-code 256 -- true",
    ),
    ("run x", "--using nowhere -- true", "--unknown -- true"),
]


@pytest.mark.parametrize("line", [f"{start} {rest}" for start, *more in WRONG for rest in more])
def test_wrong_use_is_exit_2(line):
    done = run(*shlex.split(line))

    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "beginning"),
    [
        *[
            (line, "CommandError: The")
            for line in ("list", "list --format=json", "show x", "history", "release x --yes")
        ],
        ("run x -- true", "Not run: The"),
    ],
)
def test_redis_away_is_one_line(redis_away, line, beginning):
    done = run(*line.split())

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{beginning} locks on 'default' can't be reached: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["list"], ["release", "--all"]])
def test_mistaken_options_are_one_line(settings, arguments):
    mistaken = {**settings.CACHES["default"], "OPTIONS": {"socket_timeoutt": 5}}
    settings.CACHES = {**settings.CACHES, "mistaken": mistaken}
    settings.REDISLOCK_CACHE = "mistaken"

    done = run(*arguments)

    assert done.returncode == 1
    assert re.fullmatch("CommandError: .*'mistaken': .*socket_timeoutt.*\n", done.stderr)


def test_the_command_as_a_subprocess(hold):
    hold("x")

    done = run_process(
        "list", "--settings", "tests.settings", "--no-color", "-v", "0", "--traceback"
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2


def test_help_lists_the_exit_statuses():
    def help_of(*subcommand: str) -> str:
        return " ".join(run(*subcommand, "--help").stdout.split())

    assert "1 the lock is not held" in help_of()
    assert "--older-than" in help_of("release")
    assert "[--using A] -- COMMAND..." in help_of("run")
    assert "75 the lock was lost" in help_of("run")
