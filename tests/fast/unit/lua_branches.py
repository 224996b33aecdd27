"""A pytest plugin that sees which way the conditions of the Lua scripts go, and fails the run
in which one never was true, or never false.

    python -m pytest -p tests.fast.unit.lua_branches tests/fast/unit/test_scripts.py
"""

import os
import re
from collections.abc import Iterator
from hashlib import sha1
from typing import Any

import pytest
import redis

CONDITION = re.compile(r"\b(if|elseif|while) (.+?) (then|do)\b")

SEEN = "lua_branches"
"""The set in Redis of what was seen."""

NOTE = f"""\
local function note(at, way)
  redis.call('SADD', '{SEEN}', at .. (way and ' true' or ' false'))
  return way
end
"""

_wanted: set[str] = set()


def pytest_sessionstart() -> None:
    from django_redislock import lua

    for script in vars(lua).values():
        if isinstance(script, lua.Script):
            source = NOTE + "\n".join(_noting(script))
            digest = sha1(source.encode(), usedforsecurity=False).hexdigest()
            object.__setattr__(script, "source", source)
            object.__setattr__(script, "sha", digest)


def _noting(script: Any) -> Iterator[str]:
    from django_redislock import lua

    for file, number, line in lua.lines(script.name):
        at = f"{file}:{number}"
        if line.lstrip().startswith("--") or not CONDITION.search(line):
            yield line
            continue
        _wanted.update((f"{at} true", f"{at} false"))
        yield CONDITION.sub(rf"\1 note('{at}', \2) \3", line, count=1)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    with redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as client:
        unseen = sorted(_wanted - client.smembers(SEEN))
    print(f"\n{len(_wanted)} ways, never: {', '.join(unseen) or 'none'}")
    if unseen:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
