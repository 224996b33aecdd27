"""Tasks in order: messages that wait in the queue of their lock, instead of with the broker.

Celery makes a message completely, and publishes it with the producer that `apply_async()` was
given. That producer stores the message. If the lock is granted at once, it publishes the message,
too. Otherwise the lock is granted later, and a worker publishes it then.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from django.core.signing import BadSignature, Signer
from kombu.serialization import dumps
from kombu.utils import json

from django_redislock import clock
from django_redislock.engine.stored import MAX_TAKEN, OutgoingMessage, StoreOutcome
from django_redislock.engine.timing import RESEND_SECONDS
from django_redislock.lock_types.stored_task import Outbox
from django_redislock.manager import LockManager
from django_redislock.text import error_text, printable

from .message import AGAIN, ARRIVAL, task_id_in

logger = logging.getLogger("django_redislock")

NOT_STORED = "retry", "retry_policy", "serializer", "declare", "exchange", "headers"
"""Arguments of a publication that are stored in another form, or that the publisher knows."""

SALT = "django_redislock.celery.ordered"
"""For the signature of a stored message. Without one, a program that can write to the database of
the locks could send any task."""


class StoringProducer:
    """A producer that stores one message, and publishes it only if its lock is granted at once.

    Args:
        sending: The message that is being sent.
        producer: The producer, or None for one of the app.
        connection: The connection, or None for one of the app.
    """

    def __init__(self, sending: Any, producer: Any, connection: Any) -> None:
        self._sending = sending
        self._app: Celery = sending.task.app
        self._producer = producer
        if connection is not None:
            self._producer = self._app.amqp.Producer(connection, auto_declare=False)
        # It connects only if it is used.
        self.connection: Any = self._app.connection_for_write()
        if self._producer:
            self.connection = self._producer.connection

    @property
    def channel(self) -> Any:
        """The channel on which the result backend ``rpc://`` declares its queue."""
        return self.connection.default_channel

    def publish(self, body: Any, **properties: Any) -> Any:
        """Store the message. Publish anything else, such as an event about it."""
        headers = properties.setdefault("headers", {})
        if task_id_in(headers, body) != self._sending.task_id:
            return self._publish(body, properties)
        stored = self._sending.store(packed(body, properties))
        if stored.outcome is not StoreOutcome.GRANTED:
            return None
        more = {ARRIVAL: int(stored.detail)}
        try:
            result = self._publish(body, {**properties, "headers": {**headers, **more}})
        except BaseException:
            self._sending.withdraw(stored.claim)
            raise
        self._sending.confirm(stored.claim)
        return result

    def _publish(self, body: Any, properties: dict[str, Any]) -> Any:
        with self._app.producer_or_acquire(self._producer) as producer:
            return producer.publish(body, **properties)

    def close(self) -> None:
        """Close the connection that was made for this message, if it was used."""
        if self._producer is None:
            self.connection.release()


def packed(body: Any, properties: dict[str, Any]) -> str:
    """Return a message as signed text, with the body in the serializer of its task."""
    content_type, encoding, data = dumps(body, properties.get("serializer"))
    exchange = properties.get("exchange")
    return Signer(salt=SALT).sign(
        json.dumps(
            {
                "body": data,  # JSON of kombu can contain bytes
                "content_type": content_type,
                "content_encoding": encoding,
                "headers": properties["headers"],
                "exchange": getattr(exchange, "name", exchange),
                "queues": [queue.name for queue in properties.get("declare") or ()],
                "properties": {
                    name: value
                    for name, value in properties.items()
                    if name not in NOT_STORED and value is not None
                },
            }
        )
    )


def publish(app: Celery, message: OutgoingMessage) -> None:
    """Publish a stored message, as Celery would have done.

    Raises `BadSignature` if this project has not stored it.
    """
    found = json.loads(Signer(salt=SALT).unsign(message.message))
    headers = {**found["headers"], ARRIVAL: message.arrival}
    if message.is_again:
        headers[AGAIN] = True
    with app.producer_or_acquire() as producer:
        producer.publish(
            found["body"],
            content_type=found["content_type"],
            content_encoding=found["content_encoding"],
            headers=headers,
            exchange=found["exchange"],
            declare=[app.amqp.queues[name] for name in found["queues"]],
            retry=app.conf.task_publish_retry,
            retry_policy=app.conf.task_publish_retry_policy,
            **found["properties"],
        )


def send_due(app: Celery, manager: LockManager) -> None:
    """Publish the messages that got their locks and that nobody has published yet.

    An error is logged only: a worker tries again after `RESEND_SECONDS`.
    """
    outbox = Outbox(manager.alias)
    try:
        while True:
            started = clock.now()
            messages = outbox.take()
            for message in messages:
                # Later, another worker may have taken it, too.
                if clock.now() - started > RESEND_SECONDS / 2:
                    return
                send_one(app, outbox, message)
            if len(messages) < MAX_TAKEN:
                return
    except Exception as error:
        logger.warning("Stored messages not sent, will retry: error=%s", error_text(error))


def send_one(app: Celery, outbox: Outbox, message: OutgoingMessage) -> None:
    """Publish a message. One that cannot be published does not stop the others."""
    try:
        publish(app, message)
    except BadSignature:
        token = printable(message.token)
        logger.error("Stored message dropped, no valid signature: token=%s", token)
        outbox.confirm(message.token, message.claim)
    except Exception as error:
        logger.warning(
            "Stored message not sent, will retry: token=%s error=%s",
            *(printable(message.token), error_text(error)),
        )
    else:
        outbox.confirm(message.token, message.claim)
