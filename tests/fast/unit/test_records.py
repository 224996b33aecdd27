"""What the previous release wrote down in Redis this one reads, and the other way round: while
processes of both run, they are at the same locks. `docs/project/architecture.md` says how far
a release may go."""

from collections.abc import Iterator
from importlib.util import module_from_spec
from itertools import chain, permutations
from types import ModuleType
from typing import Any
from zipimport import zipimporter

import pytest
import redis

from django_redislock import keys, lua
from django_redislock.engine import drivers, listing, past
from django_redislock.engine.records import pairs, parsed, read_record
from tests.faults import previous
from tests.tools import wait_until

LEASE = 30_000
ALIVE = 20_000
INFO = '{"host":"here","pid":7,"thread":"main","metadata":{"a":1},"renewed":true}'


def previous_module(name: str) -> ModuleType:
    """A module of it that imports no other."""
    spec = zipimporter(f"{previous.PACKAGE}/django_redislock").find_spec(name)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(answer: Any) -> list[str]:
    """What one release tells as a list, another may tell as the lines of one text, or as JSON."""
    if isinstance(answer, list | dict):  # in JSON an empty list is {}
        return [line for each in answer for line in lines(each)]
    return str(answer).split("\n") if answer != "" else []


def row_lines(now: str, name: str, waiters: int, flat: list[str]) -> list[str]:
    """A lock as the previous release tells of it: without whose lease ran out."""
    fields = pairs(flat)
    holders = [
        (field.removeprefix("h:"), record)
        for field, record in fields.items()
        if field.startswith("h:") and read_record(record).expires > int(now)
    ]
    if not (holders or waiters):
        return []
    kind, capacity = fields.get("kind", ""), fields.get("capacity", "0")
    return lines([name, kind, capacity, waiters, *chain(*holders)])


def _said_anew(verdict: int, *more: str) -> int | str:
    """What the previous release's script says of an acquisition, as this one's does."""
    match verdict, more:
        case 1, [fence]:
            return int(fence)
        case 1, [fence, _]:  # by taking over
            return -int(fence)
        case -1, [kind]:
            return kind
    return verdict


