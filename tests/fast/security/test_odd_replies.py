"""A server that replies with nonsense is an unusable server: its cache alias counts as unreadable,
and callers get an error of redis-py or of locks."""

import asyncio

import pytest
from redis.exceptions import InvalidResponse, RedisError

from django_redislock import LockError

from .odd_server import odd_server


def bulk(text: str) -> bytes:
    data = text.encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


REPLIES = {
    "status": b"+OK\r\n",
    "number": b":1\r\n",
    "list": b"*2\r\n:1\r\n$1\r\nx\r\n",
    "no JSON": bulk("some text"),
    "deep JSON": bulk("[" * 100_000),
    "a huge number": bulk("9" * 10_000),
    "wrong members": bulk('["x", [[1, 2, 3]], null, {}]'),
    "nothing in it": bulk("[null, null, null, null]"),
    "names": bulk('["0", 1, [[5, "x"], ["a"]]]'),
    "a redirect to nowhere": b"-MOVED x\r\n",
    "no number": b":abc\r\n",
    "deep lists": b"*1\r\n" * 5000,
}


def renew(manager) -> None:
    lock = manager.lock("x", auto_renewal=False)
    assert lock.acquire(blocking=False)
    lock.extend(5)


CALLS = {
    "get": lambda manager: manager.get("x"),
    "active": lambda manager: list(manager.active()),
    "page": lambda manager: manager.page("*x*"),
    "history": lambda manager: manager.history(),
    "rates": lambda manager: manager.rates(),
    "force_release": lambda manager: manager.force_release("x"),
    "acquire and extend": renew,
}


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.filterwarnings("ignore:Lock .* was not released:ResourceWarning")
def test_each_call_returns_or_raises_an_error_that_callers_expect(alias_on, reply) -> None:
    with odd_server(REPLIES[reply]) as port:
        evil = alias_on(f"redis://127.0.0.1:{port}/0", protocol=2)
        for name, call in CALLS.items():
            try:
                call(evil)
            except (RedisError, LockError):
                pass
            except BaseException as error:
                raise AssertionError(f"{name} raised {error!r}") from error


def test_a_greeting_that_redis_py_cannot_parse_is_an_error(alias_on) -> None:
    with odd_server(b"", other=REPLIES["no number"]) as port:
        evil = alias_on(f"redis://127.0.0.1:{port}/0", protocol=2)
        with pytest.raises(InvalidResponse, match="cannot parse"):
            asyncio.run(evil.acount())
