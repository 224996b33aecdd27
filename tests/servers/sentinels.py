"""A master, its replicas, and three Sentinels that watch them: `Sentinels`."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import redis

from .node import Node, Running
from .processes import wait_for

FAILOVER_TIMEOUT = 3000  # milliseconds; a failed failover is repeated after twice this time

HURRY = (
    *("PING-PERIOD", 300, "PUBLISH-PERIOD", 300, "INFO-PERIOD", 300),
    *("TILT-PERIOD", 1000),
)
"""In milliseconds. A Sentinel reconnects once in a ping period. It waits four publish periods
before a returned master becomes a replica, and one tilt period after a delay of two seconds.

A Sentinel asks each replica of a failed master for its state once a second. Only a replica that
has replied within five ping periods can become the master, so these must be longer."""


class Sentinel(Node):
    """One Sentinel process."""

    arguments = ("--sentinel",)

    def __init__(self) -> None:
        super().__init__()
        self.id = secrets.token_hex(20)

    def start(self) -> Self:
        super().start()
        self.ask("SENTINEL", "DEBUG", *HURRY)
        return self


class Sentinels(Running):
    """A master with `replicas` replicas, and three Sentinels that call it `name`.

    `through` returns the address by which replicas, Sentinels and clients reach a node. It can be
    the address of a proxy. After `down_after` milliseconds without a reply, a Sentinel considers a
    node to be down. `config` is the configuration of each node.
    """

    def __init__(
        self,
        *,
        down_after: int,
        replicas: int = 1,
        name: str = "locks",
        through: Callable[[Node], tuple[str, int]] = lambda node: node.address,
        **config: Any,
    ) -> None:
        self.name = name
        self.nodes = [Node(**config) for _ in range(replicas + 1)]
        self.sentinels = [Sentinel() for _ in range(3)]
        self.down_after = down_after
        self._through = through
        self._reached: dict[tuple[str, int], Node] = {}

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses of the Sentinels."""
        return [sentinel.address for sentinel in self.sentinels]

    @property
    def master(self) -> Node:
        """The current master, according to the first Sentinel that responds."""
        for address in self._master_addresses():
            return self._reached[address]
        raise AssertionError(f"no Sentinel tells the master of {self.name!r}")

    def start(self) -> Self:
        first, *others = self.nodes
        for node in self.nodes:
            host, port = self._through(node.start())
            self._reached[host, port] = node
            node.configure(replica_announce_ip=host, replica_announce_port=port)
        [master] = [address for address, node in self._reached.items() if node is first]
        for node in others:
            node.ask("REPLICAOF", *master)
            node.ask("CONFIG", "REWRITE")
        wait_for(lambda: len(_online(first)) == len(others))
        self._watch(master)
        return self

    def wait_for_new_master(self, old: Node) -> Node:
        """Wait until all live Sentinels have another master that accepts writes. Return it."""
        with self._state_in_errors(f"a new master in place of {old.port}"):
            return wait_for(lambda: self._new_master(old))

    def wait_in_sync(self) -> None:
        """Wait until all replicas are there and have what was written before this call."""
        with self._state_in_errors("all replicas in sync"):
            written = wait_for(lambda: int(self.master.info("replication")["master_repl_offset"]))
            wait_for(lambda: self._have_all(written))

    def close(self) -> None:
        for each in (*self.sentinels, *self.nodes):
            each.close()

    @contextmanager
    def _state_in_errors(self, awaited: str) -> Iterator[None]:
        """Say in the error of a wait what was awaited, and what each server says of itself."""
        try:
            yield
        except AssertionError as error:
            servers = "; ".join(map(self._state_of, (*self.nodes, *self.sentinels)))
            raise AssertionError(f"{error}, waiting for {awaited}. {servers}") from None

    def _state_of(self, server: Node) -> str:
        if not server.is_running:
            return f"{server.port} has ended"
        try:
            if isinstance(server, Sentinel):
                state = server.ask("SENTINEL", "MASTER", self.name)
                known = dict(zip(state[::2], state[1::2], strict=True))
                said = " ".join(f"{name}={known[name]}" for name in ("ip", "port", "flags"))
            else:
                [announced] = [each[1] for each, node in self._reached.items() if node is server]
                said = f"announced as {announced} has the role {server.ask('ROLE')}"
        except redis.RedisError as error:
            said = f"does not answer: {error}"
        return f"{server.port} {said}"

    def _watch(self, master: tuple[str, int]) -> None:
        """Start the Sentinels. They would find the others within seconds, but know them from the
        start."""
        replicas = [address for address in self._reached if address != master]
        name = self.name
        for sentinel in self.sentinels:
            others = [other for other in self.sentinels if other is not sentinel]
            sentinel.config["sentinel"] = (
                f"myid {sentinel.id}",
                "monitor {} {} {} 2".format(name, *master),
                f"down-after-milliseconds {name} {self.down_after}",
                f"failover-timeout {name} {FAILOVER_TIMEOUT}",
                *("known-replica {} {} {}".format(name, *each) for each in replicas),
                *(
                    "known-sentinel {} {} {} {}".format(name, *each.address, each.id)
                    for each in others
                ),
            )
            sentinel.start()
        wait_for(self._all_sentinels_know_all)

    def _all_sentinels_know_all(self) -> bool:
        answers = self._answers(self.sentinels, "SENTINEL", "MASTER", self.name)
        return all(
            state["flags"] == "master"
            and int(state["num-slaves"]) == len(self.nodes) - 1
            and int(state["num-other-sentinels"]) == len(self.sentinels) - 1
            for state in (dict(zip(each[::2], each[1::2], strict=True)) for each in answers)
        )

    def _master_addresses(self) -> Iterator[tuple[str, int]]:
        command = "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name
        for host, port in self._answers(self.sentinels, *command):
            yield host, int(port)

    def _new_master(self, old: Node) -> Node | None:
        named = {self._reached[address] for address in self._master_addresses()}
        if len(named) != 1 or old in named:
            return None
        [new] = named
        return new if new.ask("ROLE")[0] == "master" else None

    def _have_all(self, written: int) -> bool:
        online = _online(self.master)
        return len(online) == len(self.nodes) - 1 and all(each >= written for each in online)


def _online(master: Node) -> list[int]:
    """Return the replication offset of each connected replica."""
    info = master.info("replication")
    replicas = [info[f"slave{n}"] for n in range(int(info["connected_slaves"]))]
    states = [dict(pair.split("=") for pair in replica.split(",")) for replica in replicas]
    return [int(each["offset"]) for each in states if each["state"] == "online"]
