"""Tasks that wait in the queue of a lock, without a process."""

from ..backends import servers
from ..engine import stored
from ..engine.runners import run
from ..engine.stored import OutgoingMessage, Stored, StoreRequest
from ..identity import payload_text
from .queue_lock import QueueLock


def store(
    queue_lock: QueueLock,
    message: str,
    *,
    lease: float,
    starts_in: float,
    expires_in: float,
    most: int,
    arrival: int,
) -> Stored:
    """Store a message until its queue lock is granted.

    Args:
        queue_lock: The queue lock that the task gets later.
        message: The message.
        lease: The lease of the queue lock in seconds, from when the message may be executed.
        starts_in: The seconds until the message may be executed.
        expires_in: The seconds until the message expires, or 0.
        most: The limit of messages in the queue, or 0.
        arrival: The arrival that the message had in the queue before, or 0.
    """
    lock = queue_lock.lock
    server = lock._server()
    payload = payload_text(
        queue_lock.metadata, renewed=False, on_conflict=lock.on_conflict, task=queue_lock.task
    )
    request = StoreRequest(
        keys=server.keys.of(lock.name),
        token=queue_lock.token,
        kind=lock.kind,
        capacity=lock.capacity,
        weight=lock.weight,
        lease=lease,
        payload=payload,
        message=message,
        starts_in=starts_in,
        expires_in=expires_in,
        most=most,
        arrival=arrival,
    )
    return run(server.client, stored.store(request))


class Outbox:
    """The messages on the server of a cache alias that must be sent, because they got their locks,
    or were revoked.

    Args:
        alias: The cache alias.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def take(self) -> list[OutgoingMessage]:
        """Take messages to send. Call `confirm()` for each of them, or it is taken again."""
        server = servers[self._alias]
        return run(server.client, stored.take(server.keys))

    def confirm(self, token: str, claim: str) -> bool:
        """Note that a message was sent, or must not be sent. Return False if the claim is over."""
        server = servers[self._alias]
        return run(server.client, stored.confirm(server.keys, token, claim))

    def cancel(self, token: str) -> bool:
        """Remove a message from the queue of its lock, and return whether it was in one."""
        server = servers[self._alias]
        return run(server.client, stored.cancel(server.keys, token, sends=False))

    def send_without_lock(self, token: str) -> None:
        """Have a message sent that is in the queue of its lock."""
        server = servers[self._alias]
        run(server.client, stored.cancel(server.keys, token, sends=True))
