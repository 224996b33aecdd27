"""The master is cut off from its replicas and the Sentinels, and some clients with it."""

import math
from functools import partial
from typing import Any

from tests.servers import Node

from .. import outcome
from ..crew import CORE, Client, Crew
from ..proxy import Proxy
from ..scenario import EXCLUSION, ORDER, WAKING, Run, Setting, scenario
from ..users import Users, replacing
from .sentinel import ERRORS, LANES, Watched

WITH_THE_MASTER = "keeper", "waiting first", "first"
"""Of the users, those that are cut off together with it."""

LASTS = 1.0, 4.0  # seconds for which there are two masters

GUARDED = {"min_replicas_to_write": 1, "min_replicas_max_lag": 2}
"""The server's own guard. Replicas tell it once a second how far they are."""

REFUSED = "ResponseError"  # what it then answers: ``NOREPLICAS``


class Parted(Watched):
    """Each server is reached by one proxy from the side of most, and by another from that of the
    master, which itself is reached directly from there."""

    def __init__(self, setting: Setting, **config: Any) -> None:
        super().__init__(setting, **config)
        there = (*self.nodes, *self.sentinels)
        self._across: dict[Node, Proxy] = {node: setting.proxy(node) for node in there}

    def client_with(self, master: Node, run: Run, crew: Crew, who: str) -> Client:
        if who not in WITH_THE_MASTER:
            return self.client(run, crew, who)
        client = run.client_of(crew, who, {})
        others = [node for node in self.proxies if node is not master]
        ways = [(self.proxies[node].address, self._across[node].address) for node in others]
        client.ask(
            "tests.faults.reach:by_sentinel",
            name=self.name,
            sentinels=[self._across[each].address for each in self.sentinels],
            ways=[*ways, (self.proxies[master].address, master.address)],
            through=CORE,
        )
        return client

    def part(self, master: Node) -> list[Proxy]:
        """Let nothing pass between the sides; tells what is to be thawed."""
        parted = [
            self.proxies[master],
            *(proxy for node, proxy in self._across.items() if node is not master),
        ]
        for proxy in parted:
            proxy.freeze()
        return parted


FACTS = {"runs": 12, "short": 1, "operations": 10, "may_fail": (EXCLUSION, ORDER, WAKING)}


@scenario(
    9,
    "Partition, the server's min-replicas-to-write 1",
    errors=(*ERRORS, REFUSED),
    args=GUARDED,
    **FACTS,
)
@scenario(9, "Partition, min_replicas=1", errors=ERRORS, args={"min_replicas": 1}, **FACTS)
@scenario(9, "Partition, the master on the smaller side", errors=ERRORS, **FACTS)
def partition(setting: Setting, min_replicas: int = 0, **config: Any) -> None:
    crew = setting.crew()

    def body(run: Run, there: Parted) -> None:
        there.wait_in_sync()
        old = there.master
        users = Users(run, lambda who: there.client_with(old, run, crew, who), min_replicas)
        users.live_through(partial(strike, run, there, old))

    outcome.each(setting, LANES, partial(Parted, setting, **config), body, min_replicas)


def strike(run: Run, there: Parted, old: Node) -> None:
    with replacing(run, "parted"):
        parted = there.part(old)
        with outcome.behind(run, math.inf, clients=WITH_THE_MASTER):
            there.wait_for_new_master(old)
            run.moment(LASTS[1], shortest=LASTS[0])
        for proxy in parted:
            proxy.thaw()
        there.wait_in_sync()
