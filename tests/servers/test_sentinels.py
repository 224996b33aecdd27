import pytest

from . import MAKES, Node, Sentinels
from .needs import needs
from .waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("make", MAKES)
def test_sentinels_make_a_replica_the_master_of_a_killed_one(make):
    needs(make)
    with Sentinels(make) as sentinels:
        old = sentinels.master
        assert old is sentinels.nodes[0]
        assert sentinels.replicas == sentinels.nodes[1:]
        old.client().set("key", "value")
        sentinels.wait_in_sync()
        old.kill()
        new = sentinels.wait_for_new_master(old)
        assert new.client().get("key") == "value"
        old.start()
        wait_for(lambda: old.ask("ROLE")[0] == "slave")
        sentinels.wait_in_sync()


def test_a_failover_by_order_needs_no_death():
    with Sentinels(replicas=2) as sentinels:
        old = sentinels.master
        new = sentinels.failover()
        assert new is not old
        assert sentinels.master is new
        new.client().set("key", "value")
        sentinels.wait_in_sync()
        assert {node.client().get("key") for node in sentinels.nodes} == {"value"}


def test_all_go_through_the_address_that_is_told():
    asked = []

    def through(node: Node) -> tuple[str, int]:
        asked.append(node)
        return "127.0.0.2", node.port

    with Sentinels(through=through, bind="127.0.0.1 127.0.0.2") as sentinels:
        assert asked == sentinels.nodes
        [replica] = sentinels.replicas
        assert replica.info("replication")["master_host"] == "127.0.0.2"
        assert sentinels.master is sentinels.nodes[0]
        assert sentinels.failover() is replica
