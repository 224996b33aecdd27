"""Lock objects that several threads use in random orders, which Hypothesis chooses.

Three actors share the objects. They enter locks again through the same object or another one,
release locks that they do not hold, or end without a release. Lock objects are deleted while they
have holds, operators force-release locks, and leases are renewed. After each step the state of
each actor and of each server must be the state of the `Model`.

The renewer is the real one, but it runs only in the steps that say so.
"""

import gc
import inspect
import os
import tomllib
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FunctionType
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from django_redislock import LockManager, backends, locks
from django_redislock.engine import leases, renewer
from django_redislock.engine.renewer import ThreadRenewer, thread_renewer
from django_redislock.lock_types import BaseLock, MultiLock
from django_redislock.lock_types import quorum as quorums
from django_redislock.testing import EmbeddedServer
from tests.tools import leftovers

from .finding import check_found, check_harmless
from .objects import Actor, Lease, Lock, Model, Place, outcome
from .test_model import Move

LEASE = 1000

SERVERS = ["m0", "m1", "m2"]

OFTEN = {"acquire": 6, "release": 4, "extend": 2, "stranger": 1, "look": 1, "mishap": 3}
"""The relative frequency of each sort of move."""

MARKS = {"quorum": [pytest.mark.xdist_group("model quorum")]}  # its servers are started once

Make = Callable[..., BaseLock]


def at(alias: str) -> LockManager:
    return locks.using(alias)


def on_default(method: str, *args: Any, **options: Any) -> Make:
    return partial(getattr(at("default"), method), *args, **options)


