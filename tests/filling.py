"""Very many locks, made in less time than it takes to acquire them."""

import redis

from django_redislock.keys import Keys

NO_TASK = b'"task_id":null'


def fill(client: redis.Redis, prefix: str, model: str, names: list[str]) -> None:
    """Locks of those `names` that stand in Redis as the lock `model` does, which is held; but
    each is told to be held for a task of its own."""
    keys = Keys(prefix)
    fields = client.hgetall(keys.of(model).lock)
    score = client.zscore(keys.of(model).index, model)
    batch = client.pipeline(transaction=False)
    for number, name in enumerate(names, 1):
        task = b'"task_id":"%s"' % name.encode()
        own = {field: value.replace(NO_TASK, task) for field, value in fields.items()}
        batch.hset(keys.of(name).lock, mapping=own)
        batch.zadd(keys.of(name).index, {name: score})
        if number % 5000 == 0:
            batch.execute()
    batch.execute()
