"""Refuse locks in a process that gevent or eventlet has patched in part, or too late.

Locks would block such a process forever, without a message: a greenlet waits for a lock of the
system that only another greenlet of the same thread can release.
"""

import inspect
import os
import socket
import threading

from django.core.exceptions import ImproperlyConfigured

LIBRARIES = "gevent", "eventlet"

REMEDY = (
    "Call monkey.patch_all() of gevent, or monkey_patch() of eventlet, without arguments and "
    "before anything else is imported."
)


class Seen:
    """The patches that `check_patches` has found in this process."""

    get_ident: object = None
    socket_class: object = None
    pid: int | None = None
    has_greenlets = False


seen = Seen()


def patches_error() -> str | None:
    """Return why locks do not work in this process, or None."""
    has_greenlets = not inspect.isbuiltin(threading.get_ident)
    module = socket.socket.__module__.partition(".")[0]
    if module in LIBRARIES and not has_greenlets:
        return f"{module} has patched the sockets of this process, but not its threads. {REMEDY}"
    if seen.pid == os.getpid() and has_greenlets and not seen.has_greenlets:
        return f"This process was patched for greenlets after it had used locks. {REMEDY}"
    return None


def check_patches() -> None:
    """Raise `ImproperlyConfigured` if locks do not work with the patches of this process."""
    if error := patches_error():
        raise ImproperlyConfigured(error)
    seen.has_greenlets = not inspect.isbuiltin(threading.get_ident)
    seen.pid = os.getpid()
    seen.get_ident = threading.get_ident
    seen.socket_class = socket.socket
