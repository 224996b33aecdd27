"""Tasks that are locked when they are enqueued. Importing it needs Django 6."""

from django.tasks import task

from django_redislock import single_instance

from .sample import holder, inside


def work():
    while inside:
        inside.pop()()
    return "ran"


@single_instance(mode="until_executed", key="queued:{account_id}")
@task(backend="queue")
def queued(account_id):
    return "ran"


@single_instance(mode="until_executing", key="queued:{account_id}", on_conflict="raise")
@task(backend="queue", takes_context=True)
def strict(context, account_id):
    return "ran"


@single_instance(mode="until_executed", key="queued:{account_id}")
@task(backend="single")
def until_executed(account_id):
    return work(), holder()


@single_instance(mode="until_executed", key="queued:{account_id}")
@task(backend="single", takes_context=True)
async def async_until_executed(context, account_id):
    return context.task_result.id


@single_instance(mode="until_executing", key="queued:{account_id}")
@task(backend="single")
def until_executing(account_id):
    return work()


@single_instance(mode="until_executing", key="queued:{account_id}", at_least_for=30)
@task(backend="single")
async def throttled(account_id):
    return "ran"
