"""Text from strangers stays text in pages, in the terminal, in JSON, in metrics and in logs."""

import json
import logging

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

from .forging import INFO, key_of, texts
from .fuzzing import fuzzed
from .html import read
from .looking import as_json, command, page, page_of

pytestmark = pytest.mark.django_db

FRAGMENTS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
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
    "data:text/html,<b>",
    "\\u003cb\\u003e\\x3cb\\x3e",
    "\x1b[31m\x1b]0;title\x07\x9b31m",
    "\r\n\t\v\f\x85\u2028\u2029",
    "\u202e\u2066\u200f\ufeff\u00ad\U000e0041",
    "\x00\ud800\udfff\ufffe",
    "[red]x[/red]",
    "日本 é",
    "\\n\\",
]

hostile = (
    st.lists(st.sampled_from(FRAGMENTS) | texts, min_size=1, max_size=4).map("".join).filter(bool)
)

SAME_LENGTH = str.maketrans(dict.fromkeys("<>&\"'", "x"))


def harmless(text):
    """Return a text of the same length without special characters of HTML."""
    return text.translate(SAME_LENGTH)


class Stranger:
    """All texts that the holder of a lock can choose."""

    def __init__(self, name, values):
        self.name = fit_name(name)
        values = json.loads(json.dumps(values))  # JSON combines two surrogates into one character
        self.host, self.thread, self.task, self.task_id, self.key, self.value = values

    def harmless(self):
        values = (self.host, self.thread, self.task, self.task_id, self.key, self.value)
        return Stranger(harmless(self.name), [harmless(each) for each in values])

    @property
    def info(self):
        return json.dumps(
            INFO
            | {"host": self.host, "thread": self.thread, "metadata": {self.key: self.value}}
            | {"task_name": self.task, "task_id": self.task_id}
        )

    def write(self, tenant):
        """Write a holder, a waiter and events with the texts."""
        tenant.client.flushdb()
        tenant.lock(self.name, tenant.holder(self.info, lease="200000"), beside=self.name)
        tenant.queue(self.name, tenant.waiter(self.info, grant_ttl="60000"))  # the next waiter
        event = tenant.event(self.name, tenant.holder(self.info), self.info)
        for stream in ("ended", "broken", "refused"):
            tenant.client.xadd(key_of(self.name, stream), event | {"how": "expired"})


strangers = st.builds(Stranger, hostile, st.lists(hostile, min_size=6, max_size=6))


def pages(stranger, client):
    """Yield each page that shows a lock, up to its release."""
    yield "the list", page(client, LIST)
    yield "the list, searched", page(client, f"{LIST}?q=*")
    yield "the dashboard", page(client, DASHBOARD)
    yield "its page", page(client, page_of(stranger.name))
    holding = locks.get(stranger.name).holders[0]
    seen = json.dumps([[stranger.name, holding.fence_token, "", stranger.host]])
    gone = json.dumps([[stranger.name, 1, "", stranger.host], *json.loads(seen)])
    ask = client.post(f"{LIST}release/", {"seen": gone})
    yield "the confirmation", text_of(ask)
    done = client.post(f"{LIST}release/", {"seen": gone, "confirmed": "yes"}, follow=True)
    yield "what was done", text_of(done)
    yield "the log of the lock", page(client, page_of(stranger.name).replace("change", "history"))
    yield "the index", page(client, "/admin/")
    gone = client.get(page_of(fit_name(f"{stranger.name[:50]} gone")), follow=True)
    yield "the list, of one that is gone", text_of(gone)


@fuzzed(2)
@given(strangers)
def test_in_pages(tenant, operator, stranger):
    LogEntry.objects.all().delete()
    stranger.write(tenant)
    found = {what: read(text) for what, text in pages(stranger, operator)}
    twin = stranger.harmless()
    LogEntry.objects.all().delete()
    twin.write(tenant)
    for what, text in pages(twin, operator):
        assert found[what].shape == read(text).shape, f"{what} has other elements"
        assert not _steering(found[what].text), f"{what} shows what is not printable"
        for address in found[what].addresses:
            assert address[:1] in ("", "/", "?", "#"), f"{what} leads to {address}"
    own = found["its page"].text
    for value in (stranger.name, stranger.host, stranger.thread, stranger.task, stranger.task_id):
        assert printable(value) in own


def _steering(text):
    return {char for char in text if not (char.isprintable() or char in "\n\t\xa0")}


def outputs(name):
    yield command("list")
    yield command("show", name)
    yield command("history")
    yield command("release", name, "--dry-run")


@fuzzed(2)
@given(strangers)
@example(Stranger("-j\xad\t\U0004970a", ["x"] * 6))
def test_in_the_terminal(tenant, stranger):
    stranger.write(tenant)
    shown = list(outputs(stranger.name))
    twin = stranger.harmless()
    twin.write(tenant)
    for one, other in zip(shown, outputs(twin.name), strict=True):
        assert not {char for char in one if not (char.isprintable() or char == "\n")}
        assert one.count("\n") == other.count("\n"), "there is a line too many"


@fuzzed(2)
@given(strangers)
def test_in_json(tenant, stranger):
    stranger.write(tenant)
    for arguments in (["list"], ["show", stranger.name], ["history"]):
        text = as_json(*arguments)
        assert text.isascii()
        assert not {char for char in text if not (char.isprintable() or char == "\n")}
    [lock] = json.loads(as_json("list"))
    [holder] = lock["holders"]
    assert lock["name"] == stranger.name
    assert holder["holder"]["host"] == stranger.host
    assert holder["metadata"] == {stranger.key: stranger.value}
    events = json.loads(as_json("history"))
    assert [event["name"] for event in events] == [stranger.name] * len(events)


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


def test_a_name_cannot_manipulate_the_log_of_admin_actions(tenant, operator):
    name = "\u202eevil\u2028"
    tenant.lock(name, tenant.holder(), beside=name)
    seen = json.dumps([[name, locks.get(name).fence_token]])

    operator.post(f"{LIST}release/", {"seen": seen, "confirmed": "yes"})

    entry = LogEntry.objects.get()
    assert entry.object_repr == "\\u202eevil\\u2028"
    assert entry.change_message.isprintable()
