"""Operators who take a lock from its holders, while these renew it, let go of it, come again."""

import io
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from django.contrib.messages import get_messages
from django.core.management import CommandError, call_command

from django_redislock.clock import now
from django_redislock.info import LockInfo
from django_redislock.signals import lock_force_released
from tests.tools import wait_until

from .. import client as own
from ..checker import NOT_OWNED
from ..crew import Client, caches, finish_all
from ..falsehoods import Race
from ..scenario import EXCLUSION, Run, Setting, scenario

LEASE = 3.0  # long enough that only operators end a holding, and not a busy machine

A_MOMENT = 1e-6
LOSSES = 5  # so often each holder has to lose the lock in a run


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
    """By the manager, the command and the admin, each in a process of its own: of whoever holds,
    or of one that was seen. Who was forced may work on until it is told, beside the next."""
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
        for hold in race.begun_anew():
            about = {"who": hold.who, "lock": run.lock, "weight": 1, "capacity": 1}
            run.log.write("want", t=(hold.queued or hold.asked) + A_MOMENT, **about)
        wrong = [*race.falsehoods(), *race.overlaps()]
        assert not wrong, f"{len(wrong)} falsehoods: {wrong[:3]}"

    setting.each(body, lanes=3)


def has_lost(client: Client) -> bool:
    return sum(event["what"] == "error" for event in client.events()) >= LOSSES


# What holders do


def use(client: own.Client, lock: str, **options: Any) -> None:
    """Hold it again and again, until there is another order, and renew it meanwhile."""
    while not client.is_told():
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


# What operators do


def prepare(client: own.Client) -> None:
    """The database of the admin, and who may use it."""
    from django.contrib.auth.models import User

    call_command("migrate", verbosity=0)
    User.objects.create_superuser("operator")


def operate(client: own.Client, lock: str, way: str) -> None:
    """Release it again and again, until there is another order."""
    from django_redislock import locks

    while not client.is_told():
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
    told = WAYS[way](info, aimed)
    lock_force_released.disconnect(note)
    about = {"lock": info.name, "asked": asked, "aimed": aimed, "tokens": tokens, "told": told}
    client.log.write("forced", **about)
    for _ in tokens:
        client.log.write("fault", kind="force")


def by_manager(info: LockInfo, token: str | None) -> bool:
    from django_redislock import locks

    return bool(locks.force_release(info.name, token))


def by_command(info: LockInfo, token: str | None) -> bool:
    only = ["--token", token] if token else []
    said = io.StringIO()
    try:
        call_command("locks", "release", info.name, *only, "--yes", stdout=said)
    except CommandError:
        return False
    return said.getvalue().startswith("Released")


def by_admin(info: LockInfo, token: str | None) -> bool:
    from django_redislock.admin.seen import Seen, seen_of

    browser().cookies.pop("messages", None)  # nobody has read those of the last time
    answer = browser().post(RELEASE, {"seen": Seen.dump(seen_of(info)), "confirmed": "1"})
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
    "manager": by_manager,
    "command": by_command,
    "admin": by_admin,
}


def ends(client: own.Client, lock: str) -> list[tuple[int, str, float]]:
    """How and when each holding ended, by its fencing token."""
    from django_redislock import locks

    # Whatever comes between the two looks at clocks makes it less than it is.
    ahead = max(time.time() - now() for _ in range(100))
    return [
        # Redis notes milliseconds; the fencing token is the moment of the turn in microseconds.
        (each.fence_token, each.outcome, max(each.at.timestamp(), each.fence_token / 1e6) - ahead)
        for each in locks.history(lock, limit=1000)
        if each.fence_token
    ]
