"""Metrics of several processes, examples of the documentation, and missing libraries."""

import sys

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from django_redislock import locks, metrics
from tests.commands import run_process
from tests.fast.command.test_metrics import value
from tests.tools import ROOT, Child

WORKER = """
from django_redislock import locks, metrics
metrics.install()
lock = locks.lock(sys.argv[1])
with locks.lock("once:" + sys.argv[1]):
    pass
lock.acquire()
say("holds")
hear()
lock.release()
say("released")
hear()
"""


def test_metrics_of_processes_are_summed_and_dead_ones_hold_nothing(tmp_path):
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))
    registry.register(metrics.Servers())
    folder = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    with Child(WORKER, "a", **folder) as one, Child(WORKER, "b", **folder) as two:
        one.expect("holds")
        two.expect("holds")
        assert value(registry, "held_locks") == 2
        assert value(registry, "acquired_total") == 4
        assert value(registry, "server_locks", using="default", state="held") == 2
        two.kill()
        mark_process_dead(two.pid, str(tmp_path))
        locks.force_release("b")
        assert value(registry, "held_locks") == 1
        assert value(registry, "acquired_total") == 4
        one.tell("release")
        one.expect("released")
        assert value(registry, "held_locks") == 0


TRACED = """
from contextlib import suppress
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from django_redislock import LockError, locks

exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
exec(sys.argv[1])

with locks.lock("a") as lock:
    assert not locks.lock("a", blocking_timeout=0.1).acquire()
with suppress(LockError), locks.lock("b"):
    locks.force_release("b")
for span in exporter.get_finished_spans():
    events = [event.name for event in span.events]
    say(f"{span.name} {span.attributes['lock.name']}, {span.status.status_code.name}, {events}")
assert not spans
"""


def test_the_opentelemetry_example_creates_spans():
    example = (ROOT / "docs" / "production" / "tracing.py").read_text()
    with Child(TRACED, example) as child:
        child.expect("wait for lock a, UNSET, []")
        child.expect("hold lock a, UNSET, []")
        child.expect("hold lock b, ERROR, ['lock lost']")
        assert child.wait() == 0


def test_an_error_names_the_missing_library_and_its_extra():
    code = "import sys; sys.modules['celery'] = None\nimport django_redislock.celery"
    done = run_process(program=[sys.executable, "-c", code])
    assert "ImportError: django_redislock.celery needs " in done.stderr
    assert done.stderr.strip().endswith("pip install 'django-redislock[celery]'")
