"""Celery: empty tasks, with and without a lock each."""

import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
import redis
from celery import Task

from benchmarks.peers.run import Worker
from tests.tools import wait_until

from ..contenders import REDIS_PY
from ..figure import Bench, Figure, Line, Plot, Target, middle
from ..places import cpu_seconds
from ..rounds import interleaved

PLAIN = "no lock"
BY_HAND = f"{REDIS_PY}'s lock in the task"
RUNNING = "django-redislock, `while_executing`"
QUEUED = "django-redislock, `until_executed`"
PEERS = {"celery-once": "celery_once", "celery-singleton": "celery_singleton"}
APPS = {RUNNING: "while_executing", QUEUED: "until_executed", **PEERS}

TASKS = 400  # of a portion
MAX_TASKS_OVER_A_NETWORK = 150
NETWORK_SECONDS = 0.6  # sum of one round trip for each task of a portion


class Portion(NamedTuple):
    per_second: float
    cpu_ms: float  # processor time for a task, of sender, server and worker


def tasks(bench: Bench) -> Figure:
    logging.getLogger("django_redislock").setLevel(logging.ERROR)
    count = TASKS
    if bench.round_trip:
        count = min(MAX_TASKS_OVER_A_NETWORK, round(NETWORK_SECONDS / bench.round_trip))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = urlsplit(bench.direct_url)._replace(path="/1").geturl()
        broker = stack.enter_context(redis.Redis.from_url(url))
        contenders: dict[str, Callable[[], Portion]] = {}
        for label, name in list(APPS.items())[: bench.size(len(APPS), 2)]:
            worker = stack.enter_context(Worker(name, folder))
            portion = partial(_portion, broker, worker, bench.size(count, 20))
            contenders[label] = partial(portion, worker.tasks["idle"])
            if label == RUNNING:
                contenders[PLAIN] = partial(portion, worker.tasks["idle_alone"])
                contenders[BY_HAND] = partial(portion, worker.tasks["idle_by_hand"])
        portions = interleaved(contenders, bench.rounds(4), bench.random)
    found = {label: [each.per_second for each in some] for label, some in portions.items()}
    cpu = {label: [each.cpu_ms for each in some] for label, some in portions.items()}
    per_second = "tasks per second, {} / {}"
    short = {RUNNING: "`while_executing`", QUEUED: "`until_executed`"}
    as_fast = Target("at least", 1, "it does less: one lease, no renewal")
    compared = (
        (RUNNING, PLAIN, Target("at least", 0.85, "two round trips more")),
        (RUNNING, BY_HAND, None),
        (RUNNING, "celery-once", as_fast),
        (QUEUED, PLAIN, None),
        (QUEUED, "celery-once", as_fast),
        (QUEUED, "celery-singleton", None),
    )
    return Figure(
        "Celery tasks that do nothing",
        (
            *(
                Line.ratio(per_second.format(short[ours], theirs), found, ours, theirs, target)
                for ours, theirs, target in compared
                if theirs in found
            ),
            *(
                Line.ratio(f"CPU time per task, {short[ours]} / {PLAIN}", cpu, ours, PLAIN)
                for ours in short
            ),
        ),
        (Plot.of("tasks", "Celery tasks per second (tasks that do nothing)", "", found),),
        (
            "CPU time per task of the sender, the worker and the server together: "
            + ", ".join(f"{label} {middle(cpu, label):.2f} ms" for label in cpu)
            + ".",
        ),
    )


def _portion(broker: redis.Redis, worker: Worker, count: int, task: Task) -> Portion:
    """Measure from the first task sent to the last task acknowledged, which is at its end."""
    clients = [psutil.Process(), *worker.processes()]
    server_began = cpu_seconds(broker)
    clients_began = _cpu_seconds(clients)
    begun = time.perf_counter()
    for number in range(count):
        task.apply_async([str(number)])
    wait_until(partial(_is_calm, broker, task.app.main), timeout=120, interval=0.005)
    seconds = time.perf_counter() - begun
    of_clients = _cpu_seconds(clients) - clients_began
    cpu = of_clients + cpu_seconds(broker) - server_began
    return Portion(count / seconds, cpu * 1000 / count)


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def _is_calm(broker: redis.Redis, queue: str) -> bool:
    pipeline = broker.pipeline(transaction=True)  # a delivered task moves from one to the other
    return not any(pipeline.llen(queue).hlen("unacked").execute())
