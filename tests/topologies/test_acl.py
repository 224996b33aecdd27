"""The user that the docs have to copy may do what is needed, and that is all."""

import re

import pytest
import redis

from ..servers import MAKES, Node
from ..servers.needs import needs
from ..tools import ROOT
from .acl import lines, make_user

SCRIPTS = ROOT / "django_redislock" / "lua"

BESIDE = {
    *("evalsha", "eval", "blpop", "time", "info", "config|get"),
    *("select", "wait", "ping", "client|setname"),
}
"""What is sent beside the scripts, and by redis-py when it connects."""

IN_A_CLUSTER = {"cluster|slots", "command", "asking"}


def of_scripts() -> set[str]:
    """The commands that the scripts call."""
    text = "".join(path.read_text() for path in SCRIPTS.glob("*.lua"))
    return {each.lower() for each in re.findall(r"\(\s*'([A-Z]+)',", text)}


def test_the_lines_allow_what_is_used_and_nothing_else():
    everywhere, in_a_cluster = map(allowed, lines())
    assert everywhere == of_scripts() | BESIDE
    assert in_a_cluster == IN_A_CLUSTER


def allowed(line: str) -> set[str]:
    return {word[1:] for word in line.split() if word.startswith("+")}


@pytest.mark.parametrize("make", MAKES)
def test_the_user_may_do_nothing_else(make):
    needs(make)
    with Node(make) as node:
        user = node.client(**make_user(node))
        assert user.hset("redislock:{0}:lock:a", "any", 1) == 1
        assert user.hset("site:redislock:{0}:lock:a", "any", 1) == 1
        for forbidden in (
            ("HSET", "redislock", "any", 1),
            ("EVAL", "return redis.call('HGET', KEYS[1], 'any')", 1, "session:1"),
            ("GET", "redislock:{0}:lock:a"),
            ("KEYS", "*"),
            ("FLUSHDB",),
            ("SCRIPT", "FLUSH"),
            ("CONFIG", "SET", "save", ""),
            ("CLIENT", "LIST"),
            ("PUBLISH", "redislock:{0}:any", "any"),
            ("ACL", "WHOAMI"),
        ):
            with pytest.raises(redis.ResponseError, match=r"(?i)permission|can't (run|access)"):
                user.execute_command(*forbidden)