class Hands(RuleBasedStateMachine):
    """Three actors with lock objects over a few names."""

    clients: Mapping[str, redis.Redis]
    """A client for each cache alias, to observe its server."""

    makes: ClassVar[Mapping[str, Make]]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.reals: dict[str, BaseLock] = {}
        self.locks: dict[str, Lock] = {}
        self.told: dict[str, list[None]] = {}
        self.greatest: dict[Place, int] = {}
        self.everybody: list[Actor] = []
        for text in self.makes:
            self.make_object(text)
        self.actors = {name: self.come(name) for name in "xyz"}
        self.fine = True

    def make_object(self, text: str) -> None:
        told: list[None] = []
        real = self.makes[text](timeout=LEASE, on_lost=lambda lock: told.append(None))
        places = [Place(server.alias, name) for server, name in real._where()]
        self.reals[text] = real
        self.locks[text] = Lock(places, real)
        self.told[text] = told

    def come(self, name: str) -> Actor:
        actor = Actor(f"{name}{len(self.everybody)}")
        self.everybody.append(actor)
        return actor

    # The moves, here and in the model

    def acquire(self, text: str, actor: Actor) -> None:
        found = actor.does(partial(self.reals[text].acquire, blocking=False))
        agree(found, self.model.acquire(self.locks[text], actor))

    def release(self, text: str, actor: Actor) -> None:
        found = actor.does(self.reals[text].release)
        lock = self.locks[text]
        agree(found, self.model.release(lock, lock.mine(actor)))

    def leave(self, text: str, actor: Actor) -> None:
        """End a ``with`` block, perhaps in another thread."""
        found = actor.does(partial(self.reals[text].__exit__, None, None, None))
        lock = self.locks[text]
        agree(found, self.model.release(lock, lock.known(actor)))

    def extend(self, text: str, actor: Actor) -> None:
        found = actor.does(partial(self.reals[text].extend, LEASE))
        agree(found, self.model.extend(self.locks[text], actor))

    def reacquire(self, text: str, actor: Actor) -> None:
        found = actor.does(self.reals[text].reacquire)
        agree(found, self.model.extend(self.locks[text], actor))

    def look(self, text: str, actor: Actor) -> None:
        real, lock = self.reals[text], self.locks[text]
        found = actor.does(lambda: (real.owned(), real.locked()))
        agree(found, (self.model.owned(lock, actor), self.model.locked(lock)))

    def end(self, name: str) -> None:
        self.actors[name].end()
        self.actors[name] = self.come(name)

    def drop(self, text: str) -> None:
        gone = weakref.ref(self.reals.pop(text))
        gc.collect()  # an error may refer to it, or to its leases, in a cycle
        assert gone() is None, "there is another reference to it"
        self.model.drop(self.locks[text])
        self.make_object(text)

    def force(self, place: Place, lease: Lease | None = None) -> None:
        manager = at(place.alias)
        token = None if lease is None else token_of(manager, lease)
        found = manager.force_release(place.name, token)
        agree(found, self.model.force(place, lease.fence if lease else None))

    def force_everywhere(self) -> None:
        for place in list(self.model.redis):
            self.force(place)

    def renew(self) -> None:
        for alias in self.clients:
            renewer_of_server = thread_renewer(backends.servers[alias], "a")
            for lease in renewer_of_server._watched():
                lease.due = 0
            renewer_of_server._round()
            self.model.renew(alias)

    # The possible moves

    def moves(self) -> dict[str, Callable[[], Iterator[Move]]]:
        holding = [
            (text, actor)
            for text, lock in self.locks.items()
            for actor in self.actors.values()
            if actor in lock.stacks
        ]
        every = [(text, actor) for text in self.locks for actor in self.actors.values()]
        strange = [pair for pair in every if pair not in holding]
        sorts = {
            "acquire": partial(moves, [self.acquire], every),
            "stranger": partial(moves, [self.release, self.leave, self.extend], strange),
            "look": partial(moves, [self.look], every),
            "mishap": self.mishaps,
        }
        if holding:
            ways = [self.release, self.release, self.leave]
            sorts["release"] = partial(moves, ways, holding)
            sorts["extend"] = partial(moves, [self.extend, self.reacquire], holding)
        return sorts

    def mishaps(self) -> Iterator[Move]:
        yield Move("the renewal comes round", self.renew)
        for place, inside in self.model.redis.items():
            if inside:
                yield Move(f"all are forced out of {place}", partial(self.force, place))
            for number, lease in enumerate(inside):
                text = f"{lease.actor}, no. {number} of {place}, is forced out"
                yield Move(text, partial(self.force, place, lease))
        if len(self.clients) > 1 and any(self.model.redis.values()):
            yield Move("all are forced out everywhere", self.force_everywhere)
        for text, lock in self.locks.items():
            if lock.stacks:
                yield Move(f"the object {text!r} is dropped", partial(self.drop, text))
        for name, actor in self.actors.items():
            yield Move(f"{actor} ends", partial(self.end, name))

    def next_move(self) -> st.SearchStrategy[Move]:
        moves = self.moves()
        sorts = [sort for sort in moves for _ in range(OFTEN[sort])]
        return st.sampled_from(sorts).flatmap(lambda sort: st.sampled_from(list(moves[sort]())))

    @rule(move=st.runner().flatmap(lambda hands: hands.next_move()))
    def then(self, move: Move) -> None:
        self.make(move)

    def make(self, move: Move) -> None:
        self.fine = False  # `teardown` checks nothing after a failed move
        move.make()
        self.check_redis()
        self.check_beliefs()
        self.fine = True

    # Checks after each move

    def check_redis(self) -> None:
        for alias in self.clients:
            infos = {Place(alias, info.name): info for info in at(alias).active()}
            held = [place for place, inside in self.model.redis.items() if inside]
            agree(sorted(infos), sorted(place for place in held if place.alias == alias))
            for place, info in infos.items():
                self.check_holders(place, info)
        for hold in chain.from_iterable(lock.all_holds() for lock in self.locks.values()):
            fences = {(lease.place.name, lease.fence) for lease in hold.leases}
            assert len(fences) == len(hold.fences), f"{fences} for one hold"

    def check_holders(self, place: Place, info: Any) -> None:
        inside = self.model.redis[place]
        found = [(info.kind, each.holder.thread, each.weight) for each in info.holders]
        assert found == [(each.kind, each.actor.name, each.weight) for each in inside]
        for lease, holding in zip(inside, info.holders, strict=True):
            if not lease.fence:
                assert holding.fence_token > self.greatest.get(place, 0), "an old fencing token"
                lease.fence = self.greatest[place] = holding.fence_token
            assert lease.fence == holding.fence_token

    def check_beliefs(self) -> None:
        for actor in self.actors.values():
            found, expected = actor.does(self.believed), self.expected(actor)
            differ = {
                key: (found[key], expected[key]) for key in found if found[key] != expected[key]
            }
            assert not differ, f"{actor} believes, and should: {differ}"
        assert {text: len(told) for text, told in self.told.items()} == {
            text: lock.told for text, lock in self.locks.items()
        }

    def believed(self) -> dict[str, object]:
        seen: dict[str, object] = {text: looks(real) for text, real in self.reals.items()}
        for place in self.places():
            seen[str(place)] = outcome(partial(at(place.alias).assert_held, place.name))
        return seen

    def expected(self, actor: Actor) -> dict[str, object]:
        seen: dict[str, object] = {}
        for text, lock in self.locks.items():
            known = lock.known(actor)
            fences = known.fences if known else {}
            seen[text] = bool(known), lock.lost(actor), fences, self.model.assert_held(lock, actor)
        for place in self.places():
            seen[str(place)] = self.model.assert_held_at(place, actor)
        return seen

    def places(self) -> list[Place]:
        return sorted({place for lock in self.locks.values() for place in lock.places})

    # The end

    def teardown(self) -> None:
        try:
            if self.fine:
                self.everybody_goes()
        finally:
            for actor in self.actors.values():
                actor.end()
            self.reals.clear()
            for client in self.clients.values():
                client.flushdb()

    def everybody_goes(self) -> None:
        for text, lock in self.locks.items():
            for actor in self.actors.values():
                while actor in lock.stacks:
                    self.release(text, actor)
        for text in self.locks:
            self.drop(text)  # an actor that ended cannot release
        self.check_redis()
        self.force_everywhere()
        assert [name for client in self.clients.values() for name in leftovers(client)] == []
        threads = {actor.thread for actor in self.everybody}
        assert [key for key in leases._leases if key[2] in threads] == []
        kept = chain.from_iterable(
            thread_renewer(backends.servers[each], "a")._watched() for each in self.clients
        )
        assert [lease for lease in kept if lease.owner() in threads] == []


