"""A duplicate in a chord ends without a result, and the chord waits for it."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery import Task, chord, shared_task
from celery.exceptions import Ignore
from celery.signals import task_postrun
from django.conf import settings
from redis import Redis

from django_redislock import single_instance
from testproject import celery_app
from testproject.gallery.actors import Home
from testproject.gallery.exhibit import Exhibit, Outcome
from testproject.gallery.scene import Part, Scene
from testproject.stage import PATIENCE, Stage

THREADS = 4
GRACE = 1.0
"""Seconds that a callback may yet come, after one that was sent later has run."""


@shared_task(bind=True, name="gallery.sync_or_ignore")
def sync_or_ignore(self: "Task[..., Any]", trial: str) -> str:
    lock = client().lock(f"sync:{trial}", timeout=60, blocking=False)
    if not lock.acquire():
        raise Ignore
    try:
        return work(trial)
    finally:
        lock.release()


@shared_task(bind=True, name="gallery.sync_once")
@single_instance(unique_on=["trial"], timeout=60)
def sync_once(self: "Task[..., Any]", trial: str) -> str:
    return work(trial)


@shared_task(name="gallery.collect")
def collect(results: list[str], trial: str) -> None:
    client().rpush("gallery:collected", trial)


def work(trial: str) -> str:
    """It takes until the duplicate has come and gone."""
    client().blpop([f"gallery:go:{trial}"], PATIENCE)
    return "done"


@task_postrun.connect
def note_end(args: Any = (), task: Any = None, **more: Any) -> None:
    if task is not None and task.name in (sync_or_ignore.name, sync_once.name):
        client().rpush(f"gallery:ended:{args[0]}", "ended")


def client() -> Any:
    return Redis.from_url(settings.REDIS_URL, decode_responses=True, socket_timeout=None)


class Sender:
    """Sends chords of two equal members."""

    def __init__(self, member: str) -> None:
        self.member, self.client = celery_app.tasks[member], client()

    def send(self, trial: str) -> None:
        """Each at a time: it ends when both members have."""
        chord([self.member.si(trial), self.member.si(trial)])(collect.s(trial))
        self._one_ends(trial)  # the duplicate
        self.client.rpush(f"gallery:go:{trial}", "go")
        self._one_ends(trial)

    def _one_ends(self, trial: str) -> None:
        if not self.client.blpop([f"gallery:ended:{trial}"], PATIENCE):
            raise TimeoutError("No member of the chord has ended")

    def collected(self, trials: list[str]) -> set[str]:
        """Those whose callbacks have run. Callbacks were sent before the last message."""
        last = uuid.uuid4().hex
        collect.delay([], last)
        until = time.monotonic() + PATIENCE
        while last not in (seen := self._seen()) and time.monotonic() < until:
            time.sleep(0.02)
        until = time.monotonic() + GRACE
        while not seen >= {*trials} and time.monotonic() < until:
            time.sleep(0.02)
            seen = self._seen()
        return seen

    def _seen(self) -> set[str]:
        return {*self.client.lrange("gallery:collected", 0, -1)}


def plays(home: Home, sender: Part, trials: int) -> list[Outcome]:
    """One after the other, by the same worker."""
    names = [uuid.uuid4().hex for _ in range(trials)]
    with Scene(home) as scene:
        actor = scene.cast(sender)
        for name in names:
            actor.do("send", name)
        collected = actor.do("collected", names)
    return [Outcome(failed=name not in collected) for name in names]


@contextmanager
def worker(home: Home) -> Iterator[Home]:
    options = ["--pool", "threads", f"--concurrency={THREADS}", "-lINFO", "-I", __name__]
    quick = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    stage = Stage(home.stage.server, home.stage.folder)
    stage.start("worker", "-m", "celery", "-A", "testproject", "worker", *options, *quick)
    try:
        stage.wait_for("a worker", lambda: " ready." in stage.log_of("worker"))
        yield home
    finally:
        stage.clear()


EXHIBIT = Exhibit(
    name="ignore-in-chord",
    title="A duplicate in a chord",
    algorithm="A task whose lock is held raises Ignore.",
    failure="the other member was done, but the chord's callback never ran",
    taught=partial(Sender, sync_or_ignore.name),
    ours=partial(Sender, sync_once.name),
    plays=plays,
    setting=worker,
)
