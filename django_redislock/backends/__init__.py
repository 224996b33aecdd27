"""Find the server, or the servers, that store the locks of a cache alias."""

from .client_factory import supports_locks, unsupported_message
from .cluster import Nodes
from .servers import AsyncClient, Client, ClientServer, Server, servers

__all__ = [
    "AsyncClient",
    "Client",
    "ClientServer",
    "Nodes",
    "Server",
    "servers",
    "supports_locks",
    "unsupported_message",
]
