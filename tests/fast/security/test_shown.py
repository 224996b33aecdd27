"""Text from strangers stays text in pages, in the terminal, in JSON, in metrics and in logs."""

import json
import logging
from collections import Counter
from html.parser import HTMLParser

import pytest
from django.contrib.admin.models import LogEntry
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_redislock import LockLost, locks, metrics
from django_redislock.names import fit_name
from django_redislock.text import printable
from tests.pages import DASHBOARD, LIST, text_of

from .forging import INFO, fuzzed, key_of, texts
from .looking import as_json, command, page, page_of

pytestmark = pytest.mark.django_db

FRAGMENTS = [
    "<script>alert(1)</script>",
    "</title></svg></textarea></style></script><svg onload=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "' onfocus='alert(1)' autofocus '",
    "<!-- ",
    " -->",
    "<![CDATA[",
    "<?php",
    "&lt;b&gt;&#x3c;b&#62;&notit;",
    "{{ name }}{% now 'Y' %}{# x #}",
    "%(name)s %s {name} {0}",
    "javascript:alert(1)",
    "\\u003cb\\u003e\\x3cb\\x3e",
    "\x1b[31m\x1b]0;title\x07\x9b31m",
    "\r\n\t\v\f\x85\u2028\u2029",
    "\u202e\u2066\u200f\ufeff\u00ad\U000e0041",
    "\x00\ud800\udfff\ufffe",
    "[red]x[/red]",
    "\\n\\",
]

hostile = (
    st.lists(st.sampled_from(FRAGMENTS) | texts, min_size=1, max_size=4).map("".join).filter(bool)
)

SAME_LENGTH = str.maketrans(dict.fromkeys("<>&\"'", "x"))


MOVING = {"line", "text"}
"""The elements of a chart's axis. Their number depends on the time of day."""

ADDRESSES = {"href", "src", "action", "formaction", "xlink:href"}


