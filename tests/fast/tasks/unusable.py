"""A task with an option that `django.tasks` cannot follow, for a process of its own."""

from django.tasks import task

from django_redislock import single_instance


@task
@single_instance(on_conflict="retry")
def retried():
    return "ran"
