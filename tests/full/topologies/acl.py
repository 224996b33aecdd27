"""The user with the least rights, as the docs have it to copy."""

import re

from tests.servers import Node
from tests.tools import ROOT

PAGE = ROOT / "docs" / "reference" / "redis.md"
PASSWORD = "of-the-tests"


def lines() -> tuple[str, str]:
    """The line of the page that makes the user, and the one that adds what a Cluster needs."""
    first, second = re.findall(r"^ACL SETUSER .+$", PAGE.read_text(), re.MULTILINE)
    return first, second


def make_user(*nodes: Node, of_cluster: bool = False) -> dict[str, str]:
    """Make the user on all nodes; gives the options of a client that is it."""
    for line in lines() if of_cluster else lines()[:1]:
        for node in nodes:
            node.ask(*line.replace(">password", f">{PASSWORD}").split())
    return {"username": "locks", "password": PASSWORD}
