"""The proxy does to connections what it is told, and nothing else."""

import math
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redislock.lua import ACQUIRE, RELEASE
from tests.servers import Node
from tests.tools import wait_until

from .proxy import Proxy, named, runs, split


@pytest.fixture(scope="module")
def node():
    with Node() as node:
        yield node


@pytest.fixture
def proxy(node):
    node.ask("FLUSHALL")
    with Proxy(*node.address) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    once = Retry(NoBackoff(), 0)
    with redis.Redis.from_url(
        proxy.url, decode_responses=True, retry=once, socket_timeout=10
    ) as client:
        yield client


def test_all_passes_as_it_is(client):
    long = "x" * 300_000
    client.set("long", long)
    assert client.get("long") == long
    with client.pipeline(transaction=False) as pipeline:
        for number in range(500):
            pipeline.set(f"key {number}", number)
        assert pipeline.execute() == [True] * 500


def test_a_lost_reply_is_one_of_a_command_that_was_done(client, proxy, node):
    dropped = proxy.drop_reply(named("INCRBY"), times=2)
    assert client.ping()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.incr("counter")
    assert dropped.is_done()
    assert client.incr("counter") == 3
    assert node.ask("GET", "counter") == "3"


def test_a_lost_request_is_one_of_a_command_that_was_not_done(client, proxy):
    dropped = proxy.drop_reply(named("INCRBY"), before=True)
    with pytest.raises(redis.ConnectionError):
        client.incr("counter")
    assert dropped.is_done()
    assert client.incr("counter") == 1


def test_the_reply_to_a_blocking_command_is_lost_when_it_comes(client, proxy, node):
    dropped = proxy.drop_reply(named("BLPOP"))
    node.ask("RPUSH", "list", "a")
    with pytest.raises(redis.ConnectionError):
        client.blpop("list", 5)
    assert dropped.is_done()
    assert node.ask("LLEN", "list") == 0


def test_a_reply_that_nobody_waited_for_was_not_lost(client, proxy, node):
    dropped = proxy.drop_reply(named("BLPOP"))
    impatient = redis.Redis.from_url(proxy.url, socket_timeout=0.2)
    with impatient, pytest.raises(redis.TimeoutError):
        impatient.blpop("list", 5)
    wait_until(lambda: proxy.connections == 0)
    assert not dropped.is_done()
    node.ask("RPUSH", "list", "a")
    with pytest.raises(redis.ConnectionError):
        client.blpop("list", 5)
    assert dropped.is_done()


def test_a_delayed_reply_is_one_of_a_command_that_was_done_and_no_other_is(client, proxy, node):
    client.ping()
    delayed = proxy.delay_reply(named("INCRBY"), 0.3, times=2)
    began = time.monotonic()
    assert client.incr("counter") == 1
    assert time.monotonic() - began >= 0.3
    assert not delayed.is_done()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.incr, "counter")
        wait_until(delayed.has_begun, interval=0.001)
        assert node.ask("GET", "counter") == "2"
        assert not answer.done()
        assert answer.result() == 2
    assert delayed.is_done()
    assert client.incr("counter") == 3
    assert (delayed.taken, delayed.done) == (2, 2)


def test_a_delayed_reply_that_nobody_waited_for_does_not_count(client, proxy):
    delayed = proxy.delay_reply(named("PING"), 0.5)
    impatient = redis.Redis.from_url(proxy.url, socket_timeout=0.1, retry=Retry(NoBackoff(), 0))
    with impatient, pytest.raises(redis.TimeoutError):
        impatient.ping()
    wait_until(lambda: proxy.connections == 0)
    assert not delayed.has_begun()
    assert client.ping()
    assert delayed.is_done()


def test_a_script_is_known_by_its_digest_and_by_its_source():
    acquires = runs(ACQUIRE)
    assert acquires([b"EVALSHA", ACQUIRE.sha.encode(), b"1", b"key"])
    assert acquires([b"EVAL", ACQUIRE.source.encode(), b"1", b"key"])
    assert not acquires([b"EVALSHA", RELEASE.sha.encode(), b"1", b"key"])
    assert not acquires([b"PING"])


def test_connections_are_cut_and_can_be_made_anew(client, proxy):
    before = client.client_id()
    assert proxy.connections == 1
    assert proxy.cut() == 1
    assert client.client_id() != before
    assert proxy.connections == 1


def test_no_connection_is_made_while_they_are_refused(client, proxy):
    client.ping()
    proxy.refuse()
    assert client.ping()  # those that there are stay
    proxy.cut()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.ping()
    proxy.accept()
    assert client.ping()


def test_nothing_passes_while_it_is_frozen_and_all_of_it_later(client, proxy, node):
    with client.pubsub() as own:  # a connection of its own
        own.subscribe("told")
        assert own.get_message(timeout=10)["type"] == "subscribe"
        proxy.freeze()
        node.ask("PUBLISH", "told", "something")
        own.subscribe("more")
        assert own.get_message(timeout=0.2) is None
        assert node.ask("PUBSUB", "NUMSUB", "more") == ["more", 0]
        proxy.thaw()
        assert own.get_message(timeout=10)["data"] == "something"
        assert own.get_message(timeout=10)["channel"] == "more"


def test_what_passes_is_delayed_in_each_direction(client, proxy):
    client.ping()
    proxy.delay(0.2)
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began >= 0.4


def test_a_replica_alone_lags_behind(client, proxy, node):
    with Node(replicaof=f"127.0.0.1 {proxy.port}") as replica:
        wait_until(lambda: replica.info("replication")["master_link_status"] == "up")
        proxy.lag(math.inf)
        assert client.set("key", "value")
        assert client.wait(1, 200) == 0
        assert replica.ask("GET", "key") is None
        proxy.lag(0)
        wait_until(lambda: replica.ask("GET", "key") == "value")


def test_a_server_that_is_away_is_away_behind_the_proxy(client, proxy, node):
    assert client.ping()
    node.kill()
    try:
        wait_until(lambda: proxy.connections == 0)
        with pytest.raises(redis.ConnectionError):
            client.ping()
    finally:
        node.start()
    assert client.ping()


def test_commands_are_found_wherever_the_network_parts_them():
    whole = b"*2\r\n$4\r\nECHO\r\n$6\r\n*1\r\n$1\r\n*1\r\n$4\r\nPING\r\n"
    expected = [[b"ECHO", b"*1\r\n$1"], [b"PING"]]
    for cut in range(len(whole)):
        first, rest = split(whole[:cut])
        second, rest = split(rest + whole[cut:])
        assert (first + second, rest) == (expected, b"")
