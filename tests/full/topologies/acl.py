"""The user with the fewest rights, from the docs."""

import re

from tests.servers import Node
from tests.tools import ROOT

PAGE = ROOT / "docs" / "reference" / "redis.md"
PASSWORD = "of-the-tests"


def lines() -> tuple[str, str]:
    """Return the page's line that creates the user, and the line with the Cluster's rights."""
    first, second = re.findall(r"^ACL SETUSER .+$", PAGE.read_text(), re.MULTILINE)
    return first, second


def make_user(*nodes: Node, of_cluster: bool = False) -> dict[str, str]:
    """Create the user on all nodes, and return the options of its client."""
    for line in lines() if of_cluster else lines()[:1]:
        for node in nodes:
            node.ask(*line.replace(">password", f">{PASSWORD}").split())
    return {"username": "locks", "password": PASSWORD}
