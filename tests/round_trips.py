"""Count round trips at redis-py's connections, which no request of sync code can bypass."""

from threading import get_ident
from typing import Any

import pytest
import redis


class RoundTrips:
    """Count the requests in the block. With `of_this_thread`, those of other threads do not
    count."""

    def __init__(self, *, of_this_thread: bool = False) -> None:
        self.count = 0
        self._thread = get_ident() if of_this_thread else None
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> "RoundTrips":
        send = redis.Connection.send_packed_command

        def counted(connection: redis.Connection, *args: Any, **options: Any) -> None:
            self.count += self._thread in (None, get_ident())
            send(connection, *args, **options)

        self._patch.setattr(redis.Connection, "send_packed_command", counted)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
