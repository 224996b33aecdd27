"""Tasks of `django.tasks` with the immediate backend, which runs them when they are enqueued."""

import asyncio
import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.tasks import task

from django_redislock import AlreadyRunning, locks, single_instance
from django_redislock.tasks import SKIPPED, was_skipped
from tests.tools import ROOT

from . import sample

SYNC = "tests.fast.tasks.sample.sync:account_id=42"


def test_the_holder_shows_the_task_and_the_id_of_its_result() -> None:
    for each in (sample.sync, sample.strict, sample.patient, sample.async_sync, sample.above):
        result = each.enqueue(42)
        assert result.return_value == [each.module_path, result.id]
    assert locks.get(SYNC) is None
    result = sample.with_context.enqueue(42)  # the context is not part of the name
    name = "tests.fast.tasks.sample.with_context:account_id=42"
    assert result.return_value == [result.id, name]
    result = sample.takes_a_lock.enqueue()
    assert result.return_value == [sample.takes_a_lock.module_path, result.id]
    with locks.lock("sample:outside", timeout=5):
        assert locks.get("sample:outside").holder.task_id is None


def test_a_duplicate_is_skipped_and_its_result_says_so(hold, skipped, caplog) -> None:
    hold("tests.fast.tasks.sample.async_sync:account_id=42")
    assert was_skipped(asyncio.run(sample.async_sync.aenqueue(42)))
    skipped.clear()
    hold(SYNC)
    result = sample.sync.enqueue(42, full=True)
    assert was_skipped(result)
    assert result.return_value[SKIPPED].startswith(f"Lock {SYNC!r} is held by ")
    (facts,) = skipped
    assert facts["sender"] is sample.sync
    assert (facts["name"], facts["task_id"]) == (SYNC, result.id)
    assert (facts["args"], facts["kwargs"]) == ((42,), {"full": True})
    assert f"Task skipped: task=tests.fast.tasks.sample.sync[{result.id}]" in caplog.text
    assert not was_skipped(sample.sync.enqueue(43))
    assert sample.sync.call(42) is None


@pytest.mark.parametrize("name", ["strict", "patient"])
def test_a_duplicate_fails_with_raise_and_after_it_has_waited(hold, name) -> None:
    lock = hold(f"tests.fast.tasks.sample.{name}:account_id=42")
    result = getattr(sample, name).enqueue(42)
    (error,) = result.errors
    assert error.exception_class is AlreadyRunning
    assert not was_skipped(result)
    lock.release()
    assert getattr(sample, name).enqueue(42).return_value


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on_conflict": "retry"}, "on_conflict='retry'"),
        ({"hold_on_retry": True}, "hold_on_retry=True"),
        ({"mode": "until_and_while_executing"}, "mode='until_and_while_executing'"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, named) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"single_instance with {named} does not work"):
        single_instance(**options)(sample.takes_a_lock)
    with pytest.raises(TypeError, match="goes above the task decorator"):
        task(single_instance(mode="until_executed")(sample.holder))


SETTINGS = """
import os, sys
from django.conf import settings
redis = {"BACKEND": "django.core.cache.backends.redis.RedisCache"}
settings.configure(CACHES={"default": redis | {"LOCATION": os.environ["REDIS_URL"]}}, USE_TZ=True)
"""

UNUSABLE = """
import django
from django.core.checks import run_checks
from django.tasks import task
from django_redislock import single_instance
@task
@single_instance(on_conflict="retry")
def retried(): ...

django.setup()
(error,) = run_checks()
assert error.id == "redislock.E004"
expected = "single_instance with on_conflict='retry' does not work with django.tasks"
assert error.msg.startswith(f"__main__.retried: {expected}")
(failure,) = retried.enqueue().errors
assert failure.exception_class_path == "django.core.exceptions.ImproperlyConfigured"
assert expected in failure.traceback
"""

WITHOUT_CELERY = """
sys.modules["celery"] = None  # as if it were not installed
from tests.fast.tasks import sample
assert sample.sync.enqueue(42).return_value[0] == sample.sync.module_path
assert "django_redislock.celery" not in sys.modules
"""


@pytest.mark.parametrize("code", [UNUSABLE, WITHOUT_CELERY], ids=["bad", "alone"])
def test_in_a_process_of_its_own(code) -> None:
    """A check finds unusable options. Celery is not needed."""
    subprocess.run([sys.executable, "-c", SETTINGS + code], cwd=ROOT, check=True)
