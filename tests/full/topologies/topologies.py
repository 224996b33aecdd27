"""The servers of each topology, and the settings that store locks on them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from tests.servers import Certificates, Cluster, Node, Sentinels

from . import places
from .acl import make_user


@dataclass(frozen=True)
class Topology:
    """Running servers, and the place of locks on them."""

    place: str
    """A function of `places`."""

    arguments: dict[str, Any]
    """Its arguments."""

    masters: Callable[[], list[Node]]
    """The nodes that may keep the locks now."""

    database: int = 0

    cluster: Cluster | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return places.settings(self.place, self.arguments)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that give another process the same topology."""
        return places.environment(self.place, self.arguments)

    def observers(self) -> list[redis.Redis]:
        """Return a plain client for each node that stores locks."""
        return [node.client(db=self.database) for node in self.masters()]


Running = AbstractContextManager[Topology]

PATIENT = {"cluster_node_timeout": 10_000}
"""In milliseconds. Long enough that nodes on a busy machine do not count as down."""


def on(node: Node, place: str, database: int = 0, **arguments: Any) -> Topology:
    return Topology(place, arguments, lambda: [node], database)


@contextmanager
def single(place: str, make: str = "valkey-9.1", **options: Any) -> Iterator[Topology]:
    """One server, by TCP."""
    with Node(make) as node:
        scheme = "valkey" if place == "django_valkey" else "redis"
        yield on(node, place, url=f"{scheme}://127.0.0.1:{node.port}/0", **options)


@contextmanager
def unix(place: str) -> Iterator[Topology]:
    with Node(unix=True) as node:
        yield on(node, place, url=node.url)


@contextmanager
def tls(place: str, **options: Any) -> Iterator[Topology]:
    """One server that requires client certificates, which only Debian's Redis supports."""
    certificates = Certificates()
    with Node(tls=certificates, tls_auth_clients="yes") as node:
        yield on(node, place, url=node.url, **options, **certificates.shown)


@contextmanager
def sentinels(place: str, name: str) -> Iterator[Topology]:
    # django-redis shares pools by URL, so each topology has its own name.
    with Sentinels(name=name, down_after=PATIENT["cluster_node_timeout"]) as running:
        arguments = {"url": f"redis://{name}/0", "sentinels": running.addresses}
        yield Topology(place, arguments, lambda: [running.master])


@contextmanager
def cluster(make: str) -> Iterator[Topology]:
    with Cluster(make, **PATIENT) as running:
        arguments = {"startup": running.startup}
        yield Topology("cluster", arguments, running.owners, cluster=running)


@contextmanager
def shards() -> Iterator[Topology]:
    with Node() as one, Node() as two, Node() as three:
        nodes = [one, two, three]
        arguments = {
            "url": [node.url for node in nodes],
            "CLIENT_CLASS": "django_redis.client.ShardClient",
        }
        yield Topology("django_redis", arguments, lambda: nodes)


@contextmanager
def acl(place: str, make: str, **options: Any) -> Iterator[Topology]:
    """A user with the fewest rights, in a database other than the first."""
    with Node(make) as node:
        user = "{username}:{password}".format(**make_user(node))
        url = f"redis://{user}@127.0.0.1:{node.port}/1"
        yield on(node, place, database=1, url=url, **options)


@contextmanager
def cluster_acl(make: str) -> Iterator[Topology]:
    with Cluster(make, **PATIENT) as running:
        arguments = {"startup": running.startup} | make_user(*running.nodes, of_cluster=True)
        yield Topology("cluster", arguments, running.owners, cluster=running)
