"""Usage, help, errors, and the command as a subprocess."""

import re

import pytest

from django_redislock.management import completion
from django_redislock.management.subcommands import SUBCOMMANDS
from tests.commands import run, run_process


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
        ["show"],
        ["show", ""],
        ["show", "x", "--format", "table"],
        ["history", "--outcome", "won"],
        ["history", "--limit", "0"],
        ["watch", "--interval", "0"],
        ["watch", "--interval", "soon"],
        ["watch", "--interval", "2h"],
        ["watch", "--limit", "-1"],
        ["run"],
        ["run", "x"],
        ["run", "x", "--"],
        ["run", "x", "--", ""],
        ["run", "x", "true"],
        ["run", "--", "true"],
        ["run", "", "--", "true"],
        ["run", "x", "--skip", "--wait", "1", "--", "true"],
        ["run", "x", "--wait", "soon", "--", "true"],
        ["run", "x", "--timeout", "0", "--", "true"],
        ["run", "x", "--timeout", "11000d", "--", "true"],
        ["run", "x", "--grace", "-1", "--", "true"],
        ["run", "x", "--conflict-exit-code", "256", "--", "true"],
        ["run", "x", "--using", "nowhere", "--", "true"],
        ["run", "x", "--unknown", "--", "true"],
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
        ["list", "--format=json"],
        ["show", "x", "--format=json"],
        ["history"],
        ["release", "x", "--yes"],
        ["run", "x", "--", "true"],
    ],
)
def test_redis_away_is_one_line(redis_away, arguments):
    done = run(*arguments)

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

    assert "1 what was named is not held" in help_of()
    assert "--older-than" in help_of("release")
    assert "[--using A] -- COMMAND..." in help_of("run")
    assert "75 the lock was lost" in help_of("run")


def test_shells_can_complete_each_subcommand():
    (action,) = completion.parser()._subparsers._group_actions

    assert set(action.choices) == set(SUBCOMMANDS)
    assert "--outcome" in action.choices["history"]._option_string_actions
