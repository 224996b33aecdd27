"""Each way in which a task can end, in each mode, with the effects on its lock and its work.

A test is a row of the table in the docs, named by its docstring. The parameter is the column. Each
test compares its cell with what it has seen. A test that ends a worker has no parameter, because
its worker runs a task of each mode.
"""

import gc
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from types import SimpleNamespace

import pytest
from celery import chord

from django_redislock import locks
from django_redislock.testing import EmbeddedServer
from tests.celery_worker import FREE_WITHIN, MARKS, outcome
from tests.tools import ROOT, wait_until

from . import cases_app as tasks
from .cases import QUEUED, REQUEUED, RUNNING, Case, CasesWorker, deliver_again
from .cases_app import MODES

pytestmark = MARKS

PAGE = ROOT / "docs" / "evidence" / "results" / "cases.md"

NOTHING = "no lock held"

BY_PARENT = "released by the worker"

BY_ONE_OF_THEM = "released by the pool process or the worker"

LIMIT = 2
"""Both time limits, in seconds."""

EXPIRES = 2
"""In seconds."""


def pytest_generate_tests(metafunc):
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("mode", MODES)


@pytest.fixture(scope="module")
def restarted_server():
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="module")
def start_worker(tmp_path_factory, restarted_server):
    """Start workers, which are stopped at the end."""
    folder, workers = tmp_path_factory.mktemp("workers"), []

    def start():
        workers.append(CasesWorker(folder, restarted_server.url))
        outcome(workers[-1].send(tasks.ready), timeout=60)
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()
    # Collect results while the server runs, because their deletion sends it a command.
    gc.collect()


@pytest.fixture(scope="module")
def worker(start_worker):
    return start_worker()


@pytest.fixture
def new_case(worker, mode):
    """Make cases of this mode, and check at the end that no lock is held."""
    cases = []

    def new(kind="plain", **options):
        cases.append(Case(mode, worker, kind, **options))
        return cases[-1]

    yield new
    for case in cases:
        case.close()


@pytest.fixture
def case(new_case):
    return new_case()


@pytest.fixture
def compare(request):
    """Compare a cell in the docs with what happened to the lock and to the task.

    `held` says in which modes a lock is held at that time.
    """

    def compare(mode, lock, work, held=RUNNING):
        title = request.function.__doc__.rstrip(".")
        row = f"| {title}<br>`{request.function.__name__}` | "
        rows = [line for line in PAGE.read_text().splitlines() if line.startswith(row)]
        assert rows, f"{PAGE} lacks a row that begins with {row}"
        cells = rows[0].removeprefix(row).removesuffix(" |").split(" | ")
        without_times = re.sub(r": (under )?[0-9.]+ s<br>", "<br>", cells[MODES.index(mode)])
        assert without_times == f"{lock if held[mode] else NOTHING}<br>{work}"

    return compare


@pytest.fixture
def cell(compare, mode):
    return partial(compare, mode)


ALWAYS = dict.fromkeys(MODES, True)
"""For cells whose text does not depend on the held locks."""


def released(case, cell, work, lock="released by the pool process"):
    """Wait until no lock is held, and compare the cell."""
    case.freed()
    cell(lock, work)


def error_of(case):
    return type(outcome(case.result)).__name__


def test_normal_end(case, cell):
    """Normal end."""
    case.start()
    case.go()
    assert outcome(case.result) == "ran"
    released(case, cell, "done")


def test_exception(case, cell):
    """Exception."""
    case.start("error")
    case.go()
    assert error_of(case) == "LookupError"
    released(case, cell, "failed")


def test_ignore(case, cell):
    """`raise Ignore()`."""
    case.start("ignore")
    case.go()
    case.run.wait_for("end")
    released(case, cell, "done; Celery stores no result")
    assert case.result.state == "STARTED"


def test_reject(new_case, cell):
    """`raise Reject(requeue=False)`."""
    case = new_case("late")
    case.start("reject")
    case.go()
    released(case, cell, "dropped, or dead-lettered by the broker")
    case.worker.done_with(case.id)


def test_requeue(new_case, cell):
    """`raise Reject(requeue=True)`, with `acks_late`."""
    case = new_case("late")
    case.send("requeue", queue=case.queue)
    case.worker.consume(case.queue)
    case.begun()
    case.worker.ignore(case.queue)
    case.go()
    case.worker.done_with(case.id)
    case.kept(REQUEUED[case.mode])
    case.worker.consume(case.queue)
    assert case.ends(times=2) == "ran"
    lock = "kept as the queue lock" if REQUEUED[case.mode] else "released by the pool process"
    cell(lock, "runs again")


def test_requeue_acknowledged(case, cell):
    """`raise Reject(requeue=True)`, acknowledged early."""
    case.start("requeue")
    case.go()
    case.worker.done_with(case.id)
    released(case, cell, "dropped by Celery")


RETRIED = {
    "while_executing": "released, then acquired again",
    "until_executing": "queue lock held until the retry starts",
    "until_executed": "kept for the retry",
    "until_and_while_executing": "lock released, queue lock held",
}


