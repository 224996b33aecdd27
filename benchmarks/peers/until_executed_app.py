from django_redislock import locks, single_instance

from .bodies import LEASE, define, new_app

app = new_app("until-executed")


def unique(**options):
    alone = single_instance(
        mode="until_executed",
        key=f"{options['name']}:until:{{run}}",
        timeout=LEASE,
        queue_timeout=LEASE,
    )

    def decorate(function):
        return alone(app.task(**options)(function))

    return decorate


def seconds_left(task, run):
    info = locks.get(f"{task.name}:until:{run}")
    return info.ttl if info else None


tasks = define(app, unique, seconds_left)
