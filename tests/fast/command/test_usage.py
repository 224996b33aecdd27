"""Usage, help, errors, and the command as a subprocess."""

import shlex

import pytest

from tests.commands import run

WRONG = {
    "": ["", "lst"],
    "list": ["''", "'a\x1b'", "--format xml", "--using nowhere"],
    "list --limit": ["0", "x", "1000001", "9" * 5000],
    "check": ["x", "--format xml", "--fail-on unknown", "--using nowhere"],
    "show": ["", "''", "x --format table"],
    "history": ["--outcome won", "--format jsonl", "--limit 0", f"--limit 1{'0' * 18}"],
    "release": ["", "--yes --dry-run", "'' --yes", f"{'x' * 513} --yes"],
    "release --yes": ["a --all", "a --pattern b", "--all --pattern b", "--older-than soon"],
    "run": ["", "x", "x --", "x true", "-- true", "'' -- true"],
    "run x": ["--skip --wait 1 -- true", "--wait soon -- true", "--timeout 0 -- true"],
    "run x --grace": ["-1 -- true"],
    "run x --conflict-exit-code": ["256 -- true"],
    "run x --using": ["nowhere -- true"],
    "release --process": ["web-1", ":7", "web-1:x"],
}


@pytest.mark.parametrize("start", WRONG)
def test_wrong_use_is_exit_2(start):
    for rest in WRONG[start]:
        done = run(*shlex.split(f"{start} {rest}"))

        assert (done.returncode, done.stdout) == (2, ""), rest
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("line", ["list --format=json", "show x", "history", "run x -- ls"])
def test_redis_away_is_one_line(redis_away, line):
    done = run(*line.split())

    beginning = "Not run" if line.startswith("run") else "CommandError"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{beginning}: The locks on 'default' can't be reached: ")
    assert done.stderr.count("\n") == 1


def test_help_lists_the_exit_statuses():
    text = " ".join(run("run", "--help").stdout.split())
    assert "[--using A] -- COMMAND..." in text
    assert "75 the lock was lost" in text
