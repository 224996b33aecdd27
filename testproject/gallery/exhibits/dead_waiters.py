"""Waiters die in the queue, and the living behind them wait for each in turn."""

import threading
import time
from typing import Any
from uuid import uuid4

from django_redislock import locks
from testproject.gallery import parts
from testproject.gallery.exhibit import Exhibit, Outcome, each_apart, worst
from testproject.gallery.scene import Part, Scene, hold

PATIENCE = 0.75
"""Seconds that each waiter is waited for. Redisson's default is 5."""

DEAD = 8
BOUND = 4.0
STOOD = "seconds until the next live waiter held the lock, at worst"

ENTER = """
local lock, queue, deadlines = KEYS[1], KEYS[2], KEYS[3]
local who, lease, patience = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local first = redis.call('LINDEX', queue, 0)
while first and tonumber(redis.call('ZSCORE', deadlines, first)) <= now do
  redis.call('LPOP', queue)
  redis.call('ZREM', deadlines, first)
  first = redis.call('LINDEX', queue, 0)
end
if redis.call('EXISTS', lock) == 0 and (not first or first == who) then
  redis.call('LPOP', queue)
  redis.call('ZREM', deadlines, who)
  redis.call('SET', lock, who, 'PX', lease)
  return 1
end
if not redis.call('ZSCORE', deadlines, who) then
  local last = redis.call('LINDEX', queue, -1)
  local from = last and redis.call('ZSCORE', deadlines, last) or now
  redis.call('RPUSH', queue, who)
  redis.call('ZADD', deadlines, from + patience, who)
end
return 0
"""


class FairQueue(parts.Taught):
    """Each waiter has a deadline, a while after that of the one before it. Who stands first when
    its deadline has passed counts as dead."""

    def enter(self) -> None:
        queue, deadlines = f"{self.name}:queue", f"{self.name}:deadlines"
        who = uuid4().hex
        ask = self.client.register_script(ENTER)
        keys, args = [self.name, queue, deadlines], [who, self.lease_ms, int(PATIENCE * 1000)]
        while not ask(keys, args):
            time.sleep(0.02)

    def release(self) -> None:
        self.client.delete(self.name)

    def waiting(self) -> int:
        return int(self.client.llen(f"{self.name}:queue"))


class Ours(parts.Ours):
    def waiting(self) -> int:
        info = locks.get(self.lock.name)
        return info.waiters if info else 0


class Queuer:
    """Holds one of them, waits for it, or has many threads that do."""

    def __init__(self, name: str, lease: float, lock: Part) -> None:
        self.lock: Any = lock(name, lease)

    def enter(self) -> float:
        self.lock.enter()
        return time.monotonic()

    def crowd(self, size: int) -> None:
        for _ in range(size):
            threading.Thread(target=self.lock.enter, daemon=True).start()

    def release(self) -> float:
        began = time.monotonic()
        self.lock.release()
        return began

    def waiting(self) -> int:
        waiting: int = self.lock.waiting()
        return waiting


def happens(scene: Scene, lock: Part) -> Outcome:
    holder, machine, living = (scene.actor(Queuer, lock) for _ in range(3))
    holder.do("enter")
    machine.do("crowd", DEAD)
    scene.until("the crowd waits", lambda: holder.do("waiting") == DEAD)
    living.begin("enter")
    scene.until("one more waits", lambda: holder.do("waiting") == DEAD + 1)
    machine.kill()
    hold(not living.has_ended(), "the living one waits")
    released = holder.do("release")
    stood = living.end() - released
    return Outcome(failed=stood > BOUND, figures={STOOD: stood})


EXHIBIT = Exhibit(
    name="dead-waiters",
    title="A fair queue with dead waiters",
    algorithm="Waiters queue, and the queue waits some time for each one that does not respond.",
    failure=f"behind {DEAD} dead waiters, the next live one waited for over {BOUND:.0f} s "
    "for a free lock",
    taught=FairQueue,
    ours=Ours,
    plays=each_apart(happens, at_once=20),
    figures={STOOD: worst},
)
