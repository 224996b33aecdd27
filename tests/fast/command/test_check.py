"""`manage.py locks check`."""

import json

from django_redislock.health import CHECKS, REMEDIES
from tests.commands import run


def test_a_finding_is_a_line_and_its_remedy_is_below_it():
    done = run("check")

    header, *lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert header.split() == ["CHECK", "STATUS", "FOUND"]
    assert [line.split()[0] for line in lines if line[0] != " "] == list(CHECKS)
    assert f"Remedy: {REMEDIES['persistence']}" in done.stdout


def test_check_as_json_is_all_there_is_on_stdout_and_can_fail_on_a_warning():
    line = ["check", "--using", "django_redis", "--format", "json"]
    done, failed = run(*line), run(*line, "--fail-on", "warning")

    result = json.loads(done.stdout)
    findings = {each["id"]: each for each in result["findings"]}
    assert (done.returncode, done.stderr, failed.returncode) == (0, "", 1)
    assert failed.stderr.startswith("CommandError: Locks on 'django_redis': ")
    assert "persistence (warning)" in failed.stderr
    assert (result["alias"], result["status"]) == ("django_redis", "warning")
    assert list(findings) == list(CHECKS)
    assert findings["locking"]["facts"]["duration_ms"] > 0
    assert findings["persistence"]["remedy"] == REMEDIES["persistence"]


def test_check_of_a_server_that_is_unreachable(redis_away):
    table, as_json = run("check"), run("check", "--format", "json")

    for done in (table, as_json):
        assert done.returncode == 1
        assert done.stderr == "CommandError: Locks on 'default': connection (failed)\n"
        assert "127.0.0.1:1" in done.stdout
        assert "s3cret" not in done.stdout
    assert json.loads(as_json.stdout)["status"] == "failed"