def retries(case, cell, between, lock):
    case.go()
    case.state("RETRY")
    case.kept(between)
    assert case.ends(times=2) == "ran"
    cell(lock, "runs again", held=ALWAYS)


def test_retry(case, cell, mode):
    """`self.retry()`."""
    case.start("retry")
    retries(case, cell, QUEUED[mode], RETRIED[mode])


def test_autoretry(new_case, cell, mode):
    """`autoretry_for`."""
    case = new_case("autoretry")
    case.start("error_once")
    retries(case, cell, QUEUED[mode], RETRIED[mode])


def test_retry_hold(new_case, cell, mode):
    """`self.retry()` with `hold_on_retry=True`."""
    if mode == "until_executing":
        with pytest.raises(ValueError, match="hold_on_retry=True requires a mode"):
            tasks.make("holding", mode)
        cell(NOTHING, "`ValueError` at import")
        return
    case = new_case("holding")
    case.start("retry")
    retries(case, cell, {"queue lock"}, RETRIED["until_executed"])


def test_soft_limit(case, cell):
    """Soft time limit."""
    case.start(soft_time_limit=LIMIT)
    assert error_of(case) == "SoftTimeLimitExceeded"
    released(case, cell, "failed")


def test_hard_limit(case, cell):
    """Hard time limit, under `timeout=60`."""
    case.start(time_limit=LIMIT)
    released(case, cell, "failed: `TimeLimitExceeded`", BY_ONE_OF_THEM)
    assert error_of(case) == "TimeLimitExceeded"


def test_hard_limit_stuck(case, cell):
    """Hard time limit of a task that is stuck, under `timeout=60`."""
    case.start("stuck", time_limit=LIMIT)
    released(case, cell, "failed: `TimeLimitExceeded`", BY_PARENT)
    assert error_of(case) == "TimeLimitExceeded"
    if RUNNING[case.mode]:
        wait_until(lambda: case.worker.logged(case.id, "Lock released for dead process"))


def test_killed_child(case, cell):
    """SIGKILL of the pool process, under `timeout=60`."""
    case.worker.kill_child(case.start(), case.id)
    released(case, cell, "failed: `WorkerLostError`", BY_PARENT)
    assert error_of(case) == "WorkerLostError"
    if RUNNING[case.mode]:
        wait_until(lambda: case.worker.logged(case.id, "Lock released for dead process"))


@pytest.fixture
def start_all(start_worker):
    """Start a worker, and a task of each mode on it."""
    with ExitStack() as stack:

        def start(kind):
            worker = start_worker()
            cases = [stack.enter_context(closing(Case(mode, worker, kind))) for mode in MODES]
            for case in cases:
                case.start()
            return worker, cases

        yield start


def test_killed_worker(start_all, worker, compare):
    """SIGKILL of the whole worker, under `timeout=2` and `acks_late`."""
    dead, cases = start_all("late_short")
    dead.kill()
    for case in cases:
        case.freed()
    worker.consume(dead.queue)
    deliver_again(*[case.result for case in cases])
    for case in cases:
        assert case.ends(times=2) == "ran"
        compare(case.mode, "the lease expires", "runs again after `visibility_timeout`")


def test_warm_shutdown(start_all, compare):
    """SIGTERM to the worker while it runs."""
    worker, cases = start_all("plain")
    worker.process.terminate()
    wait_until(lambda: worker.logged("Warm shutdown"))
    for case in cases:
        assert case.held() == RUNNING[case.mode]
        case.go()
        case.freed()
        assert outcome(case.result) == "ran"
        compare(case.mode, "held until the task ends, then released", "done")
    assert worker.process.wait(60) == 0


def test_revoked_queued(case, cell, mode):
    """Revoked while queued."""
    case.send(queue=case.queue)
    assert case.held() == QUEUED[mode]
    case.worker.revoke(case.id)
    assert case.held() == QUEUED[mode]
    case.worker.consume(case.queue)
    case.state("REVOKED")
    case.freed()
    assert not case.run.notes("begin")
    cell("queue lock released by the worker that receives it", "does not run", held=QUEUED)


def test_revoked_running(case, cell):
    """Revoked with `terminate=True` while it runs."""
    case.start()
    case.result.revoke(terminate=True)
    released(case, cell, "stopped", BY_ONE_OF_THEM)
    case.state("REVOKED")


def test_expired(case, cell, mode):
    """`expires=` passes while queued."""
    case.send(queue=case.queue, expires=EXPIRES)
    sent = time.monotonic()
    assert case.held() == QUEUED[mode]
    wait_until(lambda: time.monotonic() > sent + EXPIRES)
    case.freed()
    case.worker.consume(case.queue)
    case.state("REVOKED")
    assert not case.run.notes("begin")
    cell("queue lock expires with the task", "does not run", held=QUEUED)


