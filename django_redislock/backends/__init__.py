"""From an alias of ``CACHES`` to the server, or servers, that keep its locks."""

from .cluster import Nodes
from .servers import AsyncClient, Client, GivenServer, Server, fits, server, unfit

__all__ = ["AsyncClient", "Client", "GivenServer", "Nodes", "Server", "fits", "server", "unfit"]
