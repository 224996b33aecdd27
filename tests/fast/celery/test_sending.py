"""A task takes its place when it is sent: what becomes of a second one, and of the place."""

import functools
import gc
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec

import celery._state
import pytest
from celery import Celery, Task, chain, chord, group, shared_task
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Ignore, Reject, Retry
from celery.result import AsyncResult, EagerResult
from celery.signals import after_task_publish, task_failure, task_revoked
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.celery import current_lock
from django_redislock.celery.conflict import deliverable
from django_redislock.celery.message import AGAIN, CONFLICTS, DUPLICATE, EXPECTED, PLACE
from django_redislock.celery.single import place_token, single_of
from django_redislock.primitives import Place
from django_redislock.signals import task_replaced, task_skipped
from django_redislock.values import LONGEST_LEASE
from tests.lock_tools import start
from tests.round_trips import RoundTrips
from tests.tools import Child, wait_until

WHEN_SENT = ["until_executing", "until_executed", "until_and_while_executing"]


class OwnCelery(Celery):
    """An app whose tasks are not shared with all other apps of this process."""

    def task(self, *args, **options):
        return super().task(*args, **{"shared": False, **options})


@pytest.fixture
def app():
    app = OwnCelery(
        "tests.own", broker="memory://", backend="cache+memory://", set_as_current=False
    )
    yield app
    app.close()
    gc.collect()


@pytest.fixture
def name():
    """A lock's name of this test's own, of which nothing is left."""
    name = f"sent-{uuid.uuid4().hex}"
    yield name
    for each in held_by(name):
        locks.force_release(each)


@pytest.fixture
def sent():
    """The messages that were sent, each as its headers."""
    told = []

    def listen(headers, **_):
        told.append(headers)

    after_task_publish.connect(listen)
    yield told
    after_task_publish.disconnect(listen)


@pytest.fixture
def told():
    """What the signals told."""
    told = []

    def skipped(signal, **facts):
        told.append(("skipped", facts["task_id"], facts["holder_task_id"]))

    def replaced(signal, **facts):
        told.append(("replaced", facts["task_id"], facts["by_task_id"]))

    task_skipped.connect(skipped)
    task_replaced.connect(replaced)
    yield told
    task_skipped.disconnect(skipped)
    task_replaced.disconnect(replaced)


def held_by(name):
    """Who holds what of this test."""
    return {info.name: info.holder.task_id for info in locks.active(f"{name}*")}


def work_off(app, task, *args, headers=None, kwargs=None, redelivered=False, traced=False):
    """As a worker executes the message `own`."""
    task = app.tasks[task.name]
    came = {"exchange": "", "routing_key": "celery", "redelivered": redelivered}
    request = {"id": "own", "retries": 0, "is_eager": False, "delivery_info": came}
    request |= {"args": args, "kwargs": kwargs or {}}
    request |= {**headers, "headers": {"trace": "1"}} if traced else {"headers": headers}
    return build_tracer(task.name, task, app=app)("own", args, kwargs or {}, request).retval


def make(app, name, mode="until_executed", body=lambda: "ran", task=None, **options):
    """A task with a place of that name."""

    def work(*args, **kwargs):
        return body()

    made = app.task(name=f"tests.{name}", **(task or {}))(work)
    return single_instance(mode=mode, key=lambda *args, **kwargs: name, **options)(made)


def place_of(name, mode="until_executed"):
    return locks.get(f"{name}:queued" if mode == "until_and_while_executing" else name)


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_the_place_is_bound_to_the_message(app, name, sent, mode):
    result = make(app, name, mode).delay()
    info = place_of(name, mode)
    assert info.holder.task_id == result.id
    assert info.holder.task_name == f"tests.{name}"
    assert 3590 < info.ttl <= 3600
    [headers] = sent
    assert (headers["id"], headers[PLACE]) == (result.id, place_of(name, mode).name)


def reports(app, name, key, **options):
    """Make a task that has a lock and a queue lock for each user."""

    @single_instance(mode="until_and_while_executing", key=key, **options)
    @app.task(name=f"tests.{name}")
    def report(user):
        return current_lock().name

    return report


@pytest.mark.parametrize("as_callable", [False, True])
def test_no_lock_has_the_name_of_a_queue_lock(app, name, sent, as_callable):
    template = f"{name}:{{user}}"
    key = (lambda user: template.format(user=user)) if as_callable else template
    report = reports(app, name, key)
    assert work_off(app, report, "bob") == f"{name}:bob"
    refused = f"'{name}:bob:queued' must not end with ':queued'"
    with pytest.raises(ValueError, match=refused):
        report.delay("bob:queued")
    failure = work_off(app, report, "bob:queued")
    assert isinstance(failure.exception, ValueError)
    assert re.search(refused, str(failure.exception))
    assert held_by(name) == {}
    report.delay("bob")
    assert len(sent) == 1


def test_a_key_that_ends_like_a_queue_lock_is_refused_at_import(app, name):
    with pytest.raises(ValueError, match=r"^key='\{user\}:queued' must not end with ':queued'"):
        reports(app, name, "{user}:queued")


def test_a_key_may_end_like_a_queue_lock_if_there_is_none(app, name):
    @app.task
    @single_instance(key="{name}:queued")
    def work(name):
        return current_lock().name

    assert work(name) == f"{name}:queued"


def test_a_uuid_that_its_sender_chose_is_its_id_as_text(app, name, sent):
    task_id = uuid.uuid4()
    result = make(app, name).apply_async(task_id=task_id)
    assert {result.id, sent[0]["id"], locks.get(name).holder.task_id} == {str(task_id)}


def test_a_uuid_is_the_id_of_what_runs_as_text_too(app, name):
    task_id = uuid.uuid4()

    @app.task
    @single_instance(key=name)
    def work():
        return locks.get(name).holder.task_id

    assert work.apply(task_id=task_id).get() == str(task_id)


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_a_second_one_gets_the_result_of_the_first(app, name, sent, told, mode):
    task = make(app, name, mode)
    first, second = task.delay(), task.delay()
    assert isinstance(second, AsyncResult)
    assert second.id == first.id
    assert len(sent) == 1
    [(what, own, holder)] = told
    assert (what, holder) == ("skipped", first.id)
    assert own != first.id


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_a_place_is_one_round_trip(app, name, mode):
    task = make(app, name, mode)
    for _ in range(2):  # the server knows the scripts
        task.delay()
    locks.force_release(place_of(name, mode).name)
    taken = []
    for _ in range(2):
        with RoundTrips(of_this_thread=True) as made:
            task.delay()
        taken.append(made.count)
    assert taken == [1, 2]  # the second one learns who has it


