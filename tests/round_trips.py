"""Count round trips at the sockets of this process, which no request can bypass."""

import socket
from threading import Lock, get_ident
from typing import Any
from weakref import WeakSet

SENDS = ("send", "sendall", "sendmsg")
RECEIVES = ("recv", "recv_into")


class RoundTrips:
    """Count the first send of each request in the block.

    A request that is sent in pieces counts once. With `of_this_thread`, the requests of other
    threads do not count.
    ``socket.socket`` is patched in the block, so do not nest blocks.
    """

    def __init__(self, *, of_this_thread: bool = False) -> None:
        self.count = 0
        self._thread = get_ident() if of_this_thread else None
        self._waiting: WeakSet[socket.socket] = WeakSet()
        self._counting = Lock()

    def __enter__(self) -> "RoundTrips":
        for name in SENDS:
            setattr(socket.socket, name, self._watched(name, before=self._sends))
        for name in RECEIVES:
            setattr(socket.socket, name, self._watched(name, after=self._receives))
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*SENDS, *RECEIVES):
            delattr(socket.socket, name)  # what it inherits shows again

    def _watched(self, name: str, before: Any = None, after: Any = None) -> Any:
        inherited = getattr(socket.socket, name)

        def watched(sock: socket.socket, *args: Any, **options: Any) -> Any:
            if sock.family not in (
                socket.AF_INET,
                socket.AF_INET6,
            ):  # a loop wakes itself by others
                return inherited(sock, *args, **options)
            if before:
                before(sock)
            try:
                return inherited(sock, *args, **options)
            finally:
                if after:
                    after(sock)

        return watched

    def _sends(self, sock: socket.socket) -> None:
        with self._counting:
            if self._thread not in (None, get_ident()) or sock in self._waiting:
                return
            self.count += 1
            self._waiting.add(sock)

    def _receives(self, sock: socket.socket) -> None:
        with self._counting:
            self._waiting.discard(sock)
