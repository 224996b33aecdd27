"""Operators force-release a lock while its holders renew, release and acquire it again."""

import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from django.contrib.messages import get_messages
from django.core.management import CommandError, call_command

from django_redislock import locks
from django_redislock.clock import now
from django_redislock.signals import lock_force_released
from django_redislock.snapshots import LockInfo
from tests.tools import wait_until

from .. import client as own
from ..checker import NOT_OWNED, History, Hold, overlaps
from ..crew import Client, caches, finish_all
from ..events import Event
from ..scenario import EXCLUSION, Run, Setting, scenario

LEASE = 3.0  # long enough that no lease expires on a busy machine

A_MOMENT = 1e-6
LOSSES = 5  # of each holder in a run


@scenario(
    15,
    "Force release racing renew, release and re-acquire",
    runs=30,
    short=3,
    faults=10,
    operations=15,
    may_fail=(EXCLUSION,),
    at_once=True,
)
def force(setting: Setting) -> None:
    """The manager, the command and the admin release the lock of any holder, or of one that was
    seen, each in its own process. A holder believes in its lock until it learns of it, and works
    until its code looks."""
    node = setting.node()
    crew = setting.crew(TESTPROJECT_DB=str(setting.folder / "admin.sqlite3"))
    first = Client(crew, "first", setting.log, caches(node.url), seed="")
    first.ask(f"{__name__}:prepare")
    first.end()

    def body(run: Run) -> None:
        holders = run.clients(crew, node, "holder 1", "holder 2", "holder 3")
        operators = run.clients(crew, node, *(f"operator by {way}" for way in WAYS))
        clients = [*operators, *holders]
        for operator, way in zip(operators, WAYS, strict=True):
            operator.start(f"{__name__}:operate", lock=run.lock, way=way)
        for holder in holders:
            holder.start(f"{__name__}:use", lock=run.lock, timeout=LEASE)
        for holder in holders:
            wait_until(partial(has_lost, holder), timeout=60)
        errors = list(filter(None, finish_all(clients)))
        assert not errors, errors
        events = [event for client in clients for event in client.events()]
        ends = operators[0].ask(f"{__name__}:ends", lock=run.lock)
        race = Race(events, {fence: (how, when) for fence, how, when in ends})
        for hold, t in race.forced():
            run.log.write("taken", t=t, lock=run.lock, fence=hold.fence)
        for hold in race.queued_again():
            about = {"who": hold.who, "lock": run.lock, "weight": 1, "capacity": 1}
            run.log.write("want", t=(hold.queued or hold.asked) + A_MOMENT, **about)
        wrong = [*race.falsehoods(), *race.overlaps()]
        assert not wrong, f"{len(wrong)} false reports: {wrong[:3]}"

    setting.each(body, lanes=3)


def has_lost(client: Client) -> bool:
    return sum(event["what"] == "error" for event in client.events()) >= LOSSES


class Race:
    """Compares the results that holders and operators received with what really happened.

    It reads the history of one lock whose holds were ended only by holders and operators: no
    lease expired.

    Each try of an operator is an event ``forced``, with `asked` (its begin), `aimed` (the token of
    the intended holder, or None for any holder), `tokens` (of the released holders) and `reported`
    (whether the operator read that the lock was released). Holders log ``extended``, with `token`
    and `asked`. `ends` maps fencing tokens to how and when the hold ended, from Redis' history.
    """

    def __init__(self, events: Sequence[Event], ends: Mapping[int, tuple[str, float]]) -> None:
        self.holds = History(events).holds
        self.tries = [each for each in events if each["what"] == "forced"]
        self.extensions = [each for each in events if each["what"] == "extended"]
        self.ends = ends

    def forced(self) -> Iterator[tuple[Hold, float]]:
        """Yield force-released holds and the times, which may precede the holder's knowledge."""
        for hold in self.holds:
            how, when = self.ends.get(hold.fence, ("", 0))
            if how == "forced":
                yield hold, when

    def queued_again(self) -> Iterator[Hold]:
        """Yield holds whose client had lost an earlier grant unnoticed, and was queued again."""
        forced = {hold.fence for hold, _ in self.forced()}
        for hold in self.holds:
            if len(self._tries_at(hold.token)) > (hold.fence in forced):
                yield hold

    def falsehoods(self) -> Iterator[str]:
        yield from self._false_sum()
        for each in self.tries:
            yield from self._false_to_operator(each)
        for hold in self.holds:
            yield from self._false_to_holder(hold)
        for each in self.extensions:
            yield from self._false_extension(each)

    def overlaps(self) -> Iterator[str]:
        """Find overlaps, ignoring holders that were force-released and may not know it yet."""
        for hold, t in self.forced():
            hold.ended, hold.looked = min(hold.ended, t), min(hold.looked, t)
        return overlaps(self.holds)

    def _false_sum(self) -> Iterator[str]:
        """Each forced end must be reported by exactly one operator."""
        reported = sum(len(each["tokens"]) for each in self.tries)
        true = Counter(how for how, _ in self.ends.values())["forced"]
        if reported != true:
            yield f"operators reported {reported} ended holds, but ended {true}"

    def _false_to_operator(self, one: Event) -> Iterator[str]:
        if one["reported"] != bool(one["tokens"]):
            yield f"wrong result for the operator: {one}"
        if one["aimed"] and {*one["tokens"], one["aimed"]} != {one["aimed"]}:
            yield f"another holder than the intended one was released: {one}"
        if one["aimed"] and not one["tokens"] and not self._ends_before(one["aimed"], one["t"]):
            yield f"reported as not held, although the hold had not ended: {one}"

    def _false_to_holder(self, hold: Hold) -> Iterator[str]:
        reported = "released" if hold.lost is None else "forced"
        true, _ = self.ends.get(hold.fence, ("nothing", 0))
        if reported != true:
            yield f"{hold} was reported as {reported}, but was {true}"

    def _false_extension(self, one: Event) -> Iterator[str]:
        [hold] = [each for each in self.holds if each.token == one["token"]]
        forced = [each["t"] for each in self._tries_at(hold.token)]
        if any(hold.began < t < one["asked"] for t in forced):
            yield f"extended after a force release: {one}"

    def _ends_before(self, token: str, t: float) -> bool:
        """Return whether a holder or operator had begun to end the hold before `t`."""
        ends = [hold.ended for hold in self.holds if hold.token == token]
        return min([*ends, *(each["asked"] for each in self._tries_at(token)), t]) < t

    def _tries_at(self, token: str) -> list[Event]:
        return [each for each in self.tries if token in each["tokens"]]


