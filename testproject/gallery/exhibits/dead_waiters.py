"""Waiters die in the queue, and the live waiters behind them wait for each dead one in turn."""

import threading
import time
from typing import Any
from uuid import uuid4

from django_redislock import locks
from testproject.gallery import lock_pairs
from testproject.gallery.exhibit import Exhibit, Outcome, independent_trials, worst
from testproject.gallery.trial import ActorFactory, Trial, require

PATIENCE_SECONDS = 0.75
"""Time that the queue gives each waiter. Redisson's default is 5."""

DEAD = 8
MAX_DELAY_SECONDS = 4.0
DELAY = "seconds until the next live waiter held the lock, at worst"

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


class FairQueue(lock_pairs.TaughtLock):
    """Each waiter has a deadline, which is later than the deadline of the waiter before it. The
    first waiter counts as dead once its deadline has passed."""

    def enter(self) -> None:
        queue, deadlines = f"{self.name}:queue", f"{self.name}:deadlines"
        who = uuid4().hex
        ask = self.client.register_script(ENTER)
        patience_ms = int(PATIENCE_SECONDS * 1000)
        keys, args = [self.name, queue, deadlines], [who, self.lease_ms, patience_ms]
        while not ask(keys, args):
            time.sleep(0.02)

    def release(self) -> None:
        self.client.delete(self.name)

    def waiting(self) -> int:
        return int(self.client.llen(f"{self.name}:queue"))


class OurLock(lock_pairs.OurLock):
    def waiting(self) -> int:
        info = locks.get(self.lock.name)
        return info.waiters if info else 0


class Queuer:
    """Holds or waits for a lock, in this thread or in many threads."""

    def __init__(self, name: str, lease: float, lock: ActorFactory) -> None:
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


def run_trial(trial: Trial, lock: ActorFactory) -> Outcome:
    holder, machine, living = (trial.actor(Queuer, lock) for _ in range(3))
    holder.do("enter")
    machine.do("crowd", DEAD)
    trial.wait_until("the crowd waits", lambda: holder.do("waiting") == DEAD)
    living.begin("enter")
    trial.wait_until("one more waits", lambda: holder.do("waiting") == DEAD + 1)
    machine.kill()
    require(not living.has_ended(), "the live waiter waits")
    released = holder.do("release")
    delay = living.end() - released
    return Outcome(failed=delay > MAX_DELAY_SECONDS, figures={DELAY: delay})


EXHIBIT = Exhibit(
    name="dead-waiters",
    title="A fair queue with dead waiters",
    algorithm="Waiters queue, and the queue waits some time for each one that does not respond.",
    failure=f"behind {DEAD} dead waiters, the next live one waited for over "
    f"{MAX_DELAY_SECONDS:.0f} s for a free lock",
    taught=FairQueue,
    ours=OurLock,
    run_trials=independent_trials(run_trial, at_once=20),
    figures={DELAY: worst},
)
