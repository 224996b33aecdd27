"""A Cluster of masters and replicas, whose slots can be moved: `Cluster`."""

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import redis

from .node import Node, Running
from .processes import wait_for

SLOTS = 16384

NODE_TIMEOUT = 1000  # milliseconds without a reply after which a node counts as down


class Cluster(Running):
    """`masters` masters that share the slots evenly, each with `replicas` replicas.

    `config` is the configuration of each node. `nodes` has the first masters, then their replicas.
    """

    def __init__(
        self, make: str = "valkey-9.1", *, masters: int = 3, replicas: int = 1, **config: Any
    ) -> None:
        fixed = {
            "cluster_enabled": "yes",
            "cluster_config_file": "nodes.conf",
            "cluster_node_timeout": NODE_TIMEOUT,
        }
        self.masters = masters
        self.nodes = [Node(make, **fixed | config) for _ in range(masters * (1 + replicas))]
        self._clients: list[redis.RedisCluster] = []

    @property
    def startup(self) -> list[tuple[str, int]]:
        """Addresses to begin with."""
        return [node.address for node in self.nodes]

    def client(self, **options: Any) -> redis.RedisCluster:
        """A plain client of redis-py, closed with the cluster."""
        nodes = [redis.cluster.ClusterNode(*address) for address in self.startup]
        client = redis.RedisCluster(
            startup_nodes=nodes, **{"decode_responses": True, "protocol": 2} | options
        )
        self._clients.append(client)
        return client

    def id(self, node: Node) -> str:
        return str(node.ask("CLUSTER", "MYID"))

    def owner(self, slot: int) -> Node:
        """Return the master that serves the slot, according to a live node."""
        return next(nodes[0] for first, last, nodes in self._slots() if first <= slot <= last)

    def owners(self) -> list[Node]:
        """All masters that serve slots."""
        return [*dict.fromkeys(nodes[0] for _, _, nodes in self._slots())]

    def replicas_of(self, master: Node) -> list[Node]:
        for _, _, (first, *others) in self._slots():
            if first is master:
                return others
        raise AssertionError(f"{master} serves no slot")

    def move_slot(self, slot: int, to: Node) -> None:
        """Move a slot with its keys, as ``redis-cli --cluster reshard`` does."""
        with self.moving(slot, to):
            pass

    @contextlib.contextmanager
    def moving(self, slot: int, to: Node) -> Iterator[None]:
        """Begin to move a slot. The move ends with the block.

        In the block, the old owner serves the keys that it still has. The new owner serves the
        other keys to clients that send ASKING.
        """
        source = self.owner(slot)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id(to))
        try:
            yield
        finally:
            _move_keys(slot, source, to)
            self._assign_owner(slot, to, source)

    def move_slot_atomically(self, slot: int, to: Node) -> None:
        """Move a slot as Valkey does since 9.0, by itself and all at once."""
        source = self.owner(slot)
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id(to))
        wait_for(lambda: "in-progress" not in source.ask("CLUSTER", "GETSLOTMIGRATIONS")[0])
        self._wait_for_owner(slot, to)

    def remove(self, master: Node, heir: Node) -> None:
        """Take a master without replicas out, as ``redis-cli --cluster del-node`` does: another
        gets its slots, and it runs on alone."""
        gone = self.id(master)
        for first, last, nodes in list(self._slots()):
            if nodes[0] is master:
                slots = ["SLOTSRANGE", first, last, "NODE", self.id(heir)]
                master.ask("CLUSTER", "MIGRATESLOTS", *slots)
                self._wait_for_owner(first, heir)
        for node in self._live():
            if node is not master:
                node.ask("CLUSTER", "FORGET", gone)
        master.ask("CLUSTER", "RESET", "SOFT")

    def failover(self, slot: int) -> Node:
        """Let a replica take over from the slot's owner, and return the new owner."""
        old = self.owner(slot)
        self.wait_in_sync()
        self.replicas_of(old)[0].ask("CLUSTER", "FAILOVER")
        return self.wait_for_new_owner(slot, old)

    def wait_for_new_owner(self, slot: int, old: Node) -> Node:
        """Wait until all live nodes agree on another owner of the slot, and return it."""
        wait_for(lambda: self._all_agree() and self.owner(slot) is not old)
        return self.owner(slot)

    def wait_in_sync(self) -> None:
        """Wait until live nodes serve all slots and know each other, and live replicas have what
        was written before this call."""
        wait_for(self._all_agree)
        wait_for(self._all_list_all)
        written = wait_for(self._written)
        wait_for(lambda: self._have_all(written))

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        masters, others = self.nodes[: self.masters], self.nodes[self.masters :]
        for number, master in enumerate(masters):
            first, end = (SLOTS * n // len(masters) for n in (number, number + 1))
            master.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            master.ask("CLUSTER", "ADDSLOTS", *range(first, end))
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", *self.nodes[0].address)
        wait_for(self._all_know_all)
        for number, node in enumerate(others):
            node.ask("CLUSTER", "REPLICATE", self.id(masters[number % len(masters)]))
        self.wait_in_sync()
        return self

    def close(self) -> None:
        while self._clients:
            self._clients.pop().close()
        for node in self.nodes:
            node.close()

    def _assign_owner(self, slot: int, to: Node, source: Node) -> None:
        # The new owner first. Otherwise both would redirect clients. It refuses if its replica
        # does not confirm within two seconds. Then the command is sent again.
        others = [node for node in self._live() if node not in (to, source)]
        wait_for(lambda: self._assign(to, slot, to))
        for node in (source, *others):
            self._assign(node, slot, to)  # or it learns this from other nodes, like a replica
        self._wait_for_owner(slot, to)

    def _assign(self, node: Node, slot: int, owner: Node) -> bool:
        with contextlib.suppress(redis.ResponseError, redis.TimeoutError):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", self.id(owner))
            return True
        return False

    def _wait_for_owner(self, slot: int, owner: Node) -> None:
        wait_for(lambda: self._all_agree() and self.owner(slot) is owner)

    def _slots(self) -> list[tuple[int, int, list[Node]]]:
        for slots in self._reports("SLOTS"):
            ports = {node.port: node for node in self.nodes}
            return [(first, last, [ports[each[1]] for each in at]) for first, last, *at in slots]
        raise AssertionError("no node of the cluster answers")

    def _live(self) -> list[Node]:
        return [node for node in self.nodes if node.is_running]

    def _reports(self, what: str) -> Iterator[Any]:
        return self._answers(self._live(), "CLUSTER", what)

    def _all_know_all(self) -> bool:
        # A node in a handshake is listed under a temporary id that no other command accepts.
        known = [
            sum("handshake" not in line for line in nodes.splitlines())
            for nodes in self._reports("NODES")
        ]
        return set(known) == {len(self.nodes)}

    def _all_agree(self) -> bool:
        owners = {
            tuple(sorted((first, last, master[1]) for first, last, master, *_ in slots))
            for slots in self._reports("SLOTS")
        }
        states = ["cluster_state:ok" in info for info in self._reports("INFO")]
        return len(owners) == 1 and all(states)

    def _all_list_all(self) -> bool:
        live = {node.port for node in self._live()}
        return all(
            {each[1] for _, _, *at in slots for each in at} == live
            for slots in self._reports("SLOTS")
        )

    def _written(self) -> dict[str, int]:
        """How far each live master is, by its port."""
        return {
            str(node.port): int(info["master_repl_offset"])
            for node in self._live()
            if (info := node.info("replication"))["role"] == "master"
        }

    def _have_all(self, written: dict[str, int]) -> bool:
        return all(
            info["master_link_status"] == "up"
            and int(info["slave_repl_offset"]) >= written.get(info["master_port"], 0)
            for node in self._live()
            if (info := node.info("replication"))["role"] == "slave"
        )


def _move_keys(slot: int, source: Node, to: Node) -> None:
    while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.ask("MIGRATE", *to.address, "", 0, 5000, "KEYS", *keys)
