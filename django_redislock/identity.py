"""The identity of a process. Neither host name nor pid is one: containers can share both."""

import hashlib
import os
import secrets

CHARACTERS = 16

_own = os.getpid(), secrets.token_hex(CHARACTERS // 2)


def process_id() -> str:
    """Return the random id of this process.

    A forked child has the id that `child_id` derives from its parent's id and its own pid. So two
    processes share an id only if they have the same parent and, one after the other, the same pid.
    """
    global _own
    known_pid, known_id = _own
    pid = os.getpid()
    if pid != known_pid:  # a fork that Python did not see, such as one by uWSGI
        _own = pid, child_id(known_id, pid)
    return _own[1]


def child_id(parent_id: str, pid: int) -> str:
    """Return the id of the child with that pid, so that its parent knows it after its death."""
    return hashlib.sha256(f"{parent_id} {pid}".encode()).hexdigest()[:CHARACTERS]


os.register_at_fork(after_in_child=process_id)