class Release:
    """The scripts and keys of one release, at the lock `a`."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.client = client
        self.name = name
        self.keys = (previous_module("keys") if name == "previous" else keys).Keys("records")
        self.a = self.keys.of("a")

    def ask(self, name: str, keys: tuple[str, ...], *args: str | int) -> Any:
        if self.name == "previous":
            source, _ = previous.script(name)
        else:
            source = getattr(lua, name.upper()).source
        return self.client.eval(source, len(keys), *keys, *args, 100)

    def acquire(
        self,
        token: str,
        *,
        kind: str = "mutex",
        capacity: int = 1,
        weight: int = 1,
        lease: int = LEASE,
        alive: int = 0,
        predecessor: str = "",
    ) -> Any:
        """As this release's script answers it."""
        what = (kind, capacity, weight, lease, ALIVE)
        if self.name == "previous":
            asked = ("a", token, *what, alive, predecessor, INFO)
            return _said_anew(*self.ask("acquire", self.a.all, *asked))
        return self.ask("acquire", self.a.all, *what, "a", token, alive, predecessor, INFO)

    def waits(self, token: str) -> bool:
        return bool(self.acquire(token, alive=ALIVE) == 0)

    def release(self, token: str, at_least: int = 0) -> Any:
        return self.ask("release", self.a.all, "a", token, at_least, 0)

    def renew(self, token: str, ms: int = LEASE) -> Any:
        if self.name == "previous":
            own = (self.a.index, self.a.lock, self.a.history)
            [left] = self.ask("renew", own, "a", token, ms, "renew")
            return left
        own = (self.a.index, self.a.locks, self.a.lock, self.a.history)
        return int(self.ask("renew", own, "renew", f"{token} {ms}"))

    def raise_fence(self, token: str, fence: int) -> Any:
        own = (self.a.index, self.a.lock, self.a.history)
        return self.ask("fence", own, "a", token, fence)

    def force(self, token: str = "") -> Any:
        field = "" if self.name == "previous" or not token else "h:"
        return self.ask("force", self.a.all, "a", field + token)

    def told(self) -> list[Any]:
        """All that its scripts tell, but for the time, as lines."""
        page, bucket = self.keys.inspect(self.a.bucket), self.keys.history(self.a.bucket)
        waiting = (self.a.queue, self.a.waiting, self.a.history)
        answers = (
            self.row(),
            self.rows("inspect", page, "-inf", 0, 10),
            self.waiters(self.tell("queue", waiting, 10)[1]),
            self.names(bucket),
            self.events(bucket),
        )
        return [line for answer in answers for line in lines(answer)]

    def tell(self, name: str, keys: tuple[str, ...], *args: str | int) -> Any:
        answer = self.ask(name, keys, *args)
        return answer if self.name == "previous" else parsed(answer)

    def row(self) -> list[str]:
        if self.name == "previous":
            return self.rows("inspect", self.keys.inspect(self.a.bucket), "", "", "", "a")
        return self.rows("rows", (self.a.lock, self.a.waiting, self.a.history), "a")

    def rows(self, name: str, keys: tuple[str, ...], *args: str | int) -> list[str]:
        now, *_, rows = self.tell(name, keys, *args)  # the cursor is its own affair
        if self.name == "previous":
            return lines(rows)
        return [line for row in rows for line in row_lines(now, *row)]

    def names(self, bucket: tuple[str, ...]) -> Any:
        """How many locks are held, and their names with the ends of their leases."""
        if self.name == "previous":
            return self.tell("names", bucket, 10)
        [[held, _, _, names]] = self.tell("names", bucket, 10, "", "")
        return [[held, names]]

    def events(self, bucket: tuple[str, ...]) -> Any:
        """What ended, what was broken, what was refused, and the rates."""
        if self.name == "previous":
            return self.tell("history", bucket, "a", 10)[1:]
        _, *streams, _ = self.tell("history", bucket, "a", 10, 0, *["+", ""] * 3)
        *_, rates = self.tell("history", bucket, "a", 0, 0, *["", ""] * 3)
        return [*(entries for _, _, entries, _, _ in streams), rates]

    def waiters(self, told: Any) -> Any:
        """When each came, and its record."""
        if self.name == "previous":
            return [each for place, each in enumerate(told) if place % 3]
        return told

    def holders(self) -> list[str]:
        return sorted(self.row()[4::2])

    def turn(self, token: str) -> int:
        """The fencing token that was pushed to who waits."""
        _, fence = self.client.blpop(self.a.grant(token), 1)
        return int(fence)


@pytest.fixture(params=permutations(["previous", "this"]), ids="-".join)
def releases(request, redis_server: redis.Redis) -> Iterator[tuple[Release, Release]]:
    """Of which one writes, and the other reads what it wrote."""
    redis_server.flushdb()  # what tests before it left of the past
    writer, reader = (Release(redis_server, name) for name in request.param)
    yield writer, reader
    for one in (writer, reader):
        one.force()


def test_they_mean_the_same_keys(releases):
    writer, reader = releases
    for name in ("a", "invoice:42", "ä" * 100):
        one, other = writer.keys.of(name), reader.keys.of(name)
        assert (one.all, one.grant("token")) == (other.all, other.grant("token"))


def test_a_holding(releases):
    writer, reader = releases
    fence = writer.acquire("one")

    assert reader.told() == writer.told()
    assert reader.holders() == ["one"]
    assert reader.acquire("two") == 0
    assert reader.acquire("one") == fence
    assert reader.renew("one", 2 * LEASE) > LEASE
    assert writer.renew("one") > LEASE  # it was not made shorter
    assert reader.release("one") == 1
    assert writer.told() == reader.told()
    assert writer.holders() == []


