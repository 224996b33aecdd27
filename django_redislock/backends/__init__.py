"""Find the server that stores the locks of a cache alias, and how to connect to it."""

from .client_factory import supports_locks, unsupported_message, uses_custom_client
from .cluster import SlotOwner
from .endpoints import Endpoint
from .servers import AsyncClient, Client, ClientServer, Server, servers

__all__ = [
    "AsyncClient",
    "Client",
    "ClientServer",
    "Endpoint",
    "Server",
    "SlotOwner",
    "servers",
    "supports_locks",
    "unsupported_message",
    "uses_custom_client",
]
