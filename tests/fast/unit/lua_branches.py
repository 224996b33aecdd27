"""A pytest plugin that records the branches of the Lua scripts, and fails the run if a condition
was never true or never false.

    python -m pytest -p tests.fast.unit.lua_branches \
        tests/fast/unit/test_scripts.py tests/fast/integration/test_stored_tasks.py
"""

import os
import re
from collections.abc import Iterator
from hashlib import sha1
from typing import Any

import pytest
import redis

CONDITION = re.compile(r"\b(if|elseif|while) (.+?) (then|do)\b")

TAKEN = "lua_branches"
"""The set in Redis with the branches that were taken."""

RECORD = f"""\
local function record_branch(at, condition)
  redis.call('SADD', '{TAKEN}', at .. (condition and ' true' or ' false'))
  return condition
end
"""

_branches: set[str] = set()


def pytest_sessionstart() -> None:
    from django_redislock import lua

    for script in vars(lua).values():
        if isinstance(script, lua.Script):
            source = RECORD + "\n".join(_recording(script))
            digest = sha1(source.encode(), usedforsecurity=False).hexdigest()
            object.__setattr__(script, "source", source)
            object.__setattr__(script, "sha", digest)


def _recording(script: Any) -> Iterator[str]:
    from django_redislock import lua

    for file, number, line in lua.lines(script.name):
        at = f"{file}:{number}"
        if line.lstrip().startswith("--") or not CONDITION.search(line):
            yield line
            continue
        _branches.update((f"{at} true", f"{at} false"))
        yield CONDITION.sub(rf"\1 record_branch('{at}', \2) \3", line, count=1)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    with redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as client:
        missing = sorted(_branches - client.smembers(TAKEN))
    print(f"\n{len(_branches)} branches, never taken: {', '.join(missing) or 'none'}")
    if missing:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