def test_redelivered_alive(new_case, cell, mode):
    """Redelivered while it runs (`acks_late`, longer than `visibility_timeout`)."""
    case = new_case("late")
    case.start()
    deliver_again(case.result)
    if not RUNNING[mode]:
        case.begun(times=2)
        case.go()
        case.go()
        case.worker.done_with(case.id, deliveries=2)
        cell(NOTHING, "**runs twice at once**")
        return
    wait_until(lambda: case.worker.logged(case.id, " retry: "))
    assert len(case.run.notes("begin")) == 1
    case.go()
    assert outcome(case.result) == "ran"
    case.go()  # for the second execution, if it runs
    case.worker.done_with(case.id, deliveries=2)
    words = [text.split()[0] for text in case.run.notes()]
    # It runs if it was delivered after the release, and before the result was stored.
    assert words in (["begin", "end"], ["begin", "end"] * 2)
    case.freed()
    work = "the redelivered one is dropped after the first succeeds"
    cell("kept by the first; the redelivered one waits", work)


def test_redelivered_dead(new_case, cell, mode):
    """Redelivered after its pool process died (`reject_on_worker_lost`)."""
    case = new_case("stubborn")
    case.worker.kill_child(case.start(), case.id)
    tokens = case.tokens()
    wait_until(lambda: not tokens & case.tokens(), timeout=FREE_WITHIN)
    assert case.ends(times=2) == "ran"
    cell(f"{BY_PARENT}, then acquired again", "runs again")


def test_chord_member(case, cell, mode):
    """Member of a chord, skipped."""
    if QUEUED[mode]:
        case.send(queue=case.queue)
    else:
        case.start()
    before = case.tokens()
    to = case.worker.queue
    member = case.task.s(case.run.id).set(queue=to)
    result = chord([member, tasks.ready.s().set(queue=to)])(tasks.collect.s().set(queue=to))
    skipped, other = outcome(result)
    assert skipped is None
    assert isinstance(other, int)
    assert case.tokens() == before
    [note] = case.run.notes("skipped")
    assert note.endswith(f" by {case.id}")
    case.worker.consume(case.queue)
    assert case.ends(times=1) == "ran"
    cell("kept by the other task", "returns None: the chord continues", held=ALWAYS)


def eagerly(case, send):
    case.result = SimpleNamespace(id=uuid.uuid4().hex)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(send, (case.run.id,), task_id=case.id)
        case.begun()
        assert case.held() == RUNNING[case.mode]
        case.go()
        assert future.result().get() == "ran"
    case.freed()


def test_eager(new_case, cell, monkeypatch):
    """Eager: `apply()`, `task_always_eager`."""
    monkeypatch.setattr(tasks.app.conf, "task_always_eager", True)
    called, sent = new_case(), new_case()
    eagerly(called, called.task.apply)
    eagerly(sent, sent.task.apply_async)
    cell("held while it runs, then released", "runs in the caller")


@pytest.fixture
def on_restarted(restarted_server, settings):
    """The manager of locks on the server that restarts."""
    settings.CACHES = settings.CACHES | {
        "restarted": settings.CACHES["default"] | {"LOCATION": restarted_server.url}
    }
    return locks.using("restarted")


def restart(server):
    server.stop()
    server.start()


def test_restarted_while_queued(new_case, cell, mode, restarted_server, on_restarted):
    """Redis restarts empty while it is queued."""
    case = new_case("restarted", manager=on_restarted)
    case.send(queue=case.queue)
    assert case.held() == QUEUED[mode]
    restart(restarted_server)
    assert not case.held()
    case.worker.consume(case.queue)
    assert case.ends(times=1) == "ran"
    cell("queue lock lost with the data", "runs", held=QUEUED)


def test_restarted_and_sent_again(new_case, cell, mode, restarted_server, on_restarted):
    """Redis restarts empty while it is queued, then a second task is sent."""
    first, second = (new_case("restarted", manager=on_restarted) for _ in range(2))
    second.share(first)
    first.send(queue=first.queue)
    restart(restarted_server)
    assert second.send(queue=first.queue).id != first.id
    first.worker.consume(first.queue)
    if mode == "until_executing":
        first.run.wait_for("begin", 2)
        first.go()
        first.go()
        work = "both run, **perhaps at once**"
    elif mode == "while_executing":
        first.run.wait_for("skipped")
        first.go()
        work = "one runs, the other is skipped"
    else:
        wait_until(
            lambda: any(first.worker.logged(each.id, " retry: ") for each in (first, second))
        )
        first.run.wait_for("begin")
        assert len(first.run.notes("begin")) == 1
        first.go()
        first.run.wait_for("begin", 2)
        first.go()
        work = "both run, one after the other"
    answers = {outcome(each.result) for each in (first, second)}
    assert answers == ({"ran", None} if mode == "while_executing" else {"ran"})
    wait_until(lambda: on_restarted.get(first.name) is None)
    cell("queue lock lost; the second task can be sent", work, held=QUEUED)


def test_restarted_while_running(new_case, cell, mode, restarted_server, on_restarted):
    """Redis restarts empty while it runs, under `timeout=2`."""
    case = new_case("restarted", manager=on_restarted)
    case.start("lose")
    case.go()
    case.run.wait_for("end")
    restart(restarted_server)
    [note] = case.run.wait_for("lost")
    assert note == f"lost {bool(RUNNING[mode])}"
    assert not case.held()
    case.go()
    assert outcome(case.result) == "ran"
    cell("lost with the data; the task is notified", "continues")
