"""Tasks of `django.tasks` for real workers. The import of the notes also records skipped tasks."""

from django.tasks import task

from django_redislock import single_instance
from tests.celery_app import note, notes


def work(run: str) -> str:
    """Note the start and the end of some work."""
    note(run, "begin")
    with notes() as client:
        client.blpop([f"{run}:never"], 0.1)
    note(run, "end")
    return "ran"


@task
@single_instance(key="tasks:{run}", timeout=5, on_conflict="wait")
async def async_wait(run):
    return work(run)


@task(backend="rq")
@single_instance(key="tasks:{run}", timeout=5, on_conflict="wait")
def rq_wait(run):
    """Its class is the one of the framework's backport."""
    return work(run)


@single_instance(mode="until_executed", key="tasks:{run}", timeout=5)
@task(backend="single")
def until_executed(run):
    return work(run)
