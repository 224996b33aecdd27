"""Very many locks, made in less time than it takes to acquire them."""

import redis

from django_redislock.keys import Keys

FILL_HISTORY = """
local now = redis.call('TIME')[1] * 1000
for _, stream in ipairs({'ended', 'broken', 'refused'}) do
  local fields = redis.call('XREVRANGE', KEYS[1] .. stream, '+', '-', 'COUNT', 1)[1][2]
  redis.call('DEL', KEYS[2] .. stream)
  for number = 1, ARGV[1] do
    local at = now - (ARGV[1] - number) * 50
    for i = 1, #fields, 2 do
      if fields[i] == 'name' then fields[i + 1] = 'lock ' .. number % 50 .. ' of ' .. KEYS[2] end
      if fields[i] == 'token' then fields[i + 1] = 'token' .. number end
      if fields[i] == 'at' then fields[i + 1] = string.format('%.0f', at) end
      if fields[i] == 'holder' then
        local info = string.match(fields[i + 1], '{.*$')
        fields[i + 1] = string.format('1 %.0f %.0f %.0f 0 60000 ', at, at * 1000, at - 40) .. info
      end
    end
    redis.call('XADD', KEYS[2] .. stream, '*', unpack(fields))
  end
end
"""

NO_TASK = b'"task_id":null'


def fill(client: redis.Redis, prefix: str, model: str, names: list[str]) -> None:
    """Copy the held lock `model` to each of `names`. Each copy is held by another task."""
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


def fill_history(client: redis.Redis, prefix: str, model: str, count: int) -> None:
    """Fill each stream of the history with `count` events.

    The model is a lock with a released hold, a force-released hold and a refused acquisition.
    """
    keys = Keys(prefix)
    history = keys.of(model).history
    client.eval(FILL_HISTORY, 2, history, history, count)
