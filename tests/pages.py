"""Helpers for tests of the admin: users, what a page contains, and older records in Redis."""

import html
import re
from collections.abc import Callable
from datetime import timedelta
from xml.etree import ElementTree

import redis
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.utils import timezone

from django_redislock import locks
from django_redislock.admin.addresses import page_address

LIST = "/admin/django_redislock/activelock/"
DASHBOARD = LIST + "dashboard/"
RELEASE = LIST + "release/"


def user_with(*codenames: str) -> Client:
    user = User.objects.create_user("-".join(codenames) or "nobody", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def lock_page(client: Client, name: str, **query: str):
    return client.get(page_address("change", "admin", name), query)


def text_of(response) -> str:
    return response.content.decode()


def messages_of(response) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


def listed(client: Client, **query) -> list[str]:
    """Return the names of the locks in the list."""
    return [row.name for row in client.get(LIST, query).context["cl"].result_list]


def forms_of(response, address: str) -> list[dict[str, str]]:
    """Return the hidden fields of the forms with that address, without the CSRF token."""
    form = rf'<form method="post" action="{re.escape(address)}">(.*?)</form>'
    found = []
    for content in re.findall(form, text_of(response), re.DOTALL):
        fields = re.findall(r'name="(\w+)" value="([^"]*)"', content)
        found.append({name: html.unescape(value) for name, value in fields if "csrf" not in name})
    return found


def words_of(response) -> str:
    """Return the page's text without its markup, with single spaces."""
    return " ".join(re.sub(r"<[^>]*>|&nbsp;", " ", text_of(response)).split())


def rows_of(response, section: str) -> list[list[str]]:
    """Return the cells of a section's first table, as plain text."""
    start = f'<section aria-labelledby="redislock-{section}">'
    table = text_of(response).partition(start)[2].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [re.findall(r"<t[hd][ >].*?</t[hd]>", row, re.DOTALL) for row in table.split("</tr>")]
    plain = [[re.sub(r"<[^>]*>", " ", cell).split() for cell in row] for row in rows if row]
    return [[html.unescape(" ".join(words)) for words in row] for row in plain]


def link_to(response, text: str) -> str:
    """The address of the link with that text."""
    [href] = re.findall(rf'<a href="([^"]*)"[^>]*>{re.escape(text)}</a>', text_of(response))
    return html.unescape(href)


def charts_of(response) -> dict[str, ElementTree.Element]:
    """The drawings by their titles; they must be well-formed."""
    found = re.findall(
        r'<svg class="redislock-chart.*?</svg>(?=\s*(?:</div>|<p|<details))',
        text_of(response),
        re.DOTALL,
    )
    charts = [ElementTree.fromstring(each) for each in found]  # noqa: S314  our own page
    return {chart.findtext("title") or "": chart for chart in charts}


def rects(chart: ElementTree.Element, what: str) -> list[ElementTree.Element]:
    """The bars of one sort."""
    return [rect for rect in chart.iter("rect") if what in rect.get("class", "").split()]


def make_past(
    server: redis.Redis, name: str, *, times: int, seconds: float, step: Callable[[int], float]
) -> None:
    """Repeat the last event of a lock as `times` holds of so many seconds. The hold with a number
    ended `step(number)` seconds ago."""
    stream = f"{locks._keys.of(name).history}ended"
    fields = next(fields for _, fields in server.xrevrange(stream) if fields["name"] == name)
    weight, _, fence, _, waited, lease, metadata = fields["holder"].split(" ", 6)
    pipe = server.pipeline()
    now = int(timezone.now().timestamp() * 1000)
    for number in range(times):
        end = now - int(step(number) * 1000)
        start = end - int(seconds * 1000)
        record = " ".join([weight, str(end), fence, str(start), waited, lease, metadata])
        pipe.xadd(stream, fields | {"at": end, "token": f"past{number}", "holder": record})
    pipe.execute()


def postpone(server: redis.Redis, name: str, *, seconds: float) -> None:
    """Let the renewal of a lock appear to be so many seconds older, and the lock as well."""
    _rewrite(server, name, expires=-seconds, acquired=-seconds)


def acquired_before(server: redis.Redis, name: str, *, seconds: float) -> None:
    """Let a lock appear to have been acquired so many seconds earlier."""
    _rewrite(server, name, acquired=-seconds)


def arrived_before(server: redis.Redis, name: str, *, seconds: float) -> None:
    """Let the waiters of a lock appear to have arrived so many seconds earlier."""
    [key] = server.scan_iter(f"*:queue:{name}")
    for token, _ in server.zrange(key, 0, -1, withscores=True):
        server.zincrby(key, -seconds * 1_000_000, token)


def _rewrite(server: redis.Redis, name: str, *, expires: float = 0, acquired: float = 0) -> None:
    [key] = server.scan_iter(f"*:lock:{name}")
    for field, record in server.hgetall(key).items():
        if field.startswith("h:"):
            weight, end, fence, start, rest = record.split(" ", 4)
            end, start = int(end) + int(expires * 1000), int(start) + int(acquired * 1000)
            server.hset(key, field, f"{weight} {end} {fence} {start} {rest}")


def minutes_ago(minutes: float) -> float:
    return timedelta(minutes=minutes).total_seconds()


def ended_at(server: redis.Redis, name: str, *, ago: float) -> None:
    """Let the holds of this lock have ended that many seconds ago."""
    [key] = server.scan_iter("*:history:ended")
    entries = [fields for _, fields in server.xrange(key)]
    server.delete(key)
    for fields in entries:
        at = int(fields["at"]) - int(ago * 1000) * (fields["name"] == name)
        server.xadd(key, fields | {"at": at})