class Page(HTMLParser):
    """A page, parsed like in a browser."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shape: Counter[tuple[str, ...]] = Counter()
        """The number of each element, by its name and the names of its attributes."""
        self.addresses: set[str] = set()
        self.text = ""
        """The text and the values of attributes, except for hidden values of forms."""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in MOVING:
            self.shape[tag, *(name for name, _ in attrs)] += 1
        for name, value in attrs:
            if (tag, name) != ("input", "value"):
                self.text += f"{value or ''}\n"
            if name in ADDRESSES:
                self.addresses.add(value or "")

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"

    def handle_comment(self, data: str) -> None:
        self.shape["no element", data] += 1

    handle_decl = unknown_decl = handle_pi = handle_comment


class Stranger:
    """All texts that the holder of a lock can choose."""

    def __init__(self, name, values):
        self.name = fit_name(name)
        # JSON combines two surrogates into one character.
        self.values = json.loads(json.dumps(values))

    def harmless(self):
        """Return texts of the same lengths without special characters of HTML."""
        values = [each.translate(SAME_LENGTH) for each in self.values]
        return Stranger(self.name.translate(SAME_LENGTH), values)

    def write(self, tenant):
        """Write a holder, a waiter and events with the texts."""
        host, thread, task, task_id, key, value = self.values
        about = {"host": host, "thread": thread, "metadata": {key: value}}
        info = json.dumps(INFO | about | {"task_name": task, "task_id": task_id})
        tenant.client.flushdb()
        tenant.lock(self.name, tenant.holder(info, lease="200000"), beside=self.name)
        tenant.queue(self.name, tenant.waiter(info, grant_ttl="60000"))  # the next waiter
        event = tenant.event(self.name, tenant.holder(info), info)
        for stream in ("ended", "broken", "refused"):
            tenant.client.xadd(key_of(self.name, stream), event | {"how": "expired"})


strangers = st.builds(Stranger, hostile, st.lists(hostile, min_size=6, max_size=6))


def pages(stranger, client):
    """Yield each page that shows a lock, up to its release."""
    yield "the list", page(client, LIST)
    yield "the list, searched", page(client, f"{LIST}?q=*")
    yield "the dashboard", page(client, DASHBOARD)
    yield "its page", page(client, page_of(stranger.name))
    fence = locks.get(stranger.name).fence_token
    seen = json.dumps([[stranger.name, number] for number in (1, fence)])
    ask = client.post(f"{LIST}release/", {"seen": seen})
    yield "the confirmation", text_of(ask)
    done = client.post(f"{LIST}release/", {"seen": seen, "confirmed": "yes"}, follow=True)
    yield "what was done", text_of(done)
    yield "the log of the lock", page(client, page_of(stranger.name).replace("change", "history"))
    yield "the index", page(client, "/admin/")
    gone = client.get(page_of(fit_name(f"{stranger.name[:50]} gone")), follow=True)
    yield "the list, of one that is gone", text_of(gone)


@fuzzed(2)
@given(strangers)
@example(Stranger("\u202eevil\u2028", ["x"] * 6))
def test_in_pages(tenant, operator, stranger):
    LogEntry.objects.all().delete()
    stranger.write(tenant)
    found = {what: Page(text) for what, text in pages(stranger, operator)}
    entry = LogEntry.objects.get()
    assert entry.object_repr.isprintable()
    assert entry.change_message.isprintable()
    twin = stranger.harmless()
    LogEntry.objects.all().delete()
    twin.write(tenant)
    for what, text in pages(twin, operator):
        assert found[what].shape == Page(text).shape, f"{what} has other elements"
        assert not steering(found[what].text, "\n\t\xa0"), f"{what} shows what is not printable"
        for address in found[what].addresses:
            assert address[:1] in ("", "/", "?", "#"), f"{what} leads to {address}"
    own = found["its page"].text
    for value in (stranger.name, *stranger.values[:4]):
        assert printable(value) in own


def steering(text, allowed="\n"):
    return {char for char in text if not (char.isprintable() or char in allowed)}


def outputs(name):
    return [
        command("list"),
        command("show", "--", name),
        command("history"),
        command("release", "--dry-run", "--", name),
    ]


@fuzzed(2)
@given(strangers)
@example(Stranger("-j\xad\t\U0004970a", ["x"] * 6))
@example(Stranger("x", ["\ud800"] * 6))
def test_in_the_terminal_and_in_json(tenant, stranger):
    stranger.write(tenant)
    shown = outputs(stranger.name)
    jsons = [as_json(*line) for line in (["list"], ["show", "--", stranger.name], ["history"])]
    [lock] = json.loads(jsons[0])
    [holder] = lock["holders"]
    host, _, _, _, key, value = [
        text.encode(errors="replace").decode() for text in stranger.values
    ]
    assert lock["name"] == stranger.name
    assert (holder["holder"]["host"], holder["metadata"]) == (host, {key: value})
    assert {event["name"] for event in json.loads(jsons[2])} == {stranger.name}
    assert all(text.isascii() and not steering(text) for text in jsons)

    twin = stranger.harmless()
    twin.write(tenant)
    for one, other in zip(shown, outputs(twin.name), strict=True):
        assert not steering(one)
        assert one.count("\n") == other.count("\n"), "there is a line too many"


@settings(max_examples=30)
@given(hostile)
def test_in_metrics(value):
    registry = CollectorRegistry()
    metrics.install(registry=registry, using=[], labels={"area": lambda name: value})
    with locks.lock("metrics"):
        pass
    exposed = generate_latest(registry).decode()

    found = {
        sample.labels["area"]
        for family in text_string_to_metric_families(exposed)
        for sample in family.samples
        if "area" in sample.labels
    }
    assert found == {value.encode(errors="replace").decode()}
    assert all(line.startswith(("#", "redislock_")) for line in exposed.strip().split("\n"))


@given(hostile.map(fit_name))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_in_logs_and_errors(caplog, name):
    caplog.clear()
    caplog.set_level(logging.DEBUG, "django_redislock")
    with pytest.raises(LockLost) as lost, locks.lock(name):
        locks.force_release(name)
    with pytest.raises(KeyError), locks.lock(name):  # noqa: PT012  the release is part of the test
        locks.force_release(name)
        raise KeyError

    messages = [
        record.getMessage() for record in caplog.records if record.name == "django_redislock"
    ]
    assert len(messages) >= 2
    assert all(text.isprintable() for text in (*messages, str(lost.value)))