# Orders for holders


def use(client: own.Client, lock: str, **options: Any) -> None:
    """Acquire, renew and release the lock repeatedly, until there is another order."""
    while not client.has_order():
        own.acquire(client, lock, **options)
        own.write(client, lock)
        try:
            renew(client, lock, client.random.choice((None, "extend", "reacquire")))
            own.write(client, lock)
            own.release(client, lock)
        except Exception as error:
            if type(error).__name__ not in NOT_OWNED:
                raise


def renew(client: own.Client, lock: str, how: str | None) -> None:
    if how is None:
        time.sleep(client.random.uniform(0, 0.02))
        return
    for _ in range(client.random.randint(1, 5)):
        held, asked = client.held[lock], now()
        try:
            held.extend(LEASE) if how == "extend" else held.reacquire()
        except Exception as error:
            client.trouble("extend", error, lock)
            own.release(client, lock)
            raise
        client.log.write("extended", lock=lock, token=held.token, asked=asked)


# Orders for operators


def prepare(client: own.Client) -> None:
    """Create the database of the admin, with a user."""
    from django.contrib.auth.models import User

    call_command("migrate", verbosity=0)
    User.objects.create_superuser("operator")


def operate(client: own.Client, lock: str, way: str) -> None:
    """Force-release the lock repeatedly, until there is another order."""
    while not client.has_order():
        info = locks.get(lock)
        if info and info.holders:
            time.sleep(client.random.uniform(0, 0.01))
            release(client, way, info)
        time.sleep(client.random.uniform(0, 0.1))


def release(client: own.Client, way: str, info: LockInfo) -> None:
    aimed = info.token if way == "admin" or client.random.random() < 0.7 else None
    asked = now()
    tokens: list[str] = []

    def note(sender: object, **about: Any) -> None:
        tokens.extend(about["tokens"])

    lock_force_released.connect(note)
    reported = WAYS[way](info, aimed)
    lock_force_released.disconnect(note)
    about = {"lock": info.name, "asked": asked, "aimed": aimed, "tokens": tokens}
    client.log.write("forced", reported=reported, **about)
    for _ in tokens:
        client.log.write("fault", kind="force")


def by_command(info: LockInfo, token: str | None) -> bool:
    only = ["--token", token] if token else []
    said = io.StringIO()
    try:
        call_command("locks", "release", info.name, *only, "--yes", stdout=said)
    except CommandError:
        return False
    return said.getvalue().startswith("Released")


def by_admin(info: LockInfo, token: str | None) -> bool:
    browser().cookies.pop("messages", None)  # discard unread messages of the last request
    seen = json.dumps([(info.name, holding.fence_token) for holding in info.holders])
    answer = browser().post(RELEASE, {"seen": seen, "confirmed": "1"})
    texts = [str(each) for each in get_messages(answer.wsgi_request)]
    return any(text.startswith("Released") for text in texts)


@cache
def browser() -> Any:
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.get(username="operator"))
    return client


RELEASE = "/admin/django_redislock/activelock/release/"
WAYS: dict[str, Callable[[LockInfo, str | None], bool]] = {
    "manager": lambda info, token: bool(locks.force_release(info.name, token)),
    "command": by_command,
    "admin": by_admin,
}


def ends(client: own.Client, lock: str) -> list[tuple[int, str, float]]:
    """Return how and when each hold ended, with its fencing token."""
    # The largest of many differences is the most exact: a delay between both calls reduces it.
    ahead = max(time.time() - now() for _ in range(100))
    return [
        # The history has milliseconds; the fencing token is the time of the grant in microseconds.
        (each.fence_token, each.outcome, max(each.at.timestamp(), each.fence_token / 1e6) - ahead)
        for each in locks.history(lock, limit=1000)
        if each.fence_token
    ]
