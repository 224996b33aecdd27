"""Count round trips at the sockets of this process, which no request can bypass."""

import socket
from threading import Lock, get_ident
from typing import Any
from weakref import WeakKeyDictionary

SENDS = ("send", "sendall", "sendmsg")
RECEIVES = ("recv", "recv_into")


class RoundTrips:
    """Count the first send of each request in the block.

    A request that is sent in pieces counts once. With `of_this_thread`, the requests of other
    threads do not count. ``socket.socket`` is patched in the block, so do not nest blocks.
    """

    def __init__(self, *, of_this_thread: bool = False) -> None:
        self.count = 0
        self._thread = get_ident() if of_this_thread else None
        self._asking: WeakKeyDictionary[socket.socket, bool] = WeakKeyDictionary()
        self._counting = Lock()

    def __enter__(self) -> "RoundTrips":
        for name in SENDS:
            setattr(socket.socket, name, self._watched(name, self._sends))
        for name in RECEIVES:
            setattr(socket.socket, name, self._watched(name, self._receives))
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*SENDS, *RECEIVES):
            delattr(socket.socket, name)  # what it inherits shows again

    def _watched(self, name: str, note: Any) -> Any:
        inherited = getattr(socket.socket, name)

        def watched(sock: socket.socket, *args: Any, **options: Any) -> Any:
            if sock.family in (socket.AF_INET, socket.AF_INET6):  # a loop wakes itself by others
                note(sock)
            return inherited(sock, *args, **options)

        return watched

    def _sends(self, sock: socket.socket) -> None:
        with self._counting:
            counts = self._thread in (None, get_ident())
            self.count += counts and not self._asking.get(sock)
            self._asking[sock] = True

    def _receives(self, sock: socket.socket) -> None:
        with self._counting:
            self._asking[sock] = False
