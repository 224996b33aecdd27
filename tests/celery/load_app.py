"""The Celery app of the load test: `celery -A tests.celery.load_app worker`.

Whatever happens to a send is noted in one list of the run, in the order in which Redis saw it,
as ``milliseconds word key send pid fence``. A send is known by a word of its own, its last
argument, and not by the task's id: one that takes no place never has one.
"""

import logging
import os
import random
import threading
import time
import uuid
from functools import cache
from itertools import count
from typing import Any

import redis
from celery import Celery
from celery.signals import before_task_publish, worker_process_init
from django.dispatch import receiver

from django_redislock import single_instance
from django_redislock.celery import current_lock
from django_redislock.signals import task_replaced, task_skipped

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

app = Celery("load", set_as_current=False)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_track_started=True,
    result_expires=600,
)

CHILDREN = "load:children"
"""The processes that take tasks, as a set."""

KILLED = "load:killed"
"""Those that were killed, as a set."""

LEASE = 120
"""Seconds. A lock that nobody frees blocks its key for the rest of the run, and shows."""

LONGEST = 0.05
"""Seconds that a task takes at most."""

NOTE = """
local function note(list, ...)
  local now = redis.call('TIME')
  local at = string.format('%d%03d', now[1], math.floor(now[2] / 1000))
  redis.call('RPUSH', list, table.concat({at, ...}, ' '))
end
"""

# For all: KEYS are the list, the register (a hash: who is inside of each key), and KILLED. ARGV
# are the word, key, send, pid and fence.
WORD = NOTE + "note(KEYS[1], unpack(ARGV))"

DEATH = NOTE + "redis.call('SADD', KEYS[3], ARGV[4]) note(KEYS[1], unpack(ARGV))"

BEGIN = (
    NOTE
    + """
local word, key, send, pid, fence = unpack(ARGV)
local inside = redis.call('HGET', KEYS[2], key)
if inside and redis.call('SISMEMBER', KEYS[3], string.match(inside, '^%d+')) == 0 then
  note(KEYS[1], 'both', key, send, pid, inside)
end
redis.call('HSET', KEYS[2], key, pid .. '/' .. send)
note(KEYS[1], word, key, send, pid, fence)
"""
)

END = (
    NOTE
    + """
local word, key, send, pid, fence = unpack(ARGV)
if redis.call('HGET', KEYS[2], key) == pid .. '/' .. send then
  redis.call('HDEL', KEYS[2], key)
elseif redis.call('SISMEMBER', KEYS[3], pid) == 0 then
  note(KEYS[1], 'both', key, send, pid, 'at-its-end')
end
note(KEYS[1], word, key, send, pid, fence)
"""
)


@cache
def notes() -> redis.Redis:
    """The client of this process."""
    from testproject.settings import redis_database

    return redis.Redis.from_url(redis_database(3), decode_responses=True)


def register_of(run: str) -> str:
    return f"{run}:register"


def ids_of(run: str) -> str:
    """The name of a hash: which send a task's id is of."""
    return f"{run}:ids"


def tell(
    run: str, script: str, word: str, key: str, send: str, *, pid: int = 0, fence: int = 0
) -> None:
    keys = [run, register_of(run), KILLED]
    notes().eval(script, len(keys), *keys, word, key, send, pid or os.getpid(), fence)


@worker_process_init.connect
def tell_of_child(**_: Any) -> None:
    notes().sadd(CHILDREN, os.getpid())


@receiver(task_skipped)
def note_skipped(sender: Any, args: Any, **_: Any) -> None:
    if getattr(sender, "app", None) is app:
        run, key, send = args
        tell(run, WORD, "skipped", key, send)


@before_task_publish.connect
def note_id(headers: Any, body: Any, **_: Any) -> None:
    if headers["task"].startswith(__name__):
        (run, _, send), *_ = body
        notes().hset(ids_of(run), headers["id"], send)


@receiver(task_replaced)
def note_replaced(sender: Any, name: str, task_id: str, **_: Any) -> None:
    if sender.app is app:
        run, key, *_ = name.split(":")
        tell(run, WORD, "replaced", key, task_id)


def work(run: str, key: str, send: str) -> str:
    """Take some time; note both ends, with the lock's fencing token."""
    lock = current_lock()
    fence = lock.fence_token if lock else 0
    tell(run, BEGIN, "begin", key, send, fence=fence)
    time.sleep(random.uniform(0.1, 1) * LONGEST)  # the work
    tell(run, END, "end", key, send, fence=fence)
    return "ran"


@app.task
def ready() -> int:
    return os.getpid()


@app.task
def plain(run, key, send):
    """What Celery itself does under this load, without a lock: each send has a key of its own."""
    return work(run, key, send)


@app.task
@single_instance(key="{run}:{key}", timeout=LEASE)
def skip(run, key, send):
    return work(run, key, send)


@app.task
@single_instance(key="{run}:{key}", timeout=LEASE, on_conflict="retry", countdown=0.3)
def retry(run, key, send):
    return work(run, key, send)


@single_instance(key="{run}:{key}", timeout=LEASE, mode="until_executed")
@app.task
def until_executed(run, key, send):
    return work(run, key, send)


@single_instance(
    key="{run}:{key}", timeout=LEASE, mode="until_and_while_executing", on_conflict="replace"
)
@app.task
def replace(run, key, send):
    return work(run, key, send)


def send_all(mode: str, run: str, queue: str, sends: int, keys: int, seconds: float) -> None:
    """Send so many in so many seconds, a few at a time to one key, in four threads."""
    numbers, sender = count(), uuid.uuid4().hex[:8]
    task = app.tasks[f"{__name__}.{mode}"]
    begun = time.monotonic()
    failed = []

    def send_some() -> None:
        while (number := next(numbers)) * BURST < sends:
            key = f"k{random.randrange(keys)}"
            pause = begun + seconds * number * BURST / sends - time.monotonic()
            time.sleep(max(0, pause))  # a pace, not a wait for something
            for each in range(min(BURST, sends - number * BURST)):
                send_one(key, f"{sender}-{number}-{each}")

    def send_one(key: str, send: str) -> None:
        key = f"{key}-{send}" if mode == "plain" else key
        tell(run, WORD, "sent", key, send)
        try:
            task.apply_async((run, key, send), queue=queue)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=send_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise ExceptionGroup("not all could be sent", failed)


BURST = 5
"""Sends to one key at a time."""


def main(mode: str, run: str, queue: str, sends: str, keys: str, seconds: str) -> None:
    logging.getLogger("django_redislock").setLevel(logging.ERROR)  # thousands are skipped
    send_all(mode, run, queue, int(sends), int(keys), float(seconds))
