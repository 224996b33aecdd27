"""The user from the docs has exactly the rights that the package needs."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_redislock import locks
from django_redislock.health import RIGHTS
from tests.lock_fixtures import CORE
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


@pytest.mark.parametrize("make", MAKES)
def test_the_health_check_names_each_missing_right(make, settings):
    with Node(make) as node:
        url = "redis://{username}:{password}@127.0.0.1:{}".format(node.port, **make_user(node))
        settings.CACHES = {**settings.CACHES, "user": {"BACKEND": CORE, "LOCATION": url}}
        assert locks.using("user").health().get("scripts").status == "ok"
        node.ask("ACL", "SETUSER", "locks", "-evalsha", "-hset")
        assert locks.using("user").health().get("scripts").facts["needs"] == "+evalsha +hset"
        node.ask("ACL", "SETUSER", "locks", "+evalsha", "+hset", "resetkeys", "~cache:*")
        assert locks.using("user").health().get("scripts").facts["needs"] == "~{redislock}:*"


def allowed(line: str) -> set[str]:
    return {word[1:] for word in line.split() if word.startswith("+")}


@pytest.mark.parametrize("make", MAKES)
def test_the_user_may_write_keys_of_locks_and_no_others(make):
    with Node(make) as node:
        user = node.client(**make_user(node))
        assert user.hset("{redislock}:lock:a", "any", 1) == 1
        assert user.hset("{site:redislock}:lock:a", "any", 1) == 1
        for forbidden in (
            ("HSET", "redislock", "any", 1),
            ("EVAL", "return redis.call('HGET', KEYS[1], 'any')", 1, "session:1"),
            ("PUBLISH", "{redislock}:any", "any"),
        ):
            with pytest.raises(redis.ResponseError, match=r"(?i)permission|can't (run|access)"):
                user.execute_command(*forbidden)


REQUIREPASS, MASTERAUTH = "secret-of-requirepass", "secret-of-masterauth"
FOREIGN_VALUE, FOREIGN_KEY = "value-of-a-foreign-key", "name-of-a-foreign-key"
SECRETS = (REQUIREPASS, MASTERAUTH, FOREIGN_VALUE, FOREIGN_KEY)

OWN = "{redislock}:lock:own"

WITHOUT_LOGIN = {"auth", "hello", "quit", "reset"}
"""Commands that an ACL cannot forbid. They change the connection."""

GUARDED = {
    "config": "get set resetstat rewrite help",
    "acl": "load save list users getuser setuser deluser cat genpass whoami log dryrun help",
}
"""Redis 6.2 does not list subcommands itself."""


@pytest.mark.parametrize("make", MAKES)
def test_no_command_reveals_a_password_or_a_foreign_key(make):
    with Node(make) as node:
        commands = commands_of(node)
        user = make_user(node)
        foreign = fill_with_foreign_keys(node)
        node.client().config_set("masterauth", MASTERAUTH)
        node.client().config_set("requirepass", REQUIREPASS)
        connection = redis.Connection("127.0.0.1", node.port, **user, socket_timeout=5)
        permitted, leaks = set(), []
        for name, arity in commands.items():
            words = name.upper().split("|")
            more = scripts(foreign) if name == "eval" else ()
            tried = [(*words, *each) for each in argument_lists(arity, len(words), foreign)]
            tried += [(*words, *each) for each in more]
            in_scripts = [("EVAL", "return redis.pcall(unpack(ARGV))", 0, *each) for each in tried]
            replies = replies_to(connection, tried + in_scripts)
            if not all(map(is_refusal, replies[: len(tried)])):
                permitted.add(words[0].lower())
            leaks += [
                (command, reply)
                for command, reply in zip(tried + in_scripts, replies, strict=True)
                if any(secret in repr(reply) for secret in SECRETS)
            ]
        connection.disconnect()
        # The node must be able to stop without a password.
        redis.Redis("127.0.0.1", node.port, password=REQUIREPASS).config_set("requirepass", "")
    assert leaks == []
    line, _ = lines()
    assert permitted == {name.partition("|")[0] for name in allowed(line)}
    assert not permitted & GUARDED.keys()


def commands_of(node: Node) -> dict[str, int]:
    """Return the arity of each command and subcommand, except for `WITHOUT_LOGIN`."""
    found = {f"{name}|{each}": -1 for name in GUARDED for each in GUARDED[name].split()}
    found["client|setname"] = -1
    for name, arity, *details in node.ask("COMMAND"):
        found[name.lower()] = arity
        subcommands = details[7] if len(details) > 7 else []  # from Redis 7.0 on
        found |= {each[0].lower(): each[1] for each in subcommands}
    return {name: arity for name, arity in found.items() if name not in WITHOUT_LOGIN}


def fill_with_foreign_keys(node: Node) -> list[str]:
    """Write one key of each type, and return the names to send. One key is never named."""
    client = node.client()
    client.set(FOREIGN_KEY, FOREIGN_VALUE)
    client.set("session:string", FOREIGN_VALUE)
    client.hset("session:hash", FOREIGN_VALUE, FOREIGN_VALUE)
    client.rpush("session:list", FOREIGN_VALUE)
    client.zadd("session:zset", {FOREIGN_VALUE: 1})
    client.xadd("session:stream", {"field": FOREIGN_VALUE})
    return sorted(set(client.keys("*")) - {FOREIGN_KEY})


def argument_lists(arity: int, words: int, foreign: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield plausible arguments: keys of locks and others, numbers, patterns, or none."""
    least = max(abs(arity) - words, 0)
    for length in range(least, least + (4 if arity < 0 else 1)):
        for fillers in (
            *([key] for key in foreign),
            *([OWN, key] for key in foreign),
            # With these arguments, BLPOP and WAIT do not wait for long.
            *([OWN], ["*"], ["0"], ["1"], [OWN, "*"], [OWN, "-", "+"], [OWN, "-1"], [OWN, "0.01"]),
            *(["1", key] for key in foreign),
            *(["0", key] for key in foreign),
            *([section] for section in ("requirepass", "masterauth", "all", "everything")),
        ):
            yield tuple((fillers * (length + 1))[:length])


def scripts(foreign: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield arguments of EVAL."""
    for count, keys in ((0, ()), (1, foreign[:1])):
        for call in (
            "'CONFIG', 'GET', '*'",
            "'ACL', 'LIST'",
            "'KEYS', '*'",
            *(f"'{read}', '{key}'" for key in foreign for read in ("GET", "HGETALL", "DUMP")),
        ):
            yield f"return redis.pcall({call})", count, *keys


def replies_to(connection: redis.Connection, commands: list[tuple[Any, ...]]) -> list[Any]:
    connection.send_packed_command(connection.pack_commands(commands))
    return [read_reply(connection) for _ in commands]


def read_reply(connection: redis.Connection) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def is_refusal(reply: Any) -> bool:
    """Return whether the user may not run the command, or the server does not have or allow it."""
    return isinstance(reply, redis.ResponseError) and bool(
        isinstance(reply, redis.exceptions.NoPermissionError)
        or re.search("NOPERM|unknown (sub)?command|command not allowed", str(reply))
    )
