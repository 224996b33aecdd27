from contextlib import closing

import pytest
import redis
from redis.crc import key_slot

from . import MAKES, Cluster
from .needs import needs
from .waiting import wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("servers-cluster")]


@pytest.fixture(scope="module")
def cluster():
    needs("valkey-9.1")
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with closing(cluster.client()) as client:
        yield client
    cluster.wait_in_sync()
    with closing(cluster.client()) as client:  # another, as the masters may be others
        client.flushall()


def slot_of(key):
    return key_slot(key.encode())


def another(cluster, slot):
    owner = cluster.owner(slot)
    masters = [node for node in cluster.nodes if node.ask("ROLE")[0] == "master"]
    return next(node for node in masters if node is not owner)


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKES)
def test_a_cluster_of_each_make_serves_all_slots(make):
    needs(make)
    with Cluster(make, replicas=0) as cluster:
        client = cluster.client()
        for number in range(100):
            client.set(f"key{number}", number)
        assert [int(node.ask("DBSIZE")) > 0 for node in cluster.nodes] == [True] * 3


@pytest.mark.parametrize("way", ["move_slot", "move_slot_atomically"])
def test_a_slot_moves_with_its_keys_and_back(cluster, client, way):
    slot = slot_of("{bucket}")
    for number in range(250):
        client.set(f"{{bucket}}{number}", number)
    for _ in range(2):
        old, new = cluster.owner(slot), another(cluster, slot)
        getattr(cluster, way)(slot, new)
        assert cluster.owner(slot) is new
        assert new.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == 250
        assert client.get("{bucket}7") == "7"
        with pytest.raises(redis.ResponseError, match=f"{slot} 127.0.0.1:{new.port}"):
            old.ask("GET", "{bucket}7")


def test_a_slot_on_its_way_sends_to_the_new_owner_what_is_not_there(cluster, client):
    slot = slot_of("{bucket}")
    client.set("{bucket}old", 1)
    old, new = cluster.owner(slot), another(cluster, slot)
    with cluster.moving(slot, new):
        assert old.ask("GET", "{bucket}old") == "1"
        with pytest.raises(redis.ResponseError, match=f"{slot} 127.0.0.1:{new.port}"):
            old.ask("GET", "{bucket}new")
        client.set("{bucket}new", 2)
    assert new.ask("GET", "{bucket}old") == "1"
    assert new.ask("GET", "{bucket}new") == "2"


def test_a_replica_takes_over_by_order(cluster, client):
    client.set("key", "value")
    old = cluster.owner(slot_of("key"))
    new = cluster.failover(slot_of("key"))
    assert new is not old
    assert new.ask("GET", "key") == "value"
    assert cluster.replicas_of(new) == [old]


@pytest.mark.slow
def test_a_replica_takes_over_from_a_killed_master(cluster, client):
    client.set("key", "value")
    cluster.wait_in_sync()
    slot = slot_of("key")
    old = cluster.owner(slot)
    old.kill()
    new = cluster.wait_for_new_owner(slot, old)
    assert new.ask("GET", "key") == "value"
    old.start()
    wait_for(lambda: old.ask("ROLE")[0] == "slave")
    cluster.wait_in_sync()
