"""All ways to see locks. Each must show the valid ones, even if Redis has invalid records."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from typing import Any, NoReturn

from django.core.management import CommandError, call_command
from django.test import Client

from django_redislock import locks
from django_redislock.admin.addresses import page_address
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
    except CommandError as error:
        out.write(f"CommandError: {error}")
    return out.getvalue()


def as_json(*arguments: str) -> str:
    """Return the output of the command `locks`, which must be valid JSON."""
    out = StringIO()
    with suppress(CommandError):
        call_command("locks", *arguments, "--format=json", stdout=out)
    json.loads(out.getvalue(), parse_constant=_refuse)
    return out.getvalue()


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


async def _actives() -> list[Any]:
    return [info async for info in locks.aactive()]
