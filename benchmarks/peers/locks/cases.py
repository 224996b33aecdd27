"""The cases: faults of a lock, and their effects. Each case returns a cell of the table. The part
before a semicolon is the summary."""

import time
from collections.abc import Callable

from .place import GIVE_UP_SECONDS, Case, Place, User

LEASE = 3  # seconds, unless a case sets its own

MANY = 8

ROUNDS = 5

DOWN_SECONDS = 1.5


CASES: dict[str, Case] = {}


def case(
    title: str, *, users: int, lease: int = LEASE, query: str = "", asks_once: bool = False
) -> Callable[[Callable[[Place], str]], Callable[[Place], str]]:
    def register(run: Callable[[Place], str]) -> Callable[[Place], str]:
        CASES[title] = Case(run, users, lease, query, asks_once)
        return run

    return register


@case("the work takes twice as long as the lease", users=2)
def longer_than_the_lease(place: Place) -> str:
    first, second = place.users
    held = first.does("acquire", place.name)
    second.starts("acquire", place.name)
    taken = second.answer(2 * LEASE)
    left = first.does("release", place.name)
    if not taken:
        return f"kept for {left.at - held.at:.0f} s, renewed"
    return f"lost after {taken.at - held.at:.1f} s; the release {_said(left.said)}"


@case("the holder is killed; another process asks 2 s later", users=2)
def holder_killed(place: Place) -> str:
    first, second = place.users
    first.does("acquire", place.name)
    first.kill()
    killed = time.monotonic()
    time.sleep(2)
    return f"free after {second.does('acquire', place.name).at - killed:.1f} s"


@case("the same, with clients that do not retry", users=2, lease=6, asks_once=True)
@case("the server is killed, and back with its data 1.5 s later", users=2, lease=6)
def server_away(place: Place) -> str:
    first, second = place.users
    names = [f"{place.name}-{number}" for number in range(MANY)]
    begun = time.monotonic()
    for name in names:
        first.does("acquire", name)
    _sleep_until(begun + 3.5)  # all renewals fall into the downtime
    place.node.kill()
    time.sleep(DOWN_SECONDS)
    place.node.start()
    _sleep_until(begun + 2 * place.lease + 1)
    kept = [name for name in names if not second.does("attempt", name).is_yes]
    return f"{len(kept)} of {MANY} kept after {2 * place.lease} s, twice the lease"


@case("the reply to acquire is lost (`blocking=False`)", users=2)
def reply_to_acquire_lost(place: Place) -> str:
    first, second = place.users
    dropped = first.proxy.drop_reply(place.make.acquires)
    asked = first.does("attempt", place.name)
    assert dropped.is_done()
    second.starts("acquire", place.name)
    taken = second.answer(place.lease + 2)
    if asked.is_yes:
        assert not taken, "two hold it"
        return "returns True; the caller holds the lock"
    assert taken, f"the reply was {asked.said}, and no other client acquired the lock"
    waited = taken.at - asked.at
    left = f"taken for {waited:.1f} s without a holder" if waited > 0.5 else "free"
    return f"{_said(asked.said)}; the lock is {left}"


@case("8 waiters, and the holder (0) asks again at once: the order", users=MANY + 1, lease=30)
def order(place: Place) -> str:
    rounds = [_round(place, f"{place.name}-{number}") for number in range(ROUNDS)]
    in_order = [came for came, _ in rounds].count([*range(1, MANY + 1), 0])
    last = f"the last after {max(seconds for _, seconds in rounds):.1f} s"
    if in_order == ROUNDS:
        return f"FIFO; {last}"
    if in_order:
        return f"FIFO in {in_order} of {ROUNDS} rounds; {last}"
    return f"{' '.join(map(str, rounds[0][0]))}; {last}"


def _round(place: Place, name: str) -> tuple[list[int], float]:
    """Return the order of the holders, and the seconds until the last one."""
    first, *others = place.users
    first.does("acquire", name)
    for other in others:
        other.starts_waiting("turn", name)
    released = time.monotonic()
    first.starts("turn_again", name)
    held = {number: _held(user) for number, user in enumerate(place.users)}
    return sorted(held, key=held.__getitem__), max(held.values()) - released


@case("the first waiter is killed, then the lock is released", users=3, lease=4)
def waiter_killed(place: Place) -> str:
    return _with_a_lost_waiter(place, User.kill)


@case("the first waiter is paused (SIGSTOP), then the lock is released", users=3, lease=4)
def waiter_stopped(place: Place) -> str:
    return _with_a_lost_waiter(place, User.stop)


def _with_a_lost_waiter(place: Place, lose: Callable[[User], None]) -> str:
    first, second, third = place.users
    first.does("acquire", place.name)
    for waiter in (second, third):
        waiter.starts_waiting("acquire", place.name)
    lose(second)
    released = time.monotonic()
    first.does("release", place.name)
    taken = third.answer()
    if not taken:
        return f"nobody acquires it in {GIVE_UP_SECONDS:.0f} s"
    return f"{taken.at - released:.1f} s until the next waiter has the lock"


@case("a wait of 20 s, `socket_timeout` is 1 s", users=2, lease=30, query="?socket_timeout=1")
def longer_than_the_socket_timeout(place: Place) -> str:
    first, second = place.users
    first.does("acquire", place.name)
    begun = time.monotonic()
    second.starts("acquire", place.name)
    early = second.answer(20)
    if early:
        return f"{_said(early.said)} after {early.at - begun:.1f} s"
    released = time.monotonic()
    first.does("release", place.name)
    late = second.answer()
    assert late, f"no answer within {GIVE_UP_SECONDS} s"
    after = f"{late.at - released:.1f} s after the release"
    return f"acquires it {after}" if late.is_yes else f"{_said(late.said)} {after}"


@case("the holder is paused past its lease, and writes at once: fencing", users=2)
def late_holder_writes(place: Place) -> str:
    first, second = place.users
    first.does("acquire", place.name)
    second.starts("acquire", place.name)
    first.stop()
    assert second.answer(2 * place.lease + 2)
    assert second.does("write", place.name).is_yes
    first.resume()
    written = first.does("write", place.name).is_yes
    return "no token; the write succeeds" if written else "the write is rejected by its token"


@case("commands sent by a waiter", users=2, lease=30, query="?socket_timeout=60")
def commands_of_a_waiter(place: Place) -> str:
    """The client's timeout is longer than the wait. Otherwise the commands of new connections
    would count, too, because redis-py's default of 5 s ends a blocking command."""
    first, second = place.users
    first.does("acquire", place.name)
    second.starts_waiting("acquire", place.name)
    seconds = 10
    seen = second.watch()
    time.sleep(seconds)
    return f"{len(seen) / seconds:.1f} per second"


def _said(text: str) -> str:
    return "returns " + text if text in ("True", "False", "released") else f"raises {text}"


def _held(user: User) -> float:
    answer = user.answer()
    assert answer, "one never got it"
    return float(answer.said)


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))
