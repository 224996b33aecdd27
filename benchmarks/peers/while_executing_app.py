from django_redislock import locks, single_instance

from .bodies import LEASE, define, new_app

app = new_app("while-executing")


def unique(**options):
    def decorate(function):
        alone = single_instance(key=f"{options['name']}:while:{{run}}", timeout=LEASE)
        return app.task(**options)(alone(function))

    return decorate


def seconds_left(task, run):
    info = locks.get(f"{task.name}:while:{run}")
    return info.ttl if info else None


tasks = define(app, unique, seconds_left)
