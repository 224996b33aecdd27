"""Each way in which a task can end, in each mode, with the effects on its lock and its work.

A test is a row of the table in the docs, named by the first line of its docstring. The parameter
is the column.
"""

import gc
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest
from celery import chord

from django_redislock import locks
from django_redislock.tasks.deliveries import Action, Delivery, Holder
from django_redislock.testing import EmbeddedServer
from tests.celery_worker import FREE_WITHIN, MARKS, outcome
from tests.tools import wait_until

from . import cases_app as tasks
from . import table_of_deliveries
from .cases import QUEUED, REQUEUED, RUNNING, Case, CasesWorker, deliver_again
from .cases_app import MODES

pytestmark = [*MARKS, pytest.mark.parametrize("mode", MODES)]

NOTHING = "no lock held"

BY_PARENT = "released by the worker"

BY_ONE_OF_THEM = "released by the pool process or the worker"

LIMIT = 2
"""Both time limits, in seconds."""

EXPIRES = 2
"""In seconds."""


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
def cell(request, mode):
    """Record a cell of the table. `held` says which locks the mode holds at that time.

    `deliveries` says what was seen of each delivery: the holder that it met, and what happened.
    """

    def note(*, lock, work, within=None, held=RUNNING, deliveries=()):
        for delivery, holder, action in deliveries:
            assert table_of_deliveries.action(delivery, mode, holder) is action
        row = request.function
        cell = {
            "row": row.__name__,
            "line": row.__code__.co_firstlineno,
            "title": row.__doc__.splitlines()[0].rstrip("."),
            "mode": mode,
            "lock": lock if held[mode] else NOTHING,
            "within": within if held[mode] else None,
            "work": work,
        }
        request.node.user_properties.append(("cell", cell))

    return note


ALWAYS = dict.fromkeys(MODES, True)
"""For cells whose text does not depend on the held locks."""


def released(case, cell, since, work, lock="released by the pool process", deliveries=()):
    """Wait until no lock is held, and record the cell."""
    cell(lock=lock, within=case.freed(since=since), work=work, deliveries=deliveries)


def error_of(case):
    return type(outcome(case.result)).__name__


def test_normal_end(case, cell):
    """Normal end."""
    case.start()
    began = case.go()
    assert outcome(case.result) == "ran"
    released(case, cell, began, "done", deliveries=[(Delivery.FIRST, Holder.NOBODY, Action.RUN)])


def test_exception(case, cell):
    """Exception."""
    case.start("error")
    began = case.go()
    assert error_of(case) == "LookupError"
    released(case, cell, began, "failed")


def test_ignore(case, cell):
    """`raise Ignore()`."""
    case.start("ignore")
    began = case.go()
    case.run.wait_for("end")
    released(case, cell, began, "done; Celery stores no result")
    assert case.result.state == "STARTED"


def test_reject(new_case, cell):
    """`raise Reject(requeue=False)`."""
    case = new_case("late")
    case.start("reject")
    began = case.go()
    released(case, cell, began, "dropped, or dead-lettered by the broker")
    case.worker.done_with(case.id)


def test_requeue(new_case, cell):
    """`raise Reject(requeue=True)`, with `acks_late`."""
    case = new_case("late")
    case.send("requeue", queue=case.queue)
    case.worker.consume(case.queue)
    case.begun()
    case.worker.ignore(case.queue)
    began = case.go()
    case.worker.done_with(case.id)
    seconds = case.kept(REQUEUED[case.mode], since=began)
    case.worker.consume(case.queue)
    assert case.ends(times=2) == "ran"
    lock = "kept as the queue lock" if REQUEUED[case.mode] else "released by the pool process"
    seen = (Delivery.REDELIVERED, Holder.NOBODY, Action.RUN)
    cell(lock=lock, within=seconds, work="runs again", deliveries=[seen])


def test_requeue_acknowledged(case, cell):
    """`raise Reject(requeue=True)`, acknowledged early."""
    case.start("requeue")
    began = case.go()
    case.worker.done_with(case.id)
    released(case, cell, began, "dropped by Celery")


RETRIED = {
    "while_executing": "released, then acquired again",
    "until_executing": "queue lock held until the retry starts",
    "until_executed": "kept for the retry",
    "until_and_while_executing": "lock released, queue lock held",
}


