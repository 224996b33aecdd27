"""The tasks of docs/how-to/coming-from.md that replace those of other packages.

`celery -A tests.full.workers.coming_from_app worker`.
"""

from django_redislock import single_instance
from tests.celery_app import app, note, wait


def sync(self, run, full=False):
    return wait(self, run)


def replacement(package, **options):
    task = app.task(bind=True, name=f"tests.from.{package}")(sync)
    return single_instance(mode="until_executed", queue_timeout=600, **options)(task)


celery_once = replacement("celery_once", unique_on=["run"])
celery_singleton = replacement("celery_singleton", unique_on=["run"], on_conflict="raise")
celery_heimdall = replacement("celery_heimdall", key="sync-{run}")


@app.task(bind=True, max_retries=0)
@single_instance(key="rate:{run}", limit=2, at_least_for=2, on_conflict="retry", countdown=0.2)
def rate_limited(self, run):
    note(run, "begin", self.request.id)
    return self.request.retries
