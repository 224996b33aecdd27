"""A stage on which flows are stepped by hand, against the real server.

Workers are flows that stand still at each operation; the test says whose turn it is,
and whether the operation, its answer, or neither arrives. No thread and no sleep: a
blocking pop answers at once, and time passes by moving every time that Redis and the
workers have noted back into the past.
"""

import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.exceptions import ConnectionError

from django_redislock import clock
from django_redislock.engine import flows
from django_redislock.engine.drivers import _perform
from django_redislock.engine.ops import Flow, Op, Wait
from django_redislock.keys import Keys, LockKeys

LEASE = 30.0

AGE = """
local ms = tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function earlier(number) return string.format('%.0f', tonumber(number) - ms) end
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local field, value = fields[i], fields[i + 1]
  if string.sub(field, 1, 2) == 'h:' then
    value = string.gsub(value, '^(%d+) (%d+)', function(w, t) return w .. ' ' .. earlier(t) end)
    redis.call('HSET', KEYS[1], field, value)
  elseif field == 'soonest' or field == 'latest' then
    redis.call('HSET', KEYS[1], field, earlier(value))
  end
end
local waiters = redis.call('HGETALL', KEYS[3])
for i = 1, #waiters, 2 do
  redis.call('HSET', KEYS[3], waiters[i], (string.gsub(waiters[i + 1], '^(%d+)', earlier)))
end
local score = redis.call('ZSCORE', KEYS[4], ARGV[2])
if score then redis.call('ZADD', KEYS[4], earlier(score), ARGV[2]) end
for i, key in ipairs(KEYS) do
  if i ~= 4 then
    local left = redis.call('PTTL', key)
    if left >= 0 and left <= ms then redis.call('DEL', key) end
    if left > ms then redis.call('PEXPIRE', key, left - ms) end
  end
end
"""


class Clock:
    """The workers' clock: the real one, and what `Stage.pass_time` added."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._real = clock.now

    def now(self) -> float:
        return self._real() + self.ahead


class Worker:
    """One execution that wants the lock, or holds it, or lets go of it."""

    def __init__(
        self, stage: "Stage", number: int, *, renewed: bool = True, weight: int = 1
    ) -> None:
        self.stage = stage
        self.number = number
        self.want = flows.Want(
            keys=stage.keys,
            token=f"w{number}",
            kind=stage.kind,
            capacity=stage.capacity,
            weight=weight,
            lease=LEASE,
            info="{}",
            renewed=renewed,
        )
        self.granted: flows.Granted | None = None
        self.outcome: object = None
        self.op: Op | None = None
        self.showed_life = 0.0
        self.arrived: int | None = None
        self.gives_up = False
        self._flow: Flow[Any] | None = None

    def __repr__(self) -> str:
        return f"w{self.number}"

    @property
    def believes(self) -> bool:
        """Whether it works under the lock, as far as it knows."""
        return self.granted is not None and clock.now() < self.granted.deadline

    def acquire(self, wait: float | None = None) -> "Worker":
        until = None if wait is None else clock.now() + wait
        self.gives_up = False
        return self._begin(self._acquire(until))

    def release(self) -> "Worker":
        self.granted = None
        return self._begin(flows.release(self.want.keys, self.want.token))

    def renew(self) -> None:
        """The renewer's round, at once."""
        assert self.granted
        sent = clock.now()
        left = self.stage.run(flows.renew(self.want.keys, self.want.token, LEASE, "renew"))
        self.granted = flows.Granted(self.granted.fence_token, sent + left) if left else None

    def _acquire(self, until: float | None) -> Flow[flows.Granted | None]:
        try:
            self.granted = yield from flows.acquire(self.want, until)
        except ConnectionError as error:
            self.gives_up = True
            yield from flows.give_up(self.want, error)
        return self.granted

    def _begin(self, flow: Flow[Any]) -> "Worker":
        self._flow = flow
        self._go_on(lambda: next(flow))
        return self

    def step(self) -> None:
        """Its operation is done, and the answer arrives."""
        self._answer(self.stage.perform(self))

    def lose_reply(self) -> None:
        """Its operation is done, but the connection breaks before the answer."""
        self.stage.perform(self)
        self._raise(ConnectionError("reply lost"))

    def lose_request(self) -> None:
        """The connection breaks before Redis saw anything."""
        self._raise(ConnectionError("request lost"))

    def finish(self) -> object:
        """Step to the end."""
        for _ in range(100):
            if self.op is None:
                return self.outcome
            self.step()
        raise AssertionError(f"{self} never came to an end")

    def die(self) -> None:
        """SIGKILL: what Redis has of it stays as it is."""
        self._flow = self.op = self.granted = None

    def _answer(self, answer: Any) -> None:
        flow = self._flow
        assert flow
        self._go_on(lambda: flow.send(answer))

    def _raise(self, error: Exception) -> None:
        flow = self._flow
        assert flow
        self._go_on(lambda: flow.throw(error))

    def _go_on(self, move: Callable[[], Op]) -> None:
        try:
            self.op = move()
        except StopIteration as stop:
            self._flow = self.op = self.arrived = None
            self.outcome = stop.value


