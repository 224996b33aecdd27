"""Real servers for tests: single nodes of several makes, Sentinels, a Cluster.

All listen on 127.0.0.1 alone, keep their data in temporary folders, and die with the process
that started them, however that dies. A folder that a killed process leaves is named
``redislock-…`` and holds nothing worth keeping.

>>> with Node("redis-7.0", maxmemory="100mb") as node:
...     node.client().ping()
"""

from tests.programs import Missing

from .certificates import Certificates
from .cluster import Cluster
from .makes import MAKES
from .node import Node
from .sentinels import Sentinels

__all__ = ["MAKES", "Certificates", "Cluster", "Missing", "Node", "Sentinels"]
