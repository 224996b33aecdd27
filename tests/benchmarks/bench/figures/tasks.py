"""(f) Celery: tasks that do nothing, with a lock each and without."""

import importlib
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import redis
from celery import Task

from testproject.settings import redis_database
from tests.benchmarks.peers.bodies import LEAST
from tests.benchmarks.peers.run import Worker
from tests.tools import wait_until

from ..figure import Bench, Figure, Plot
from ..lines import Line, ratios
from ..rounds import interleaved

PLAIN = "no lock"
RUNNING = "django-redislock, `while_executing`"
QUEUED = "django-redislock, `until_executed`"
PEERS = {"celery-once": "celery_once_app", "celery-singleton": "celery_singleton_app"}
APPS = {RUNNING: "while_executing_app", QUEUED: "until_executed_app", **PEERS}


def tasks(bench: Bench) -> Figure:
    logging.getLogger("django_redislock").setLevel(logging.ERROR)
    count = bench.count(1000, 200)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(redis.Redis.from_url(redis_database(1)))
        contenders: dict[str, Callable[[], float]] = {}
        for label, name in APPS.items():
            module = importlib.import_module(f"tests.benchmarks.peers.{name}")
            worker = stack.enter_context(Worker(module, folder / f"{name}.log"))
            contenders[label] = partial(_per_second, broker, worker.tasks.idle, count)
            if label == RUNNING:
                contenders[PLAIN] = partial(_per_second, broker, worker.tasks.idle_alone, count)
                for least, task in worker.tasks.idle_least.items():
                    contenders[least] = partial(_per_second, broker, task, count)
        found = interleaved(contenders, bench.rounds(7), bench.random)
    return Figure(
        "Tasks a second",
        tuple(_lines(found)),
        (
            Plot(
                "tasks",
                "Tasks a second that do nothing",
                "",
                {label: statistics.median(values) for label, values in found.items()},
            ),
        ),
        (
            _note(found, QUEUED, PLAIN),
            *(_note(found, least, other) for least in LEAST for other in (PLAIN, *PEERS)),
        ),
    )


def _note(found: dict[str, list[float]], one: str, other: str) -> str:
    ratio = statistics.median(ratios(found[one], found[other]))
    return f"{one} / {other}: {ratio:.2f}."


def _lines(found: dict[str, list[float]]) -> list[Line]:
    bare = ratios(found[RUNNING], found[PLAIN])
    return [
        Line.of("f", "tasks a second / without a lock", bare, "at least", 0.85),
        *(
            Line.of(
                "f",
                f"tasks a second, {of} / {label}'s",
                ratios(found[ours], found[label]),
                "at least",
                1,
            )
            for ours, of in ((RUNNING, "`while_executing`"), (QUEUED, "`until_executed`"))
            for label in PEERS
        ),
    ]


def _per_second(broker: redis.Redis, task: Task, count: int) -> float:
    """From the first that is sent to the last that is acknowledged, which is when it ended."""
    begun = time.perf_counter()
    for number in range(count):
        task.apply_async([str(number)])
    wait_until(partial(_is_calm, broker, task.app.main), timeout=120, interval=0.002)
    return count / (time.perf_counter() - begun)


def _is_calm(broker: redis.Redis, queue: str) -> bool:
    pipeline = broker.pipeline(transaction=True)  # what is delivered is in the other at once
    return not any(pipeline.llen(queue).hlen("unacked").execute())