def retries(case, cell, between, lock):
    began = case.go()
    case.state("RETRY")
    seconds = case.kept(between, since=began)
    assert case.ends(times=2) == "ran"
    seen = (Delivery.RETRY, Holder.NOBODY, Action.RUN)
    cell(lock=lock, within=seconds, work="runs again", held=ALWAYS, deliveries=[seen])


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
        cell(lock=NOTHING, work="`ValueError` at import")
        return
    case = new_case("holding")
    case.start("retry")
    retries(case, cell, {"queue lock"}, RETRIED["until_executed"])


def test_soft_limit(case, cell):
    """Soft time limit."""
    case.start(soft_time_limit=LIMIT)
    struck = time.monotonic() + LIMIT
    assert error_of(case) == "SoftTimeLimitExceeded"
    released(case, cell, struck, "failed")


def test_hard_limit(case, cell):
    """Hard time limit, under `timeout=60`."""
    case.start(time_limit=LIMIT)
    struck = time.monotonic() + LIMIT
    released(case, cell, struck, "failed: `TimeLimitExceeded`", BY_ONE_OF_THEM)
    assert error_of(case) == "TimeLimitExceeded"


def test_hard_limit_stuck(case, cell):
    """Hard time limit of a task that is stuck, under `timeout=60`."""
    case.start("stuck", time_limit=LIMIT)
    struck = time.monotonic() + LIMIT
    released(case, cell, struck, "failed: `TimeLimitExceeded`", BY_PARENT)
    assert error_of(case) == "TimeLimitExceeded"
    if RUNNING[case.mode]:
        wait_until(lambda: case.worker.logged(case.id, "Lock released for dead process"))


def test_killed_child(case, cell):
    """SIGKILL of the pool process, under `timeout=60`."""
    case.worker.kill_child(case.start(), case.id)
    killed = time.monotonic()
    released(case, cell, killed, "failed: `WorkerLostError`", BY_PARENT)
    assert error_of(case) == "WorkerLostError"
    if RUNNING[case.mode]:
        wait_until(lambda: case.worker.logged(case.id, "Lock released for dead process"))


def test_killed_worker(start_worker, worker, cell, mode):
    """SIGKILL of the whole worker, under `timeout=2` and `acks_late`."""
    dead = start_worker()
    with closing(Case(mode, dead, "late_short")) as case:
        case.start()
        dead.kill()
        seconds = case.freed(since=time.monotonic())
        worker.consume(dead.queue)
        deliver_again(case.result)
        assert case.ends(times=2) == "ran"
    work = "runs again after `visibility_timeout`"
    cell(lock="the lease expires", within=seconds, work=work)


def test_warm_shutdown(start_worker, cell, mode):
    """SIGTERM to the worker while it runs."""
    worker = start_worker()
    with closing(Case(mode, worker)) as case:
        case.start()
        worker.process.terminate()
        wait_until(lambda: worker.logged("Warm shutdown"))
        assert case.held() == RUNNING[mode]
        began = case.go()
        seconds = case.freed(since=began)
        assert outcome(case.result) == "ran"
        assert worker.process.wait(60) == 0
    cell(lock="held until the task ends, then released", within=seconds, work="done")


def test_revoked_queued(case, cell, mode):
    """Revoked while queued."""
    case.send(queue=case.queue)
    assert case.held() == QUEUED[mode]
    case.worker.revoke(case.id)
    assert case.held() == QUEUED[mode]
    case.worker.consume(case.queue)
    began = time.monotonic()
    case.state("REVOKED")
    seconds = case.freed(since=began)
    assert not case.run.notes("begin")
    lock = "queue lock released by the worker that receives it"
    cell(lock=lock, within=seconds, work="does not run", held=QUEUED)


def test_revoked_running(case, cell):
    """Revoked with `terminate=True` while it runs."""
    case.start()
    began = time.monotonic()
    case.result.revoke(terminate=True)
    released(case, cell, began, "stopped", BY_ONE_OF_THEM)
    case.state("REVOKED")


def test_expired(case, cell, mode):
    """`expires=` passes while queued."""
    case.send(queue=case.queue, expires=EXPIRES)
    sent = time.monotonic()
    assert case.held() == QUEUED[mode]
    wait_until(lambda: time.monotonic() > sent + EXPIRES)
    seconds = case.freed(since=sent + EXPIRES)
    case.worker.consume(case.queue)
    case.state("REVOKED")
    assert not case.run.notes("begin")
    lock = "queue lock expires with the task"
    cell(lock=lock, within=seconds, work="does not run", held=QUEUED)


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
        seen = (Delivery.REDELIVERED, Holder.ITSELF, Action.RUN)
        cell(lock=NOTHING, work="**runs twice at once**", deliveries=[seen])
        return
    wait_until(lambda: case.worker.logged(case.id, " retry: "))
    assert len(case.run.notes("begin")) == 1
    case.go()
    assert outcome(case.result) == "ran"
    case.go()  # for the second execution, if it runs
    case.worker.done_with(case.id, deliveries=2)
    words = [text.split()[0] for text in case.run.notes()]
    assert words in (["begin", "end"], ["begin", "end"] * 2)
    work = (
        "the redelivered one runs after it"
        if words[2:]
        else "the redelivered one is dropped after the first succeeds"
    )
    case.freed()
    seen = (Delivery.REDELIVERED, Holder.ITSELF, Action.RUN_LATER)
    cell(lock="kept by the first; the redelivered one waits", work=work, deliveries=[seen])