def test_a_queue(releases):
    writer, reader = releases
    fence = writer.acquire("one")
    assert writer.waits("two")
    assert reader.waits("three")
    assert writer.waits("four")

    assert reader.told() == writer.told()
    assert reader.waits("two")  # and shows life, where it stands
    assert writer.waits("three")
    for before, after in (("one", "two"), ("two", "three"), ("three", "four")):
        assert reader.release(before) == 1
        turn = writer.turn(after)
        assert turn > fence
        assert reader.acquire(after) == turn
        fence = turn
    assert writer.release("four") == 1


def test_a_turn_that_was_not_taken(releases):
    writer, reader = releases
    writer.acquire("one")
    assert writer.waits("two")
    writer.release("one")

    assert reader.force("two") == ["two"]
    assert not writer.client.exists(writer.a.grant("two"))
    assert reader.holders() == []


@pytest.mark.parametrize(("kind", "capacity"), [("semaphore", 3), ("readwrite", 2**30)])
def test_what_others_take_of_the_room(releases, kind, capacity):
    writer, reader = releases
    room = {"kind": kind, "capacity": capacity}
    writer.acquire("one", weight=capacity - 1, **room)

    assert reader.told() == writer.told()
    assert reader.acquire("two", weight=2, **room) == 0
    assert reader.acquire("two", weight=1, **room) > 0
    assert writer.acquire("three", weight=1, **room) == 0
    assert writer.release("two") == 1
    assert reader.release("one") == 1
    assert writer.holders() == []


def test_a_lock_that_stays_for_its_least_time(releases):
    writer, reader = releases
    writer.acquire("one")
    assert writer.release("one", LEASE) == 1

    assert reader.told() == writer.told()
    assert reader.acquire("two") == 0
    assert reader.release("one") == 1  # said twice
    assert reader.force() == ["one"]


def test_a_lease_that_ran_out(releases):
    writer, reader = releases
    fence = writer.acquire("one", lease=10)
    wait_until(lambda: not writer.holders())

    assert reader.renew("one") == 0
    assert reader.acquire("two") > fence
    assert writer.told() == reader.told()
    assert writer.release("two") == 1


def test_a_predecessor(releases):
    writer, reader = releases
    writer.acquire("one")
    assert reader.acquire("two", predecessor="one") < 0
    assert writer.holders() == ["two"]
    assert writer.told() == reader.told()
    assert writer.release("two") == 1


def test_the_fencing_token(releases):
    writer, reader = releases
    fence = writer.acquire("one")
    raised = fence + 10**9
    assert writer.raise_fence("one", raised) == 1

    assert reader.acquire("one") == raised
    reader.release("one")
    assert reader.acquire("two") == raised + 1
    assert writer.release("two") == 1


def test_how_holdings_ended(releases):
    writer, reader = releases
    writer.acquire("one")
    writer.acquire("refused")
    writer.release("one")
    writer.acquire("two", lease=10)
    wait_until(lambda: not writer.holders())
    writer.acquire("three")
    writer.force()
    assert reader.told() == writer.told()


def test_what_this_release_tells_of_the_records_of_the_previous_one(redis_server, redis_client):
    redis_server.flushdb()
    release = Release(redis_server, "previous")
    fence = release.acquire("one", lease=LEASE)
    assert release.waits("two")
    records = keys.Keys("records")

    info = drivers.run(redis_client, listing.get(records, "a"))
    [waiter] = drivers.run(redis_client, listing.queue(records, "a", 10))
    assert release.release("one") == 1
    assert release.force("two") == ["two"]
    events = drivers.run(redis_client, past.history(records, "a", 10))

    assert (info.name, info.kind, info.capacity, info.waiters) == ("a", "mutex", 1, 1)
    [held] = info.holders
    assert (held.token, held.fence_token, held.weight) == ("one", fence, 1)
    assert (held.timeout, held.waited, held.renewed) == (LEASE / 1000, 0, True)
    assert (waiter.weight, waiter.timeout) == (1, LEASE / 1000)
    assert {event.outcome for event in events} == {"released", "forced"}
    for each in (held, waiter, *events):
        assert (each.holder.host, each.holder.pid, each.holder.thread) == ("here", 7, "main")
        assert each.metadata == {"a": 1}