def agree(found: object, expected: object) -> None:
    assert found == expected, f"found {found}, expected {expected}"


def moves(
    ways: list[Callable[[str, Actor], None]], pairs: list[tuple[str, Actor]]
) -> Iterator[Move]:
    for text, actor in pairs:
        for way in ways:
            yield Move(f"{actor}: {way.__name__} {text!r}", partial(way, text, actor))


def looks(real: BaseLock) -> tuple[bool, bool, Mapping[str, int], object]:
    held = real.token is not None
    tokens = real.fence_tokens if isinstance(real, MultiLock) else {real.name: real.fence_token}
    known = {name: token for name, token in tokens.items() if token is not None}
    return held, real.lost, known, outcome(real.assert_held)


def token_of(manager: LockManager, lease: Lease) -> str:
    info = manager.get(lease.place.name)
    assert info
    [token] = [each.token for each in info.holders if each.fence_token == lease.fence]
    return token


class MutexHands(Hands):
    makes: ClassVar[Mapping[str, Make]] = {
        "a": on_default("lock", "a"),
        "a again": on_default("lock", "a", reentrant=True),
        "b again": on_default("lock", "b", reentrant=True, auto_renewal=False),
        "ab": on_default("lock_many", ["a", "b"]),
        "ab again": on_default("lock_many", ["a", "b"], reentrant=True),
        "bc again": on_default("lock_many", ["b", "c"], reentrant=True),
        "another c": on_default("semaphore", "c", 2),
    }


class SharedHands(Hands):
    makes: ClassVar[Mapping[str, Make]] = {
        "1 of a": on_default("semaphore", "a", 2),
        "1 of a again": on_default("semaphore", "a", 2, reentrant=True),
        "2 of a again": on_default("semaphore", "a", 2, weight=2, reentrant=True),
        "read b": on_default("read_lock", "b", auto_renewal=False),
        "read b again": on_default("read_lock", "b", reentrant=True),
        "write b again": on_default("write_lock", "b", reentrant=True),
    }