def test_a_second_one_is_told(app, name, sent):
    task = make(app, name, on_conflict="raise")
    first = task.delay()
    with pytest.raises(AlreadyRunning) as caught:
        task.delay()
    assert (caught.value.name, caught.value.task_id) == (name, first.id)
    assert 0 < caught.value.expires_in <= 3600
    assert len(sent) == 1


def test_where_the_holder_is_no_task_it_is_told(app, name, sent):
    task = make(app, name, on_conflict="raise")
    with locks.lock(name), pytest.raises(AlreadyRunning) as caught:
        task.delay()
    assert (caught.value.name, caught.value.task_id) == (name, None)
    assert not sent


def test_where_the_holder_is_no_task_and_has_no_result_it_is_sent(app, name, sent):
    task = make(app, name)
    with locks.lock(name):
        result = task.delay()
    assert [(each["id"], each[DUPLICATE]) for each in sent] == [(result.id, "")]


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_a_second_one_replaces_the_first(app, name, sent, told, mode):
    task = make(app, name, mode, on_conflict="replace")
    first, second = task.delay(), task.delay()
    assert place_of(name, mode).holder.task_id == second.id
    assert told == [("replaced", first.id, second.id)]
    assert [each["id"] for each in sent if "id" in each] == [first.id, second.id]


@pytest.fixture
def revoked(monkeypatch):
    """The ids that workers were told to revoke."""
    ids = []
    monkeypatch.setattr(
        "celery.app.control.Control.revoke", lambda self, task_id: ids.append(task_id)
    )
    return ids


def test_only_the_replaced_task_is_revoked(app, name, revoked):
    task = make(app, name, on_conflict="replace")
    first, second = task.delay(), task.delay()
    assert revoked == [first.id]
    assert app.AsyncResult(first.id).state == "REVOKED"
    assert place_of(name).holder.task_id == second.id


def outcomes(name, task_id):
    """What the history has of a task, the earliest event first."""
    events = reversed(locks.history(name))
    return [event.outcome for event in events if event.holder.task_id == task_id]


def test_the_history_has_a_duplicate_that_meets_a_running_task_as_skipped(app, name):
    task = make(app, name, on_conflict="replace", body=lambda: start(task.delay).result())
    task.apply(task_id="running")
    refused = [each for each in locks.history(name) if each.acquired_at is None]
    assert [each.outcome for each in refused] == ["skipped"]
    assert refused[0].holder.task_id != "running"


def test_the_history_has_no_refusal_of_a_task_that_replaces_another(app, name):
    task = make(app, name, on_conflict="replace")
    first, second = task.delay(), task.delay()
    assert "passed" in outcomes(name, first.id)
    assert not {"skipped", "refused"} & set(outcomes(name, second.id))


def test_with_a_limit_a_task_replaces_another_only_if_all_places_are_taken(app, name, told):
    task = make(app, name, on_conflict="replace", limit=2)
    first, second = task.delay(), task.delay()
    assert told == []
    assert len(locks.get(name).holders) == 2
    third = task.delay()
    assert [what for what, *_ in told] == ["replaced"]
    assert told[0][1] in {first.id, second.id}
    assert told[0][2] == third.id


@pytest.mark.parametrize("on_conflict", ["skip", "wait"])
def test_the_history_has_no_redelivered_message_as_skipped(app, name, on_conflict):
    again = []

    def deliver_again():
        found = start(lambda: work_off(app, task, redelivered=True)).result()
        again.append(found.type)

    task = app.task(name=f"tests.{name}")(
        single_instance(key=name, on_conflict=on_conflict)(deliver_again)
    )
    work_off(app, task)
    assert again == [Retry]
    assert outcomes(name, "own") == ["released"]


def record_key(redis_server, name):
    [key] = redis_server.scan_iter(f"*:lock:{name}")
    return key


@pytest.mark.parametrize("source", ["this lock", "another lock"])
def test_a_forged_queue_lock_has_no_task_revoked(app, name, revoked, redis_server, source):
    """The forger can read and write Redis, and knows everything but SECRET_KEY."""
    task = make(app, name, on_conflict="replace")
    queued = task.delay().id
    key, field = record_key(redis_server, name), f"h:{place_token(queued)}"
    if source == "this lock":
        victim = uuid.uuid4().hex
        record = redis_server.hget(key, field).replace(queued, victim)
    else:
        victim = make(app, f"{name}-other", on_conflict="replace").delay().id
        other_key = record_key(redis_server, f"{name}-other")
        record = redis_server.hget(other_key, f"h:{place_token(victim)}")
    redis_server.hdel(key, field)
    redis_server.hset(key, f"h:{place_token(victim)}", record)
    assert locks.get(name).holder.task_id == victim
    newer = task.delay()
    assert locks.get(name).holder.task_id == newer.id
    assert revoked == []
    assert app.AsyncResult(victim).state == "PENDING"


def test_one_that_runs_is_not_replaced(app, name, told):
    task = make(app, name, on_conflict="replace", body=lambda: task.delay().id)
    result = task.apply(task_id="running")
    assert result.get() == "running"
    assert [what for what, *_ in told] == ["skipped"]
    assert locks.get(name) is None


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_as_many_have_a_place_as_the_limit_allows(app, name, sent, mode):
    task = make(app, name, mode, limit=2)
    ids = {task.delay().id for _ in range(4)}
    assert len(sent) == 2
    assert {each.holder.task_id for each in place_of(name, mode).holders} == ids


