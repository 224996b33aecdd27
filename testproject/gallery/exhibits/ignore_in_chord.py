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
from testproject.gallery.actors import ActorServer
from testproject.gallery.exhibit import Exhibit, Outcome
from testproject.gallery.trial import ActorFactory, Trial
from testproject.stage import TIMEOUT_SECONDS, Stage

THREADS = 4
GRACE_SECONDS = 1.0
"""Time to wait for a callback after one that was sent later has run."""


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
    """Work until the duplicate has ended."""
    client().blpop([f"gallery:go:{trial}"], TIMEOUT_SECONDS)
    return "done"


@task_postrun.connect
def note_end(args: Any = (), task: Any = None, **more: Any) -> None:
    if task is not None and task.name in (sync_or_ignore.name, sync_once.name):
        client().rpush(f"gallery:ended:{args[0]}", "ended")


def client() -> Any:
    return Redis.from_url(settings.REDIS_URL, decode_responses=True, socket_timeout=None)


class Sender:
    """Sends chords with two identical members."""

    def __init__(self, member: str) -> None:
        self.member, self.client = celery_app.tasks[member], client()

    def send(self, trial: str) -> None:
        """Send one chord, and wait until both members have ended."""
        chord([self.member.si(trial), self.member.si(trial)])(collect.s(trial))
        self._one_ends(trial)  # the duplicate
        self.client.rpush(f"gallery:go:{trial}", "go")
        self._one_ends(trial)

    def _one_ends(self, trial: str) -> None:
        if not self.client.blpop([f"gallery:ended:{trial}"], TIMEOUT_SECONDS):
            raise TimeoutError("No member of the chord has ended")

    def collected(self, trials: list[str]) -> set[str]:
        """Return the trials whose callback has run. All callbacks were sent before `last`."""
        last = uuid.uuid4().hex
        collect.delay([], last)
        until = time.monotonic() + TIMEOUT_SECONDS
        while last not in (seen := self._seen()) and time.monotonic() < until:
            time.sleep(0.02)
        until = time.monotonic() + GRACE_SECONDS
        while not seen >= {*trials} and time.monotonic() < until:
            time.sleep(0.02)
            seen = self._seen()
        return seen

    def _seen(self) -> set[str]:
        return {*self.client.lrange("gallery:collected", 0, -1)}


def run_trials(actor_server: ActorServer, sender: ActorFactory, trials: int) -> list[Outcome]:
    """Run the trials one after another, with the same worker."""
    names = [uuid.uuid4().hex for _ in range(trials)]
    with Trial(actor_server) as trial:
        actor = trial.start(sender)
        for name in names:
            actor.do("send", name)
        collected = actor.do("collected", names)
    return [Outcome(failed=name not in collected) for name in names]


@contextmanager
def worker(actor_server: ActorServer) -> Iterator[ActorServer]:
    options = ["--pool", "threads", f"--concurrency={THREADS}", "-lINFO", "-I", __name__]
    quick = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    stage = Stage(actor_server.stage.server, actor_server.stage.folder)
    stage.start("worker", "-m", "celery", "-A", "testproject", "worker", *options, *quick)
    try:
        stage.wait_for("a worker", lambda: " ready." in stage.log_of("worker"))
        yield actor_server
    finally:
        stage.clear()


EXHIBIT = Exhibit(
    name="ignore-in-chord",
    title="A duplicate in a chord",
    algorithm="A task whose lock is held raises Ignore.",
    failure="the other member was done, but the chord's callback never ran",
    taught=partial(Sender, sync_or_ignore.name),
    ours=partial(Sender, sync_once.name),
    run_trials=run_trials,
    setting=worker,
)
