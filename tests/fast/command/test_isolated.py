"""`IsolatedCommand`: a command that runs once at a time."""

import os
import re
import signal
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_redislock import LockNotAcquired, locks
from django_redislock.management import IsolatedCommand
from django_redislock.testing import held_elsewhere, lose
from tests.lock_tools import start, waiting


class Rebuild(IsolatedCommand):
    lock_name = "rebuild:{site}"
    lock_timeout = 7

    def add_arguments(self, parser):  # without super()
        parser.add_argument("site", type=int)
        parser.add_argument("--then", default="")

    def handle(self, *args, site, then, **options):
        info = locks.get(self.lock.name)
        assert (info.timeout, info.holder.pid) == (7, os.getpid())
        if "lose" in then:
            lose(self.lock.name)
        if "assert" in then:
            self.lock.assert_held()
        if "raise" in then:
            raise ZeroDivisionError
        if "terminate" in then:
            signal.raise_signal(signal.SIGTERM)
        self.stdout.write(f"{self.lock.name} {self.lock.fence_token}")


class Nightly(IsolatedCommand):
    def handle(self, **options):
        self.stdout.write(self.lock.name)


class Strict(Nightly):
    lock_name = "nightly"
    conflict_exit_code = 3
    lock_wait = 0.05


def run(command, *arguments):
    """Run a command as a shell does, and return its exit status, stdout and stderr."""
    out, err = StringIO(), StringIO()
    instance = command(stdout=out, stderr=err, no_color=True)
    try:
        instance.run_from_argv(["manage.py", command.__name__.lower(), *arguments])
    except SystemExit as ended:
        return ended.code, out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def test_the_lock_is_held_while_the_command_runs():
    with held_elsewhere("rebuild:8"):
        status, out, err = run(Rebuild, "7")
    assert (status, err) == (0, "")
    assert re.fullmatch(r"rebuild:7 \d+\n", out)
    assert locks.get("rebuild:7") is None


def test_wait_waits_for_the_end_of_the_other_run():
    with held_elsewhere("nightly") as other:

        def end():
            waiting(locks, "nightly", 1)
            other.release()

        ending = start(end)
        assert run(Nightly, "--wait", "1m") == (0, "nightly\n", "")
        ending.result(60)


@pytest.mark.parametrize("options", [[], ["--wait", "0.05"]])
def test_a_conflict_is_a_success_or_an_error_with_an_exit_status(options):
    with held_elsewhere("nightly"):
        skipped = run(Nightly, *options)
        status, out, err = run(Strict, *options)
        with pytest.raises(CommandError, match="Not run") as refused:
            call_command(Strict())
    assert skipped[:2] == (0, "")
    assert re.fullmatch(rf"Not run: nightly \(.*held by \S+:{os.getpid()}.*\)\n", skipped[2])
    assert (status, out) == (3, "")
    assert err.startswith("CommandError: Not run: nightly (")
    assert refused.value.returncode == 3
    assert isinstance(refused.value.__cause__, LockNotAcquired)


@pytest.mark.parametrize("then", ["lose", "lose, assert"])
def test_a_lost_lock_is_an_error_of_the_command(then):
    status, _, err = run(Rebuild, "7", "--then", then)
    assert status == 1
    assert err.startswith("CommandError: Cannot ")
    assert "rebuild:7" in err


def test_an_error_of_the_command_is_more_important():
    with pytest.raises(ZeroDivisionError):
        run(Rebuild, "7", "--then", "lose, raise")
    assert locks.get("rebuild:7") is None


@pytest.mark.usefixtures("default_sigterm")
def test_sigterm_releases_the_lock():
    assert run(Rebuild, "7", "--then", "terminate")[0] == 143
    assert locks.get("rebuild:7") is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
