"""Tasks that wait ride through an outage of the server of the locks."""

import pytest

from django_redislock import locks
from django_redislock.testing import EmbeddedServer
from tests.celery_worker import outcome, running_worker
from tests.lock_tools import waiting
from tests.tools import wait_until

from . import pool_app as tasks

pytestmark = [pytest.mark.celery, pytest.mark.timeout(300)]

CROWD = 50


@pytest.fixture(scope="module")
def lock_server():
    with EmbeddedServer(appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture(scope="module")
def worker(lock_server, tmp_path_factory):
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.full.workers.outage_settings",
        "OUTAGE_URL": lock_server.url,
    }
    with running_worker(
        tmp_path_factory.mktemp("worker"),
        app="tests.full.workers.pool_app",
        pool="threads",
        concurrency=CROWD,
        environment=environment,
    ) as worker:
        yield worker


def test_tasks_run_in_order_after_an_outage(worker, run, lock_server, settings):
    default = settings.CACHES["default"] | {"LOCATION": lock_server.url}
    settings.CACHES = {**settings.CACHES, "default": default}
    name = f"pool:{run.id}"
    assert locks.lock(name, timeout=60, auto_renewal=False).acquire()
    results = []
    for _ in range(CROWD):
        results.append(worker.send(tasks.riding, run.id))
        waiting(locks, name, len(results))
    lock_server.stop()
    wait_until(lambda: worker.logged("Waiting for lock through an outage", name))
    lock_server.start()
    wait_until(lambda: locks.get(name).waiters == CROWD)
    locks.force_release(name)
    assert [outcome(each) for each in results] == [None] * CROWD
    assert run.notes("begin") == [f"begin {each.id}" for each in results]
    assert len(worker.logged("Waiting for lock through an outage", name)) == 1
