"""Counts round trips where nothing can go past: at the sockets of this process."""

import socket
from threading import Lock, get_ident
from typing import Any
from weakref import WeakKeyDictionary

SENDS = ("send", "sendall", "sendmsg")
RECEIVES = ("recv", "recv_into")


class RoundTrips:
    """In the block, `count` grows with each first sending after an answer, or after none.

    A request that is sent in pieces is one. With `of_this_thread`, what others send does not
    count. Python's ``socket.socket`` is patched meanwhile, so only one at a time.
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
