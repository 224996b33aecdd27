"""The user from the docs has exactly the rights that the package needs."""

import re

import pytest
import redis

from django_redislock.health import RIGHTS
from tests.servers import MAKES, Node
from tests.tools import ROOT

from .acl import lines, make_user

SCRIPTS = ROOT / "django_redislock" / "lua"

SENT_BY_CLIENTS = {
    *("evalsha", "eval", "blpop", "time", "info"),
    *("select", "wait", "ping", "client|setname"),
}
"""Commands in addition to the scripts. redis-py sends some of them when it connects."""

HISTORY = {"hincrby", "hkeys", "xadd", "xdel", "xlen", "xrange", "xrevrange"}

IN_A_CLUSTER = {"cluster|slots", "command", "asking"}

REFUSED = "(?i)permission|not allowed|can't (run|access)"


def of_scripts() -> set[str]:
    """Return the commands that the scripts call."""
    text = "".join(path.read_text() for path in SCRIPTS.glob("*.lua"))
    return {each.lower() for each in re.findall(r"\(\s*'([A-Z]+)',", text)}


def test_the_lines_allow_what_is_used_and_nothing_else():
    everywhere, in_a_cluster = map(allowed, lines())
    assert everywhere == of_scripts() | SENT_BY_CLIENTS
    assert in_a_cluster == IN_A_CLUSTER
    checked = {command.lower() for commands in RIGHTS.values() for command in commands}
    assert checked == of_scripts() - HISTORY | {"eval", "evalsha", "blpop", "time"}


def allowed(line: str) -> set[str]:
    return {word[1:] for word in line.split() if word.startswith("+")}


FORBIDDEN = [
    ("HSET", "redislock", "any", "1"),
    ("HGETALL", "session:1"),
    ("XREVRANGE", "session:1", "+", "-"),
    ("GET", "session:1"),
    ("DUMP", "session:1"),
    ("SORT", "session:1"),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("RANDOMKEY",),
    ("CONFIG", "GET", "*"),
    ("ACL", "LIST"),
    ("ACL", "GETUSER", "default"),
    ("CLIENT", "LIST"),
    ("MONITOR",),
    ("FLUSHALL",),
    ("PUBLISH", "{redislock}:any", "any"),
]


@pytest.mark.parametrize("make", MAKES)
def test_the_user_may_use_keys_of_locks_and_learns_nothing_else(make):
    with Node(make) as node:
        user = node.client(**make_user(node))
        assert user.hset("{redislock}:lock:a", "any", 1) == 1
        assert user.hset("{site:redislock}:lock:a", "any", 1) == 1
        for command in FORBIDDEN:
            for sent in (command, ("EVAL", "return redis.call(unpack(ARGV))", 0, *command)):
                with pytest.raises(redis.ResponseError, match=REFUSED):
                    user.execute_command(*sent)
        node.client().config_set("masterauth", "a-secret")
        node.client().set("name-of-a-foreign-key", 1)
        told = str([user.info("all"), user.info("everything")])
        assert not re.search("a-secret|name-of-a-foreign-key", told)
