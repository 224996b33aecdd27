"""Many stored messages: their memory, the time of a task behind them, and the rate in order."""

import os
import subprocess
import sys
import time

import pytest

from django_redislock import locks
from django_redislock.lock_types.stored_task import Outbox
from django_redislock.tasks.single import queue_lock_token
from tests.celery_worker import MARKS
from tests.fast.celery.tools import make_task, own_app
from tests.tools import ROOT, wait_until

from .test_ordered import OrderedWorker, begun

pytestmark = [*MARKS, pytest.mark.timeout(1800)]

STORED = int(os.environ.get("TESTS_STORED_MESSAGES", "5000"))

TASKS = int(os.environ.get("TESTS_ORDERED_TASKS", "400"))

MAX_BYTES = 2048


def microseconds(client, action):
    """Return the time that the server spent in scripts during `action`."""
    client.config_resetstat()
    action()
    return client.info("commandstats")["cmdstat_evalsha"]["usec"]


def test_many_stored_messages_take_little_memory_and_no_more_time(redis_server):
    name, outbox, client = "stored-at-scale", Outbox(locks.alias), locks._server().client
    with own_app() as app:
        task = make_task(app, name, on_conflict="queue", body=lambda: "ran")
        ids = [task.delay().id]

        def cycle():
            """End the task that holds the lock, and send a new one."""
            for _ in range(100):
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
        f"{STORED} messages: {size:.0f} bytes each, {few / 100:.0f} us per task with 200 stored,"
        f" {many / 100:.0f} us with {STORED}"
    )
    keys = locks._server().keys.of(name)
    for key in client.scan_iter(f"{keys.inboxes}outbox:*"):
        client.delete(key)
    client.delete(keys.queue)
    locks.force_release(name)
    assert size < MAX_BYTES
    assert many < 3 * few


SENDER = """
import sys
from tests.full.workers import ordered_app as tasks
run, queue, sender, count, customers, name, seconds = sys.argv[1:]
task = getattr(tasks, name)
for number in range(int(count)):
    for customer in range(int(customers)):
        task.apply_async((run, f"{sender}-{customer}", number, float(seconds)), queue=queue)
"""


def rate(worker, run, name, seconds):
    """Return the tasks per second of 4 senders with 5 customers each."""
    each = TASKS // 20
    began = time.monotonic()
    options = run.id, worker.queue
    of_task = str(each), "5", name, str(seconds)
    senders = [
        subprocess.Popen(
            [sys.executable, "-c", SENDER, *options, f"{name}{number}", *of_task], cwd=ROOT
        )
        for number in range(4)
    ]
    assert [sender.wait(120) for sender in senders] == [0] * 4
    ends = f"end {name}"
    wait_until(lambda: len(run.notes(ends)) == TASKS, timeout=120, interval=0.05)
    return TASKS / (time.monotonic() - began)


def test_tasks_in_order_have_nearly_the_rate_of_others(tmp_path, run):
    workers = [OrderedWorker(tmp_path)]
    workers.append(OrderedWorker(tmp_path, queue=workers[0].queue))
    try:
        for worker in workers:
            worker.wait_until_ready()
        for seconds in (0.02, 0):
            run.close()
            without = rate(workers[0], run, "free", seconds)
            ordered = rate(workers[0], run, "numbered", seconds)
            print(
                f"{seconds=}: {ordered:.0f}/s in order, {without:.0f}/s without: "
                f"{ordered / without:.2f}"
            )
        found = {
            customer: numbers for customer, numbers in begun(run).items() if "num" in customer
        }
        assert len(found) == 20
        for numbers in found.values():
            assert numbers == sorted(numbers)
    finally:
        for worker in workers:
            worker.stop()
