"""A clock of a process's own goes on from where it is set."""

import time

from .clock import Clock
from .node import Node


def test_a_server_goes_by_it_and_nobody_else(tmp_path):
    clock = Clock(tmp_path / "clock")
    with Node(environment=clock.environment) as node:
        assert abs(int(node.ask("TIME")[0]) - time.time()) < 60
        clock.move(3600)
        assert abs(int(node.ask("TIME")[0]) - time.time() - 3600) < 60
        clock.move(-7200)
        assert abs(int(node.ask("TIME")[0]) - time.time() + 3600) < 60
