"""Many stored messages: their memory, and the time of a task behind them."""

import os

import pytest

from django_redislock import locks
from django_redislock.lock_types.stored_task import Outbox
from django_redislock.tasks.single import queue_lock_token
from tests.celery_worker import MARKS
from tests.fast.celery.tools import make_task, own_app

pytestmark = [*MARKS, pytest.mark.timeout(1800)]

STORED = int(os.environ.get("TESTS_STORED_MESSAGES", "5000"))

MAX_BYTES = 2048

ROUNDS, TURNS = 10, 10
"""Rounds of a measurement, and tasks in each."""


def microseconds(client, action):
    """Return the least time that the server spent in scripts in one of several rounds. It is the
    one that other processes disturbed least."""
    found = []
    for _ in range(ROUNDS):
        client.config_resetstat()
        action()
        found.append(client.info("commandstats")["cmdstat_evalsha"]["usec"])
    return min(found)


def test_many_stored_messages_take_little_memory_and_no_more_time(redis_server):
    name, outbox, client = "stored-at-scale", Outbox(locks.alias), locks._server().client
    with own_app() as app:
        task = make_task(app, name, on_conflict="queue", body=lambda: "ran")
        ids = [task.delay().id]

        def cycle():
            """End the task that holds the lock, and send a new one."""
            for _ in range(TURNS):
                token = queue_lock_token(ids[0])
                assert locks.release_for(name, token)
                del ids[0]
                [message] = outbox.take()
                assert outbox.confirm(message.token, message.claim)
                assert message.token == queue_lock_token(ids[0])
                ids.append(task.delay().id)

        ids += [task.delay().id for _ in range(200)]
        few = microseconds(client, cycle)
        before = client.info("memory")["used_memory"]
        ids += [task.delay().id for _ in range(STORED)]
        size = (client.info("memory")["used_memory"] - before) / STORED
        many = microseconds(client, cycle)
    print(
        f"{STORED} messages: {size:.0f} bytes each, {few / TURNS:.0f} us per task with 200 stored,"
        f" {many / TURNS:.0f} us with {STORED}"
    )
    keys = locks._server().keys.of(name)
    for key in client.scan_iter(f"{keys.inboxes}outbox:*"):
        client.delete(key)
    client.delete(keys.queue)
    locks.force_release(name)
    assert size < MAX_BYTES
    assert many < 3 * few