def test_redelivered_dead(new_case, cell, mode):
    """Redelivered after its pool process died (`reject_on_worker_lost`)."""
    case = new_case("stubborn")
    case.worker.kill_child(case.start(), case.id)
    killed, tokens = time.monotonic(), case.tokens()
    wait_until(lambda: not tokens & case.tokens(), timeout=FREE_WITHIN)
    seconds = time.monotonic() - killed
    assert case.ends(times=2) == "ran"
    seen = (Delivery.REDELIVERED, Holder.NOBODY, Action.RUN)
    lock = f"{BY_PARENT}, then acquired again"
    cell(lock=lock, within=seconds, work="runs again", deliveries=[seen])


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
    work = "returns None: the chord continues"
    delivery = Delivery.DUPLICATE if QUEUED[mode] else Delivery.FIRST
    seen = (delivery, Holder.OTHER, Action.POLICY)
    cell(lock="kept by the other task", work=work, held=ALWAYS, deliveries=[seen])


def eagerly(case, send):
    case.result = SimpleNamespace(id=uuid.uuid4().hex)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(send, (case.run.id,), task_id=case.id)
        case.begun()
        assert case.held() == RUNNING[case.mode]
        began = case.go()
        assert future.result().get() == "ran"
    return case.freed(since=began)


def test_eager(new_case, cell, monkeypatch):
    """Eager: `apply()`, `task_always_eager`."""
    monkeypatch.setattr(tasks.app.conf, "task_always_eager", True)
    called, sent = new_case(), new_case()
    eagerly(called, called.task.apply)
    seconds = eagerly(sent, sent.task.apply_async)
    seen = (Delivery.CALLED, Holder.NOBODY, Action.RUN)
    lock = "held while it runs, then released"
    cell(lock=lock, within=seconds, work="runs in the caller", deliveries=[seen])


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
    return time.monotonic()


def test_restarted_while_queued(new_case, cell, mode, restarted_server, on_restarted):
    """Redis restarts empty while it is queued."""
    case = new_case("restarted", manager=on_restarted)
    case.send(queue=case.queue)
    assert case.held() == QUEUED[mode]
    restart(restarted_server)
    assert not case.held()
    case.worker.consume(case.queue)
    assert case.ends(times=1) == "ran"
    cell(lock="queue lock lost with the data", work="runs", held=QUEUED)


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
        work, action = "both run, **perhaps at once**", Action.RUN
    elif mode == "while_executing":
        first.run.wait_for("skipped")
        first.go()
        work, action = "one runs, the other is skipped", Action.POLICY
    else:
        wait_until(
            lambda: any(first.worker.logged(each.id, " retry: ") for each in (first, second))
        )
        first.run.wait_for("begin")
        assert len(first.run.notes("begin")) == 1
        first.go()
        first.run.wait_for("begin", 2)
        first.go()
        work, action = "both run, one after the other", Action.RUN_LATER
    answers = {outcome(each.result) for each in (first, second)}
    assert answers == ({"ran", None} if mode == "while_executing" else {"ran"})
    wait_until(lambda: on_restarted.get(first.name) is None)
    lock = "queue lock lost; the second task can be sent"
    seen = (Delivery.FIRST, Holder.OTHER, action)
    cell(lock=lock, work=work, held=QUEUED, deliveries=[seen])


def test_restarted_while_running(new_case, cell, mode, restarted_server, on_restarted):
    """Redis restarts empty while it runs, under `timeout=2`."""
    case = new_case("restarted", manager=on_restarted)
    case.start("lose")
    case.go()
    case.run.wait_for("end")
    began = restart(restarted_server)
    [note] = case.run.wait_for("lost")
    seconds = time.monotonic() - began
    assert note == f"lost {bool(RUNNING[mode])}"
    assert not case.held()
    case.go()
    assert outcome(case.result) == "ran"
    cell(lock="lost with the data; the task is notified", within=seconds, work="continues")
