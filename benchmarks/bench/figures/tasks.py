"""(f) Celery: empty tasks, with and without a lock each."""

import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import redis
from celery import Task

from benchmarks.peers.bodies import LEAST
from benchmarks.peers.run import Worker
from testproject.settings import redis_database
from tests.tools import wait_until

from ..contenders import BARE, SENT
from ..figure import Bench, Figure, Line, Plot, middle, quantiles, ratios
from ..rounds import interleaved

PLAIN = "no lock"
RUNNING = "django-redislock, `while_executing`"
QUEUED = "django-redislock, `until_executed`"
PEERS = {"celery-once": "celery_once", "celery-singleton": "celery_singleton"}
APPS = {RUNNING: "while_executing", QUEUED: "until_executed", **PEERS}


class Portion(NamedTuple):
    per_second: float
    work: float  # seconds of processor time for a task, of sender, broker and worker


def tasks(bench: Bench) -> Figure:
    logging.getLogger("django_redislock").setLevel(logging.ERROR)
    count = bench.size(1000, 200)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(redis.Redis.from_url(redis_database(1)))
        contenders: dict[str, Callable[[], Portion]] = {}
        for label, name in APPS.items():
            worker = stack.enter_context(Worker(name, folder))
            portion = partial(_portion, broker, worker, count)
            contenders[label] = partial(portion, worker.tasks["idle"])
            if label == RUNNING:
                contenders[PLAIN] = partial(portion, worker.tasks["idle_alone"])
                contenders |= {least: partial(portion, worker.tasks[least]) for least in LEAST}
        portions = interleaved(contenders, bench.rounds(7), bench.random)
    found = {label: [each.per_second for each in some] for label, some in portions.items()}
    work = {label: [each.work * 1000 for each in some] for label, some in portions.items()}
    return Figure(
        "Tasks per second",
        tuple(_lines(found)),
        (Plot.of("tasks", "Celery tasks per second (tasks that do nothing)", "", found),),
        (
            _note(found, QUEUED, PLAIN),
            *(_note(found, BARE, other) for other in (PLAIN, *PEERS)),
            "CPU time per task of the sender, the worker and the server together: "
            + ", ".join(f"{label} {middle(work, label):.2f} ms" for label in work)
            + ".",
        ),
    )


def _note(found: dict[str, list[float]], one: str, other: str) -> str:
    return f"{one} / {other}: {quantiles(ratios(found[one], found[other]))[1]:.2f}."


def _lines(found: dict[str, list[float]]) -> list[Line]:
    running = "tasks per second, `while_executing` / {}"
    queued = "tasks per second, `until_executed` / {}"
    return [
        Line.ratio(
            "tasks per second / without a lock", found, RUNNING, PLAIN, "at least", 0.85, SENT
        ),
        *(
            Line.ratio(running.format(peer), found, RUNNING, peer, "at least", 1, SENT)
            for peer in PEERS
        ),
        *(Line.ratio(queued.format(peer), found, QUEUED, peer, "at least", 1) for peer in PEERS),
    ]


def _portion(broker: redis.Redis, worker: Worker, count: int, task: Task) -> Portion:
    """Measure from the first task sent to the last task acknowledged, which is at its end."""
    server = psutil.Process(broker.info("server")["process_id"])
    all_of_them = [psutil.Process(), server, *worker.processes()]
    before, begun = _processor_time(all_of_them), time.perf_counter()
    for number in range(count):
        task.apply_async([str(number)])
    wait_until(partial(_is_calm, broker, task.app.main), timeout=120, interval=0.002)
    seconds = time.perf_counter() - begun
    return Portion(count / seconds, (_processor_time(all_of_them) - before) / count)


def _processor_time(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def _is_calm(broker: redis.Redis, queue: str) -> bool:
    pipeline = broker.pipeline(transaction=True)  # a delivered task moves from one to the other
    return not any(pipeline.llen(queue).hlen("unacked").execute())
