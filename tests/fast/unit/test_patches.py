"""A process that gevent or eventlet has patched in part, or too late, gets an error."""

import socket
import threading

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redislock import locks


class PatchedSocket(socket.socket):
    __module__ = "gevent.socket"


def test_sockets_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", PatchedSocket)
    with pytest.raises(ImproperlyConfigured, match="sockets"):
        locks.count()


def test_after_locks_were_used(monkeypatch: pytest.MonkeyPatch) -> None:
    locks.count()
    get_ident = threading.get_ident
    monkeypatch.setattr(threading, "get_ident", lambda: get_ident())
    with pytest.raises(ImproperlyConfigured, match="after"):
        locks.count()