class QuorumHands(Hands):
    makes: ClassVar[Mapping[str, Make]] = {
        "a": on_default("quorum", "a", SERVERS),
        "a again": on_default("quorum", "a", SERVERS, reentrant=True),
        "a once more": on_default("quorum", "a", SERVERS, reentrant=True, auto_renewal=False),
        "another a": partial(at("m1").lock, "a", reentrant=True),
    }


HandsOf = Callable[[str], type[Hands]]

HANDS = {"mutex": MutexHands, "shared": SharedHands, "quorum": QuorumHands}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """The addresses of the quorum's servers."""
    with ExitStack() as stack:
        started = {alias: stack.enter_context(EmbeddedServer()) for alias in SERVERS}
        yield {alias: server.url for alias, server in started.items()}


@pytest.fixture
def quorum(request: pytest.FixtureRequest, settings: Any) -> dict[str, str]:
    urls = request.getfixturevalue("servers")
    backend = settings.CACHES["default"]["BACKEND"]
    told = {alias: {"BACKEND": backend, "LOCATION": url} for alias, url in urls.items()}
    settings.CACHES = {**settings.CACHES, **told}
    return urls


@pytest.fixture
def hands_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandsOf]:
    """The machine of a kind, on its servers."""
    monkeypatch.setattr(ThreadRenewer, "wake", lambda renewer_of_server: None)
    monkeypatch.setattr(renewer, "_thread_renewers", {})  # no thread of these has begun
    monkeypatch.setattr(quorums, "MAX_REPLY_SECONDS", 30)  # this does not test a busy machine
    monkeypatch.setattr(quorums, "MAX_REPLY_FRACTION", 1)
    with ExitStack() as stack:
        gc.freeze()  # to collect what comes after takes little
        stack.callback(gc.unfreeze)

        def make(kind: str) -> type[Hands]:
            urls = {"default": os.environ["REDIS_URL"]}
            if kind == "quorum":
                urls = request.getfixturevalue("quorum")
            clients = {
                alias: stack.enter_context(redis.Redis.from_url(url, decode_responses=True))
                for alias, url in urls.items()
            }
            return type("Hands", (HANDS[kind],), {"clients": clients})

        yield make


KINDS = [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in HANDS]


@pytest.mark.timeout(900)  # with the profile "long"
@pytest.mark.parametrize("kind", KINDS)
def test_the_objects_do_what_the_model_says(kind: str, hands_of: HandsOf) -> None:
    how = settings(max_examples=settings().max_examples // 3, stateful_step_count=40)
    run_state_machine_as_test(hands_of(kind), settings=how)


# Planted faults


@dataclass(frozen=True)
class Fault:
    name: str
    breaks: str
    function: str
    machine: str
    good: str
    bad: str

    def __str__(self) -> str:
        return self.name

    def place(self) -> FunctionType:
        found = resolve_name(f"django_redislock.{self.function}")
        return getattr(found, "fget", found)

    def code(self) -> CodeType:
        """The code of the function, with the text replaced."""
        function = self.place()
        path = Path(function.__code__.co_filename)
        good = inspect.getsource(function)
        assert good.count(self.good) == 1, f"{self.function} has no: {self.good}"
        source = path.read_text().replace(good, good.replace(self.good, self.bad))
        module = compile(source, path, "exec", dont_inherit=True)
        return next(each for each in codes(module) if each.co_qualname == function.__qualname__)


def codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from codes(each)


FAULTS = [
    Fault(name, **facts)
    for name, facts in tomllib.loads(Path(__file__).with_name("faults.toml").read_text()).items()
]
PLANTED = [
    pytest.param(fault, marks=MARKS.get(fault.machine, ()), id=fault.name) for fault in FAULTS
]


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(
    fault: Fault, hands_of: HandsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = hands_of(fault.machine)
    with monkeypatch.context() as planted:
        planted.setattr(fault.place(), "__code__", fault.code())
        check_found(fault.name, machine)
    check_harmless(fault.name, machine)