class Stage:
    def __init__(self, client: redis.Redis, kind: str = "mutex", capacity: int = 1) -> None:
        self.client = client
        self.kind = kind
        self.capacity = capacity
        self.keys: LockKeys = Keys("testproject:redislock").of("stage")
        self.workers: list[Worker] = []
        self.fences: list[int] = []
        self._arrivals = itertools.count()
        self._clock = Clock()

    def __enter__(self) -> "Stage":
        clock.now = self._clock.now
        return self

    def __exit__(self, *exc: object) -> None:
        clock.now = self._clock._real

    def worker(self, *, renewed: bool = True, weight: int = 1) -> Worker:
        self.workers.append(Worker(self, len(self.workers), renewed=renewed, weight=weight))
        return self.workers[-1]

    def run(self, flow: Generator[Op, Any, Any]) -> Any:
        try:
            op = next(flow)
            while True:
                op = flow.send(_perform(self.client, op))
        except StopIteration as stop:
            return stop.value

    def perform(self, worker: Worker) -> Any:
        """Do the operation at which `worker` stands."""
        op = worker.op
        assert op
        if isinstance(op, Wait):
            answer = self.client.lpop(op.key)
            return answer.decode() if answer else None
        with self._watching():
            answer = _perform(self.client, op)
        self._note(worker)
        return answer

    def force_release(self) -> tuple[str, ...]:
        with self._watching():
            gone: tuple[str, ...] = self.run(flows.force_release(self.keys, None))
        return gone

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Judge whom the script in between let in."""
        before = self.holders()
        yield
        for token in self.holders() - before:
            self._granted(token)
        queue = self.waiters()
        for worker in self.workers:
            if worker.want.token not in queue:
                worker.arrived = None

    def holders(self) -> set[str]:
        fields = self.client.hgetall(self.keys.lock)
        return {field.decode()[2:] for field in fields if field.startswith(b"h:")}

    def waiters(self) -> list[str]:
        """The queue, first to last."""
        return [token.decode() for token in self.client.zrange(self.keys.queue, 0, -1)]

    def pass_time(self, seconds: float) -> None:
        self._clock.ahead += seconds
        grants = [self.keys.grant(worker.want.token) for worker in self.workers]
        keys = [self.keys.lock, self.keys.queue, self.keys.waiting, self.keys.index, *grants]
        self.client.eval(AGE, len(keys), *keys, round(seconds * 1000), self.keys.name)

    def left(self) -> list[str]:
        return [key.decode() for key in self.client.keys("*") if not key.endswith(b":index")]

    def _note(self, worker: Worker) -> None:
        if worker.want.token in self.waiters():
            worker.showed_life = clock.now()
            if worker.arrived is None:
                worker.arrived = next(self._arrivals)

    def _granted(self, token: str) -> None:
        worker = next(worker for worker in self.workers if worker.want.token == token)
        fence = int(self.client.hget(self.keys.lock, f"h:{token}").split()[2])
        assert all(fence > earlier for earlier in self.fences), "fencing tokens must grow"
        self.fences.append(fence)
        for other in self.workers:
            assert not self._passed_over(other, worker), f"{worker} was let in before {other}"

    def _passed_over(self, other: Worker, worker: Worker) -> bool:
        if other is worker or other.arrived is None:
            return False
        if other.want.token not in self.waiters():
            return False
        before = worker.arrived is None or other.arrived < worker.arrived
        alive = clock.now() < other.showed_life + flows.ALIVE - 0.5
        return before and alive
