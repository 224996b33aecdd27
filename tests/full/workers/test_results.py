"""Result backends of Django: a redelivered message does not run again after a success."""

from tests.tools import Child

DELIVERED_TWICE = """
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


def test_the_result_survives_a_backend_that_overwrites_it_with_started(tmp_path):
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.results_settings",
        "TESTPROJECT_DB": str(tmp_path / "results.sqlite3"),
    }
    with Child(DELIVERED_TWICE, **environment) as child:
        assert child.expect("1") == "SUCCESS ran"
        assert child.wait() == 0
