"""All ways to see locks. Each must show the valid ones, even if Redis has invalid records."""

import asyncio
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from typing import Any, NoReturn

from django.core.management import CommandError, call_command
from django.test import Client
from prometheus_client import CollectorRegistry, generate_latest

from django_redislock import locks, metrics
from django_redislock.admin.addresses import page_address
from tests.lock_fixtures import CORE
from tests.pages import DASHBOARD, LIST, text_of

Look = Callable[[], str]


def ways_to_see(name: str, client: Client) -> Iterator[tuple[str, Look]]:
    """Return the ways to see a lock that is held."""
    yield "active", lambda: repr(list(locks.active()))
    yield "aactive", lambda: repr(asyncio.run(_actives()))
    yield "page", lambda: repr(locks.page())
    yield "page by a pattern", lambda: repr(locks.page("*"))
    yield "get", lambda: repr(locks.get(name))
    yield "get_many", lambda: repr(locks.get_many([name]))
    yield "locks list", lambda: command("list")
    yield "locks list as JSON", lambda: as_json("list")
    yield "locks show", lambda: command("show", name)
    yield "locks show as JSON", lambda: as_json("show", name)
    yield "locks release", lambda: command("release", "--all", "--dry-run")
    for address in (LIST, f"{LIST}?q=*", f"{LIST}?o=1.-2", DASHBOARD, page_of(name)):
        yield address, lambda address=address: page(client, address)


def ways_to_see_the_past(name: str, client: Client) -> Iterator[tuple[str, Look]]:
    """Return the ways to see a lock that was held."""
    yield "history", lambda: repr(locks.history())
    yield "history of one", lambda: repr(locks.history(name))
    yield "locks history", lambda: command("history")
    yield "locks history as JSON", lambda: as_json("history")
    yield "locks show", lambda: command("show", name)
    for address in (DASHBOARD, page_of(name)):
        yield address, lambda address=address: page(client, address)


AWAY = {"BACKEND": CORE, "LOCATION": "redis://127.0.0.1:2/0"}
OTHERS = ("default", "away")


def uses_of_the_alias(client: Client) -> Iterator[Look]:
    """Return the uses of the cache alias `REDISLOCK_CACHE` whose results or errors are texts. A
    quorum has it and `OTHERS`."""
    yield lambda: repr(locks) + repr(locks.lock("a")) + repr(locks.everywhere())
    yield lambda: str(locks.lock("a").acquire(blocking_timeout=0))
    yield lambda: str(asyncio.run(locks.lock("a").aacquire(blocking=False)))
    yield lambda: str(locks.quorum("a", [locks.alias, *OTHERS]).acquire(blocking=False))
    yield lambda: str(locks.get("a"))
    yield lambda: str(locks.health())
    for line in ("check", "check --format=json", "list", "run a -- true"):
        yield lambda line=line: command(*line.split())
    for address in (LIST, DASHBOARD, page_of("a")):
        yield lambda address=address: text_of(client.get(address))
    yield lambda: text_of(client.post(f"{LIST}release/", {"all": "yes"}))
    yield _scraped


def _scraped() -> str:
    registry = CollectorRegistry()
    metrics.install(registry=registry, using=[locks.alias])
    return generate_latest(registry).decode()


def page_of(name: str) -> str:
    return page_address("change", "admin", name)


def page(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200, f"{address} answers {response.status_code}"
    return text_of(response)


def command(*arguments: str) -> str:
    """Return the output of the command `locks`."""
    out = StringIO()
    try:
        call_command("locks", *arguments, stdout=out, stderr=out, no_color=True)
    except (CommandError, SystemExit) as error:
        out.write("".join(traceback.format_exception(error)))
    return out.getvalue()


def as_json(subcommand: str, *arguments: str) -> str:
    """Return the output of the command `locks`, which must be valid JSON."""
    out = StringIO()
    with suppress(CommandError):
        call_command("locks", subcommand, "--format=json", *arguments, stdout=out)
    json.loads(out.getvalue(), parse_constant=_refuse)
    return out.getvalue()


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


async def _actives() -> list[Any]:
    return [info async for info in locks.aactive()]