SENDS = {
    "delay": lambda task: task.delay(),
    "apply_async": lambda task: task.apply_async(),
    "positional": lambda task: task.apply_async((), {}, None, None, None, None, "shadow"),
    "signature": lambda task: task.s().delay(),
    "immutable": lambda task: task.si().apply_async(),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_however_it_is_sent(app, name, sent, send):
    task = make(app, name)
    assert send(task).id == send(task).id
    assert len(sent) == 1


IN_CANVAS = {
    "chain": lambda task: chain(task.si(), task.si()),
    "group": lambda task: group(task.si(), task.si()),
    "chord": lambda task: chord([task.si(), task.si()], task.si()),
    "own id": lambda task: task.si().set(task_id=uuid.uuid4().hex),
    "link": lambda task: task.si().set(link=task.si()),
    "link_error": lambda task: task.si().set(link_error=task.si()),
}


@pytest.mark.parametrize("canvas", IN_CANVAS.values(), ids=IN_CANVAS)
@pytest.mark.parametrize("on_conflict", ["skip", "raise"])
def test_whose_result_is_expected_is_sent_to_end_without_running(
    app, name, sent, canvas, on_conflict
):
    task = make(app, name, on_conflict=on_conflict)
    first = task.delay()
    canvas(task).apply_async()
    assert sent[1:]
    assert {each[DUPLICATE] for each in sent[1:]} == {first.id}


def test_a_message_to_end_without_running_ends_so(app, name, told):
    ran = []
    task = make(app, name, body=lambda: ran.append(1))
    assert task.apply(task_id="second", headers={DUPLICATE: "first"}).get() is None
    assert told == [("skipped", "second", "first")]
    assert not ran


def test_a_message_to_be_refused_is_refused(app, name):
    task = make(app, name, on_conflict="raise")
    with pytest.raises(AlreadyRunning) as caught:
        task.apply(headers={DUPLICATE: "first"}).get()
    assert caught.value.task_id == "first"


@pytest.mark.django_db(transaction=True)
def test_it_is_sent_on_commit_if_it_is_committed(app, name, sent):
    task = make(app, name, task={"base": DjangoTask})
    with transaction.atomic():
        task.delay_on_commit()
        transaction.set_rollback(True)
    assert locks.get(name) is None
    with transaction.atomic():
        task.delay_on_commit()
        assert locks.get(name) is None
    assert locks.get(name).holder.task_id == sent[0]["id"]


def test_what_could_not_be_sent_has_no_place(app, name):
    class Unsendable(Task):
        def apply_async(self, *args, **options):
            raise OperationalError("no broker")

    with pytest.raises(OperationalError):
        make(app, name, task={"base": Unsendable}).delay()
    assert locks.get(name) is None


def test_where_redis_is_away_nothing_is_sent(app, name, sent, settings):
    away = {"BACKEND": settings.CACHES["default"]["BACKEND"], "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "away": away}
    with pytest.raises(ConnectionError):
        make(app, name, using="away").delay()
    assert not sent


def test_a_replaced_one_that_can_not_be_revoked_is_told_of(app, name, told, monkeypatch, caplog):
    def revoke(task_id):
        raise OperationalError("no broker")

    monkeypatch.setattr(app.control, "revoke", revoke)
    task = make(app, name, on_conflict="replace")
    first, second = task.delay(), task.delay()
    assert told == [("replaced", first.id, second.id)]
    assert f"Task {first.id} could not be revoked: no broker" in caplog.text


def test_workers_are_told_of_a_replaced_one_also_where_the_backend_can_not_be(
    app, name, told, monkeypatch, caplog, tmp_path
):
    app.conf.result_backend = tmp_path.as_uri()
    revoked = []
    monkeypatch.setattr(app.control, "revoke", revoked.append)
    task = make(app, name, on_conflict="replace")
    first = task.delay()
    tmp_path.rmdir()
    second = task.delay()
    assert told == [("replaced", first.id, second.id)]
    assert revoked == [first.id]
    assert f"Task {first.id} could not be revoked" in caplog.text


def test_a_task_that_replaces_another_is_not_told_as_revoked_itself(name, told):
    with OwnCelery("tests.rpc", broker="memory://", backend="rpc://", set_as_current=False) as app:
        task = make(app, name, on_conflict="replace")

        @app.task(name=f"tests.{name}.sender")
        def sender():
            return [task.delay().id for _ in range(2)]

        with app.connection() as connection, connection.SimpleQueue(name) as answers:
            request = {"reply_to": name, "correlation_id": "own", "is_eager": False}
            build_tracer(sender.name, sender, app=app)("own", (), {}, request)
            first, second = answers.get(timeout=10).payload["result"]
            assert told == [("replaced", first, second)]
            assert answers.qsize() == 0


@pytest.mark.parametrize("broker", ["amqp://", "memory://"])
@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_who_is_sent_again_waits_for_what_the_queue_can_delay_by(broker, kind):
    with OwnCelery("tests.quorum", broker=broker, set_as_current=False) as app:
        app.conf.task_default_queue_type = kind
        known = find_spec("celery.utils.quorum_queues")  # not before Celery 5.5
        whole_seconds = known and broker == "amqp://" and kind == "quorum"
        task = make(app, "unused")
        wanted = [deliverable(task, seconds) for seconds in (0, 0.5, 1.5)]
        assert wanted == [0, 1 if whole_seconds else 0.5, 1.5]


LASTS = [
    ({}, 3600),
    ({"countdown": 100}, 3700),
    ({"eta": timedelta(seconds=50)}, 3650),
    ({"expires": 20}, 20),
    ({"expires": timedelta(seconds=30)}, 30),
    ({"expires": 20, "countdown": 100}, 20),
    ({"expires": 10_000}, 3600),
    ({"expires": -5}, 1),
]


@pytest.mark.parametrize(("options", "seconds"), LASTS, ids=str)
def test_a_place_lasts_as_long_as_its_message_may_wait(app, name, options, seconds):
    moments = {
        key: datetime.now(UTC) + value if isinstance(value, timedelta) else value
        for key, value in options.items()
    }
    make(app, name).apply_async(**moments)
    assert seconds - 3 < locks.get(name).ttl <= seconds


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_the_place_of_what_is_put_off_for_ages_lasts_for_ten_years(app, name, mode, sent):
    task = make(app, name, mode)
    first = task.apply_async(eta=datetime(9999, 1, 1, tzinfo=UTC))
    assert task.apply_async().id == first.id == place_of(name, mode).holder.task_id
    assert place_of(name, mode).ttl <= LONGEST_LEASE
    assert len(sent) == 1


def test_how_long_it_may_wait_can_be_told(app, name):
    make(app, name, queue_timeout=timedelta(minutes=5)).delay()
    assert 295 < locks.get(name).ttl <= 300


# A limit that is given to a task, or taken away, while others are queued or run

LIMITS = [(None, 2), (2, None)]


def as_before(name, limit):
    """A lock as a task of that limit has it."""
    return locks.lock(name) if limit is None else locks.semaphore(name, limit)


@pytest.mark.parametrize(("before", "now"), LIMITS)
@pytest.mark.parametrize("options", [{}, {"at_least_for": 0.01}], ids=str)
@pytest.mark.parametrize("mode", WHEN_SENT)
def test_what_was_sent_under_another_limit_runs(app, name, mode, options, before, now):
    task = make(app, name, mode, limit=now, **options)
    kept = f"{name}:queued" if mode == "until_and_while_executing" else name
    Place(as_before(kept, before), place_token("own"), (task.name, "own")).take(60)
    assert work_off(app, task, headers={PLACE: kept}) == "ran"
    wait_until(lambda: held_by(name) == {})


@pytest.mark.parametrize(("before", "now"), LIMITS)
def test_what_is_sent_while_one_of_another_limit_has_the_place_gives_way(app, name, before, now):
    task = make(app, name, limit=now)
    Place(as_before(name, before), place_token("own"), (task.name, "own")).take(60)
    assert task.delay().id == "own"


@pytest.mark.parametrize(("before", "now"), LIMITS)
@pytest.mark.parametrize("on_conflict", ["skip", "raise", "wait"])
def test_who_meets_one_of_another_limit_does_what_is_to_be_done(name, on_conflict, before, now):
    alone = single_instance(key=name, on_conflict=on_conflict, limit=now)(lambda: "ran")
    with as_before(name, before):
        if on_conflict == "skip":
            assert alone() is None
        else:
            with pytest.raises(AlreadyRunning):
                alone()
    assert alone() == "ran"


# Its execution


@pytest.fixture
def eager(app):
    app.conf.task_always_eager = True
    return app


def state_of(name):
    """Who has the lock and who the place, while a task runs."""
    held, queued = locks.get(name), locks.get(f"{name}:queued")
    return held and held.holder.task_id, queued and queued.holder.task_id


@pytest.mark.parametrize(
    ("mode", "held"),
    [("until_executing", False), ("until_executed", True), ("until_and_while_executing", True)],
)
def test_what_is_held_while_it_runs(eager, name, mode, held):
    task = make(eager, name, mode, body=lambda: [*state_of(name), current_lock() is not None])
    result = task.delay()
    assert result.get() == [result.id if held else None, None, held]
    assert state_of(name) == (None, None)


def test_in_eager_mode_a_second_one_ends_without_running(eager, name, told):
    task = make(eager, name, body=lambda: task.delay())
    second = task.delay().get()
    assert isinstance(second, EagerResult)
    assert (second.get(), second.state) == (None, "SUCCESS")
    assert len(told) == 1


def test_without_a_place_it_takes_one_as_it_begins(app, name):
    task = make(app, name, body=lambda: state_of(name))
    assert task.apply(task_id="alone").get() == ("alone", None)
    assert locks.get(name) is None


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_without_a_place_it_is_skipped_where_another_has_it(app, name, told, mode):
    task = make(app, name, mode)
    first = task.delay()
    assert task.apply(task_id="second").get() is None
    assert told == [("skipped", "second", first.id)]
    assert place_of(name, mode).holder.task_id == first.id


def fails():
    raise LookupError("broken")


def test_one_that_fails_leaves_nothing(eager, name):
    assert isinstance(make(eager, name, body=fails).delay().result, LookupError)
    assert locks.get(name) is None


def test_one_that_is_requeued_keeps_its_place(app, name):
    def requeue():
        raise Reject("later", requeue=True)

    task = make(app, name, body=requeue, task={"acks_late": True})
    task.apply(task_id="a", headers={PLACE: name})
    info = locks.get(name)
    assert info.holder.task_id == "a"
    assert info.ttl > 3000


def test_one_that_can_not_be_requeued_leaves_its_place(app, name):
    def requeue():
        raise Reject("later", requeue=True)

    make(app, name, body=requeue).apply(task_id="a", headers={PLACE: name})
    assert locks.get(name) is None


def test_one_that_retries_itself_keeps_its_place_from_one_execution_to_the_next(eager, name):
    seen = []

    def body():
        seen.append(locks.get(name).fence_token)
        if len(seen) < 3:
            raise task.retry(countdown=0)
        return "ran"

    task = make(eager, name, body=body)
    assert task.delay().get() == "ran"
    assert seen == sorted(set(seen))
    assert len(seen) == 3
    assert locks.get(name) is None


@pytest.mark.parametrize("mode", ["until_executed", "until_and_while_executing"])
def test_one_that_sends_itself_again_and_returns_keeps_its_place(app, name, sent, mode):
    def body():
        if not sent:
            task.retry(countdown=100, throw=False)
        return "ran"

    task = make(app, name, mode, hold_on_retry=True, body=body)
    assert work_off(app, task) == "ran"
    assert held_by(name)[name] == "own"
    assert 3690 < locks.get(name).ttl <= 3700
    assert work_off(app, task, headers={PLACE: sent[0][PLACE]}) == "ran"
    assert held_by(name) == {}
    assert len(sent) == 1


def test_one_that_could_not_send_itself_again_and_returns_keeps_no_place(app, name):
    def body():
        with suppress(Reject):
            task.retry(kwargs={"no": object()}, throw=False)
        return "ran"

    task = make(app, name, body=body)
    assert work_off(app, task) == "ran"
    assert held_by(name) == {}


def test_beside_others_one_that_sent_itself_again_and_returns_keeps_no_place(app, name, sent):
    def body():
        if not sent:
            task.retry(countdown=0, throw=False)
            assert work_off(app, task, headers={PLACE: sent[0][PLACE]}) == "ran"
        return "ran"

    task = make(app, name, limit=2, body=body)
    assert work_off(app, task) == "ran"
    assert held_by(name) == {}


@pytest.mark.parametrize("mode", ["until_executed", "until_and_while_executing"])
def test_an_eager_one_whose_retry_is_raised_to_the_caller_keeps_nothing(eager, name, mode):
    def retry():
        raise task.retry(countdown=100)

    eager.conf.task_eager_propagates = True
    task = make(eager, name, mode, hold_on_retry=True, body=retry)
    for call in (task.apply, task.apply_async):
        with pytest.raises(Retry):
            call()
        assert held_by(name) == {}


@pytest.mark.parametrize("below", [True, False])
def test_a_retry_that_can_not_be_sent_keeps_nothing(app, name, below):
    class Unsendable(Task):
        def apply_async(self, *args, **options):
            raise OperationalError("no broker")

    def work():
        raise LookupError

    mode = {"key": name, "hold_on_retry": True} | ({} if below else {"mode": "until_executed"})
    make_task = app.task(base=Unsendable, autoretry_for=(LookupError,), name=f"tests.{name}")
    decorate = single_instance(**mode)
    task = make_task(decorate(work)) if below else decorate(make_task(work))
    task = app.tasks[task.name]
    request = {"id": "own", "retries": 0, "is_eager": False, "delivery_info": {}}
    build_tracer(task.name, task, app=app)("own", (), {}, request)
    assert locks.get(name) is None


class Passing(Task):
    """A task whose class's call goes on with a copy of the request, as by `Task.__call__`, which
    does so since Celery 5.5."""

    def __call__(self, *args, **kwargs):
        self.push_request(**vars(self.request) | {"args": args, "kwargs": kwargs})
        try:
            return self.run(*args, **kwargs)
        finally:
            self.pop_request()


@pytest.mark.parametrize("how", ["replaces", "retries"])
def test_what_sends_itself_again_keeps_its_place_however_its_class_calls_it(app, name, sent, how):
    def again(self):
        if how == "replaces":
            raise self.replace(self.si())
        self.retry(throw=False)

    task = app.task(bind=True, base=Passing, name=f"tests.{name}")(again)
    work_off(app, single_instance(mode="until_executed", key=name)(task))
    assert [each["id"] for each in sent] == ["own"]
    assert locks.get(name).token == place_token("own")


def test_what_replaces_itself_by_another_call_keeps_its_place(app, name, sent):
    def page(self, number):
        if number < 3:
            raise self.replace(self.si(number + 1))
        return number

    task = app.task(bind=True, name=f"tests.{name}")(page)
    task = app.tasks[single_instance(mode="until_executed", key=name)(task).name]
    request = {"id": "own", "retries": 0, "is_eager": False, "delivery_info": {}}
    build_tracer(task.name, task, app=app)("own", (1,), {}, request)
    assert locks.get(name).holder.task_id == "own"
    assert sent[0]["id"] == "own"
    assert sent[0][PLACE]
    assert task.delay(1).id == "own"
    assert len(sent) == 1


def test_what_was_replaced_does_not_run_when_the_newer_one_has_ended(app, name):
    ran = []
    task = make(app, name, on_conflict="replace", body=lambda: ran.append(1))
    first = task.delay()
    second = task.delay()
    assert first.state == "REVOKED"
    task.apply(task_id=second.id, headers={PLACE: name})
    task.apply(task_id=first.id, headers={PLACE: name})
    assert ran == [1]
    assert locks.get(name) is None


def test_what_was_replaced_does_not_run_where_celery_notes_that_it_started(app, name):
    ran = []
    options = {"on_conflict": "replace", "task": {"track_started": True}}
    task = make(app, name, body=lambda: ran.append(1), **options)
    first, second = task.delay(), task.delay()
    for sent in second, first:
        request = {"id": sent.id, "is_eager": False, "headers": {PLACE: name}}
        build_tracer(task.name, app.tasks[task.name], app=app)(sent.id, (), {}, request)
    assert ran == [1]
    assert first.state == "REVOKED"


NOTES_OVER = """
from celery import Celery
from celery.app.trace import build_tracer
from django.core.management import call_command
from django_redislock import single_instance

call_command("migrate", verbosity=0)
backend = "django_celery_results.backends:DatabaseBackend"
app = Celery("results", broker="memory://", backend=backend)
ran = []

@app.task(name="once", acks_late=True, track_started=True)
@single_instance
def once():
    ran.append(1)
    return "ran"

for again in False, True:
    request = {"id": "own", "is_eager": False, "delivery_info": {"redelivered": again}}
    build_tracer(once.name, once, app=app)("own", (), {}, request)
result = app.AsyncResult("own")
say(f"{len(ran)} {result.state} {result.result}")
"""


def test_what_has_run_does_not_run_again_where_the_backend_notes_over_it_that_it_started(tmp_path):
    where = {
        "DJANGO_SETTINGS_MODULE": "tests.results_settings",
        "TESTPROJECT_DB": str(tmp_path / "results.sqlite3"),
    }
    with Child(NOTES_OVER, **where) as child:
        assert child.expect("1") == "SUCCESS ran"
        assert child.wait() == 0


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_one_that_failed_before_it_began_leaves_its_place(app, name, mode):
    task = make(app, name, mode)
    result = task.delay()
    task_failure.send(
        sender=app.tasks[task.name],
        task_id=result.id,
        exception=LookupError(),
        args=(),
        kwargs={},
        traceback=None,
        einfo=None,
    )
    assert place_of(name, mode) is None


class Closed(Task):
    def __call__(self, *args, **kwargs):
        return "closed"


class ClosedBefore(Task):
    error = Ignore("closed")

    def before_start(self, *args):
        raise self.error


class AskedLater(ClosedBefore):
    acks_late, error = True, Reject("later", requeue=True)


@pytest.mark.parametrize("base", [Closed, ClosedBefore])
@pytest.mark.parametrize("mode", WHEN_SENT)
def test_one_whose_class_does_not_call_it_leaves_its_place(app, name, mode, base):
    task = make(app, name, mode, task={"base": base}, body=lambda: pytest.fail("it ran"))
    task.apply_async(task_id="own")
    work_off(app, task, headers={PLACE: place_of(name, mode).name})
    assert held_by(name) == {}


def test_one_that_its_class_requeues_keeps_its_place(app, name):
    task = make(app, name, task={"base": AskedLater})
    task.apply_async(task_id="own")
    work_off(app, task, headers={PLACE: name})
    assert held_by(name) == {name: "own"}


def test_one_that_could_not_begin_as_the_backend_is_away_leaves_its_place(app, name, monkeypatch):
    def store(*args, **options):
        raise OSError("away")

    task = make(app, name, task={"track_started": True}, body=lambda: pytest.fail("it ran"))
    task.apply_async(task_id="own")
    monkeypatch.setattr(app.backend, "store_result", store)
    with suppress(OSError), pytest.warns(RuntimeWarning, match="away"):
        work_off(app, task, headers={PLACE: name})
    assert held_by(name) == {}


def test_the_end_of_another_takes_no_place(app, name):
    task = make(app, name)
    result = task.delay()
    request = Context(id="another", args=(), kwargs={})
    task_revoked.send(
        sender=app.tasks[task.name], request=request, terminated=False, signum=None, expired=False
    )
    assert locks.get(name).holder.task_id == result.id


def test_what_never_began_has_no_least_time(app, name):
    task = make(app, name, at_least_for=60)
    result = task.delay()
    request = Context(id=result.id, args=(), kwargs={})
    task_revoked.send(
        sender=app.tasks[task.name], request=request, terminated=False, signum=None, expired=False
    )
    assert locks.get(name) is None


def test_in_the_queue_the_least_time_counts_from_the_begin(eager, name):
    task = make(eager, name, "until_executing", at_least_for=60)
    assert task.delay().get() == "ran"
    info = locks.get(name)
    assert (info.state, 59 < info.ttl <= 60) == ("cooldown", True)
    assert task.delay().get() is None


def test_the_least_time_of_one_that_runs_does_not_keep_another_from_the_queue(eager, name):
    body = lambda: [*state_of(name), task.place_is_free()]  # noqa: E731
    task = make(eager, name, "until_and_while_executing", at_least_for=60, body=body)
    task.place_is_free = lambda: locks.get(f"{name}:queued") is None
    assert task.delay().get()[1:] == [None, True]
    assert locks.get(name).state == "cooldown"


def test_a_duplicate_that_sends_itself_again_is_none_any_more(app, name, sent):
    task = make(app, name)
    first = task.delay()
    task.push_request(id="second")
    task.apply_async(task_id="second", headers={DUPLICATE: first.id, "tenant": "blue"})
    task.pop_request()
    assert sent[1]["id"] == "second"
    assert sent[1]["tenant"] == "blue"
    assert DUPLICATE not in sent[1]


def elsewhere(send):
    """Send it as another process does."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(send).result()


@pytest.mark.parametrize("on_conflict", ["skip", "raise"])
def test_the_same_id_again_while_it_runs_is_no_message_of_its_own(app, name, sent, on_conflict):
    def send_again():
        try:
            return elsewhere(lambda: task.apply_async(task_id="own")).id
        except AlreadyRunning as error:
            return error.task_id

    task = make(app, name, on_conflict=on_conflict, body=send_again)
    assert task.apply(task_id="own").get() == "own"
    assert not sent


def test_the_same_id_again_while_it_is_queued_is_no_message_of_its_own(app, name, sent, told):
    task = make(app, name)
    assert [task.apply_async(task_id="own").id for _ in range(3)] == ["own"] * 3
    assert len(sent) == 1
    assert told == [("skipped", "own", "own")] * 2


def test_one_whose_result_is_expected_is_replaced_but_not_revoked(app, name, told, monkeypatch):
    revoked = []
    monkeypatch.setattr(app.control, "revoke", revoked.append)
    task = make(app, name, on_conflict="replace")
    member = chain(task.si(), task.si()).apply_async().parent
    second, third = task.delay(), task.delay()
    assert told == [("replaced", member.id, second.id), ("replaced", second.id, third.id)]
    assert revoked == [second.id]
    assert task.apply(task_id=member.id, headers={PLACE: name}).get() is None


@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("mode", WHEN_SENT)
def test_whether_it_is_expected_is_known_after_its_own_retry(
    app, name, sent, monkeypatch, mode, expected
):
    def retry():
        raise task.retry(countdown=0)

    revoked = []
    monkeypatch.setattr(app.control, "revoke", revoked.append)
    app.backend.forget("own")  # that it was replaced in another test
    task = make(app, name, mode, on_conflict="replace", body=retry)
    task.apply_async(**({"task_id": "own"} if expected else {}))
    assert sent[0].get(EXPECTED, False) is expected
    locks.force_release(place_of(name, mode).name)
    told = {each: sent[0][each] for each in (PLACE, EXPECTED) if each in sent[0]}
    work_off(app, task, headers=told)
    assert place_of(name, mode).holder.task_id == "own"
    task.delay()
    assert revoked == ([] if expected else ["own"])


# A direct call from inside of its body


class Direct(Task):
    """A task whose class calls its body itself."""

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


@pytest.mark.parametrize("base", [Task, Direct])
@pytest.mark.parametrize(
    "options",
    [*({"mode": mode} for mode in WHEN_SENT), {"on_conflict": "skip"}, {"on_conflict": "retry"}],
    ids=str,
)
def test_a_call_of_itself_with_other_arguments_is_not_its_message(app, name, sent, options, base):
    def work(number):
        ran.append(number)
        with suppress(AlreadyRunning):
            return number, task(number + 1)
        return number, "refused"

    ran = []
    make_task = app.task(base=base, acks_late=True, name=f"tests.{name}")
    decorate = single_instance(key=f"{name}:{{number}}", **options)
    task = decorate(make_task(work)) if "mode" in options else make_task(decorate(work))
    app.backend.forget("own")  # that it ended in another test
    with locks.lock(f"{name}:2"):
        result = work_off(app, task, 1, headers={PLACE: f"{name}:1", AGAIN: True})
    assert result == (1, "refused" if options.get("on_conflict") == "retry" else None)
    assert (ran, sent) == ([1], [])


# What goes on with the work of another execution


def test_what_is_sent_for_the_dead_comes_although_they_have_the_lock_yet(app, name, sent):
    send = lambda: task.apply_async(task_id="own", retries=1).id  # noqa: E731
    task = make(app, name, body=lambda: elsewhere(send))
    assert task.apply(task_id="own").get() == "own"
    [headers] = sent
    assert (headers["id"], headers[AGAIN], PLACE in headers) == ("own", True, False)


def test_what_is_sent_for_the_dead_is_no_duplicate_of_what_came_between(app, name, sent):
    task = make(app, name)
    between = task.delay()
    task.apply_async(task_id="own", retries=1, headers={DUPLICATE: "another"})
    task.apply_async(task_id="own", retries=1)
    assert [(DUPLICATE in headers, headers.get(AGAIN)) for headers in sent[1:]] == [
        (False, None),
        (False, True),
    ]
    assert held_by(name) == {name: between.id}


def test_what_is_sent_for_those_who_died_before_they_began_keeps_its_place(app, name, sent):
    task = make(app, name)
    task.apply_async(task_id="own")
    task.apply_async(task_id="own", retries=1)
    assert [headers[PLACE] for headers in sent] == [name, name]
    assert held_by(name) == {name: "own"}


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_what_replaces_another_by_the_same_key_goes_on_under_its_lock(app, name, sent, mode):
    def give_over(self):
        raise self.replace(second.si())

    first = app.task(bind=True, name=f"tests.first.{name}")(give_over)
    first = single_instance(mode="until_executed", key=name)(first)
    second = make(app, name, mode, body=lambda: state_of(name))
    work_off(app, first)
    [headers] = sent
    assert (headers["id"], headers["task"]) == ("own", second.name)
    assert set(held_by(name).values()) == {"own"}
    assert locks.get(name).token == place_token("own")
    held = None if mode == "until_executing" else "own"
    assert work_off(app, second, headers={PLACE: headers[PLACE]}) == (held, None)
    assert held_by(name) == {}


@pytest.fixture
def of_two(app, name):
    """Make a task of which two may run at a time."""

    def of_two(body, mode, **options):
        app.backend.forget("own")  # that it ended in another test
        if mode in WHEN_SENT:
            return make(app, name, mode, body=body, limit=2, **options)
        return app.task(name=f"tests.{name}")(single_instance(key=name, limit=2, **options)(body))

    return of_two


WITH_A_LOCK = ["while_executing", "until_executed", "until_and_while_executing"]


@pytest.mark.parametrize("how", [{"redelivered": True}, {"headers": {AGAIN: True}}], ids=str)
@pytest.mark.parametrize("mode", WITH_A_LOCK)
def test_what_is_delivered_twice_does_not_run_beside_itself(app, of_two, sent, mode, how):
    def body():
        ran.append(1)
        elsewhere(lambda: work_off(app, task, **how))
        return "ran"

    ran = []
    task = of_two(body, mode)
    assert work_off(app, task) == "ran"
    assert ran == [1]
    assert [(each["id"], each[AGAIN]) for each in sent] == [("own", True)]


@pytest.mark.parametrize("how", [{"redelivered": True}, {"headers": {AGAIN: True}}], ids=str)
def test_what_is_delivered_twice_does_not_wait_for_itself(app, name, sent, how):
    def body():
        ran.append(1)
        if len(ran) == 1:
            seconds.append(start(lambda: work_off(app, task, **how)))
            wait_until(lambda: sent or locks.get(name).waiters)
        return "ran"

    ran, seconds = [], []
    app.backend.forget("own")  # that it ended in another test
    alone = single_instance(key=name, on_conflict="wait")(body)
    task = app.task(name=f"tests.{name}", acks_late=True)(alone)
    assert work_off(app, task) == "ran"
    seconds[0].result(60)
    assert ran == [1]
    assert [(each["id"], each[AGAIN]) for each in sent] == [("own", True)]


@pytest.mark.parametrize("mode", WITH_A_LOCK)
def test_what_is_delivered_again_does_not_wait_for_what_does_not_run(app, name, of_two, mode):
    def body():
        return "ran"

    task = of_two(body, mode, at_least_for=60)
    if mode in WHEN_SENT:
        task.apply_async(task_id="own")
    for _ in range(2):
        assert work_off(app, task, headers={AGAIN: True}) == "ran"
        app.backend.forget("own")
    assert [each.timeout for each in locks.get(name).holders] == [0, 0]


# Arguments that are others when it runs


def by_retry(self, pages):
    raise self.retry(args=(pages[1:],), countdown=0)


def by_replace(self, pages):
    raise self.replace(self.si(pages[1:]))


def by_a_change(self, pages):
    pages.pop(0)
    raise self.retry(countdown=0)


def by_an_error(self, pages):
    pages.pop(0)
    raise LookupError


GOES_ON = [by_retry, by_replace, by_a_change, by_an_error]


@pytest.fixture
def paging(app, name):
    """Make a task with a name for each page, that goes on with the next one."""

    def paging(body, **options):
        make_task = app.task(bind=True, name=f"tests.{name}", autoretry_for=(LookupError,))
        decorate = single_instance(key=lambda pages: f"{name}:{pages[0]}", **options)
        below = options.get("mode") is None
        return make_task(decorate(body)) if below else decorate(make_task(body))

    return paging


@pytest.mark.parametrize("body", GOES_ON)
def test_a_task_that_goes_on_with_other_arguments_takes_their_place(paging, app, name, sent, body):
    task = paging(body, mode="until_executed")
    work_off(app, task, [1, 2])
    assert held_by(name) == {f"{name}:2": "own"}
    assert [(each["id"], each[PLACE]) for each in sent] == [("own", f"{name}:2")]
    assert task.delay([1, 2]).id != "own"


@pytest.mark.parametrize("body", GOES_ON)
def test_where_another_has_that_place_it_has_its_turn_later(paging, app, name, sent, body):
    task = paging(body, mode="until_executed")
    other = task.delay([2])
    work_off(app, task, [1, 2])
    assert held_by(name) == {f"{name}:2": other.id}
    work_off(app, task, [2], headers={PLACE: sent[1][PLACE]})
    assert [each["id"] for each in sent] == [other.id, "own", "own"]


@pytest.mark.parametrize("body", [by_retry, by_a_change, by_an_error])
def test_a_lock_is_not_kept_for_other_arguments(paging, app, name, body):
    task = paging(body, hold_on_retry=True)
    work_off(app, task, [1, 2])
    assert held_by(name) == {}


@pytest.mark.parametrize(("retried_with", "kept"), [(None, True), ((2,), False), ((1,), True)])
def test_a_lock_is_kept_for_what_a_decorator_makes_of_the_same_arguments(
    app, name, retried_with, kept
):
    @single_instance(key=f"{name}:{{account[number]}}", hold_on_retry=True)
    def work(self, account):
        raise self.retry(args=retried_with, countdown=0)

    def looked_up(self, number):
        return work(self, {"number": number})

    looked_up.__wrapped__ = work
    work_off(app, app.task(bind=True, name=f"tests.{name}")(looked_up), 1)
    assert held_by(name) == ({f"{name}:1": "own"} if kept else {})


@pytest.mark.parametrize("options", [{"mode": "until_executed"}, {"hold_on_retry": True}])
def test_in_eager_mode_it_keeps_nothing_for_other_arguments(paging, eager, name, options):
    def body(self, pages):
        return pages if len(pages) == 1 else by_retry(self, pages)

    assert paging(body, **options).delay([1, 2, 3]).get() == [3]
    assert held_by(name) == {}


@pytest.mark.parametrize("mode", WHEN_SENT)
def test_a_place_of_another_name_than_the_lock_is_left_when_it_begins(app, name, sent, mode):
    def work(pages):
        return held_by(name)

    task = app.task(name=f"tests.{name}")(work)
    task = single_instance(mode=mode, key=f"{name}:{{pages}}")(task)
    task.apply_async(((1, 2),), task_id="own")
    place = sent[0][PLACE]
    assert place.startswith(f"{name}:(1, 2)")
    assert held_by(name) == {place: "own"}
    running = work_off(app, task, [1, 2], headers={PLACE: place})  # as they come from JSON
    assert running == ({} if mode == "until_executing" else {f"{name}:[1, 2]": "own"})
    assert held_by(name) == {}


class WithUser(Task):
    """Who sends travels with the message, and is no argument of the body."""

    typing = False

    def apply_async(self, args=None, kwargs=None, **options):
        return super().apply_async(args, {**(kwargs or {}), "_user": 7}, **options)

    def __call__(self, *args, _user=None, **kwargs):
        return self.run(*args, **kwargs)  # by Task.__call__ Celery 5.4 loses the message


def with_number(app, name, mode):
    def work(self, number):
        raise self.retry(countdown=0)

    task = app.task(base=WithUser, bind=True, name=f"tests.{name}")(work)
    return single_instance(mode=mode, key=f"{name}:{{number}}")(task)


@pytest.mark.parametrize("by", ["header", "arguments"])
@pytest.mark.parametrize("mode", WHEN_SENT)
def test_what_its_class_adds_to_a_message_keeps_no_place(app, name, sent, mode, by):
    task = with_number(app, name, mode)
    result = task.delay(1)
    args, headers = ((1,), None) if by == "arguments" else ((2,), {PLACE: sent[0][PLACE]})
    request = Context(id=result.id, args=args, kwargs={"_user": 7}, headers=headers)
    task_revoked.send(
        sender=app.tasks[task.name], request=request, terminated=False, signum=None, expired=False
    )
    assert held_by(name) == {}


def test_what_its_class_adds_to_a_message_is_no_matter_to_its_retry(app, name, sent):
    task = with_number(app, name, "until_executed")
    work_off(app, task, 1, kwargs={"_user": 7})
    assert held_by(name) == {f"{name}:1": "own"}
    assert sent[0][PLACE] == f"{name}:1"


def test_a_header_takes_no_place_from_another(app, name):
    task = make(app, name)
    result = task.delay()
    other = make(app, f"{name}:other")
    assert work_off(app, other, headers={PLACE: name}) == "ran"
    assert held_by(name) == {name: result.id}


def test_headers_of_a_place_promise_nothing_to_a_task_that_takes_none(app, name, sent, told):
    @app.task(name=f"tests.{name}")
    @single_instance(key=name)
    def work(): ...

    with locks.lock(name):
        assert work_off(app, work, headers={PLACE: "another"}) is None
    assert told == [("skipped", "own", None)]
    assert not sent


# Headers that hide others: of what traces tasks, as a header named "headers"


def test_a_duplicate_that_is_traced_ends_without_running(app, name, told):
    task = make(app, name, body=lambda: pytest.fail("it ran"))
    assert work_off(app, task, headers={DUPLICATE: "first"}, traced=True) is None
    assert told == [("skipped", "own", "first")]


def test_one_that_is_traced_is_run_again_no_oftener_than_it_may_be(app, name, sent):
    @app.task(name=f"tests.{name}")
    @single_instance(key=name, on_conflict="retry", max_retries=1)
    def work(): ...

    with locks.lock(name):
        assert work_off(app, work, headers={}, traced=True).type is Retry
        [headers] = sent
        met_again = {CONFLICTS: headers[CONFLICTS]}
        assert work_off(app, work, headers=met_again, traced=True).type is AlreadyRunning
    assert (headers["trace"], len(sent)) == ("1", 1)


def test_one_that_is_traced_keeps_what_was_promised_to_it(app, name, sent):
    task = make(app, name)
    promise = {PLACE: name, EXPECTED: True}
    with locks.lock(name):
        assert work_off(app, task, headers=promise, traced=True).type is Retry
    assert promise.items() <= sent[0].items()


def test_one_that_is_traced_and_revoked_leaves_the_place_that_it_had(app, name):
    def work(page): ...

    made = app.task(name=f"tests.{name}")(work)
    task = single_instance(mode="until_executed", key=lambda page: f"{name}:{page}")(made)
    task.apply_async((1,), task_id="own")
    headers = {PLACE: f"{name}:1", "headers": {"trace": "1"}}
    request = Context(id="own", args=(2,), kwargs={}, **headers)
    task_revoked.send(sender=app.tasks[task.name], request=request)
    assert held_by(name) == {}


@pytest.mark.parametrize("traced", [False, True])
def test_a_retry_that_is_traced_and_revoked_leaves_its_lock(app, name, traced):
    @app.task(bind=True, name=f"tests.{name}")
    @single_instance(key=f"{name}:{{page}}", hold_on_retry=True)
    def work(self, page):
        raise self.retry(countdown=100)

    task = app.tasks[work.name]
    if traced:
        run = task.run
        task.run = functools.wraps(run)(lambda *args, **kwargs: run(*args, **kwargs))
    assert work_off(app, task, 1).type is Retry
    assert held_by(name) == {f"{name}:1": "own"}
    task_revoked.send(sender=task, request=Context(id="own", args=(1,), kwargs={}))
    assert held_by(name) == {}


# Where it stands


@pytest.fixture
def own_shared_tasks():
    """What is shared is so with all apps of the process: here only until the test ends."""
    before = set(celery._state._on_app_finalizers)
    yield
    celery._state._on_app_finalizers.intersection_update(before)


@pytest.mark.usefixtures("own_shared_tasks")
def test_a_shared_task_has_its_place_in_each_app(name):
    @single_instance(mode="until_executed", key=name)
    @shared_task(name=f"tests.shared.{name}")
    def work():
        return current_lock().name

    app = Celery("tests.later", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True
    task = app.tasks[f"tests.shared.{name}"]
    assert task.delay().get() == name
    app.close()


def test_a_task_of_a_finished_app_has_its_place(app, name):
    app.finalize()
    assert make(app, name).delay().id == locks.get(name).holder.task_id


def test_its_class_and_signature_are_as_without_it(app, name):
    def work(self, account_id, full=False): ...

    plain = app.task(bind=True, name="tests.plain")(work)
    task = single_instance(mode="until_executed", unique_on=["account_id"])(
        app.task(bind=True, name="tests.single")(work)
    )
    assert type(task).__mro__[1:] == type(plain).__mro__[1:]
    with pytest.raises(TypeError):
        task.delay()
    with pytest.raises(TypeError):
        task.delay(1, 2, 3)


def test_above_and_below_at_once_is_refused(app):
    @single_instance(mode="until_executed")
    @app.task
    @single_instance
    def work(): ...

    with pytest.raises(ImproperlyConfigured, match="has single_instance more than once"):
        work.delay()


def test_an_argument_that_the_task_does_not_have_is_told_when_it_is_made(app):
    def work(account_id): ...

    single_instance(mode="until_executed", unique_on=["b"])(app.task(work))
    with pytest.raises(ImproperlyConfigured, match=r"'b'.*account_id"):
        app.finalize()


@pytest.fixture
def make_app():
    apps = []

    def make():
        apps.append(Celery(f"tests.{len(apps)}", broker="memory://", set_as_current=False))
        return apps[-1]

    yield make
    for each in apps:
        each.close()


@pytest.mark.usefixtures("own_shared_tasks")
def test_a_task_that_could_not_be_told_how_to_run_does_not_run_in_any_app(make_app):
    def work(account_id): ...

    wrong = pytest.raises(ImproperlyConfigured, match=r"'b'.*account_id")
    name = f"tests.wrong.{uuid.uuid4().hex}"
    finished = [make_app() for _ in range(3)]
    for each in finished:
        each.finalize()
    with wrong:
        single_instance(mode="until_executed", unique_on=["b"])(shared_task(name=name)(work))
    later = make_app()
    with wrong:
        later.finalize()
    for each in (*finished, later):
        for use in ("delay", "__call__"):
            with wrong:
                getattr(each.tasks[name], use)(1)


@pytest.mark.usefixtures("own_shared_tasks")
@pytest.mark.parametrize("shared", [True, False])
def test_where_one_task_is_wrong_the_others_have_their_place(make_app, name, shared):
    def work(account_id): ...

    def right(): ...

    wrong = pytest.raises(ImproperlyConfigured, match=r"'b'.*account_id")
    make_app().finalize()
    app = make_app()
    if shared:
        with wrong:  # in the finished app
            single_instance(mode="until_executed", unique_on=["b"])(shared_task(name=name)(work))
    else:
        single_instance(mode="until_executed", unique_on=["b"])(app.task(shared=False)(work))
    names = [f"tests.right.{name}.{number}" for number in range(5)]
    for each in names:
        single_instance(mode="until_executed", key=each)(shared_task(name=each)(right))
    with wrong:
        app.finalize()
    assert [single_of(app.tasks[each]) is not None for each in names] == [True] * 5
