from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from django.test import override_settings

from tests.tools import wait_for_none_left

from .topologies import TOPOLOGIES, Topology


@pytest.fixture(scope="session")
def started() -> Iterator[Callable[[str], Topology]]:
    """Start a topology once. In random order, a fixture with parameters would start it again."""
    running: dict[str, Topology] = {}
    with ExitStack() as stack:

        def start(name: str) -> Topology:
            if name not in running:
                running[name] = stack.enter_context(TOPOLOGIES[name]())
            return running[name]

        yield start


# One test process runs all tests of a topology, so that its servers start once.
@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(f"topology-{name}"))
        for name in TOPOLOGIES
    ]
)
def topology(request: pytest.FixtureRequest, started) -> Iterator[Topology]:
    """The servers with the locks of this process. The test must leave no key behind."""
    topology = started(request.param)
    with override_settings(**topology.settings):
        yield topology
    observers = [node.client(db=topology.database) for node in topology.masters()]
    left = [key for client in observers for key in wait_for_none_left(client)]
    for client in observers:
        client.flushall()
        client.close()
    assert not left, f"Left behind: {', '.join(left)}"
