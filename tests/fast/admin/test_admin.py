"""The release of locks in the admin."""

import html
import json
import re
from urllib.parse import urljoin

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection

from django_redislock import locks
from django_redislock.signals import lock_force_released
from tests.lock_tools import listening
from tests.pages import LIST, RELEASE, lock_page, messages_of, text_of, words_of

pytestmark = pytest.mark.django_db

NAMES = ["a/b/../c", "..", "_2E", "release", "  ", "x?y=1#z&w%2F;", "é" * 256]


def seen(*held) -> str:
    return json.dumps([(lock.name, lock.fence_token) for lock in held])


def boxes(client, **query) -> dict[str, str]:
    """Return the value of the checkbox of each listed lock, by its name."""
    values = re.findall(
        r'name="_selected_action" value="([^"]*)"', text_of(client.get(LIST, query))
    )
    return {json.loads(html.unescape(value))[0][0]: html.unescape(value) for value in values}


def select(client, *values):
    data = {"action": "release_selected", "_selected_action": values, "index": 0}
    return client.post(LIST, data)


def ask(client, lock):
    """Return the confirmation page of a release on the lock's page."""
    return client.post(RELEASE, {"seen": lock_page(client, lock.name).context["seen"]})


def confirm(client, text, **more):
    return client.post(RELEASE, {"seen": text, "confirmed": "yes"} | more)


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_listed_opened_and_released(hold, releaser, name):
    hold(name)
    changelist = releaser.get(LIST)
    [row] = changelist.context["cl"].result_list
    address = changelist.context["cl"].url_for_result(row)
    assert html.escape(address) in text_of(changelist)
    assert "/.." not in address

    page = releaser.get(address)
    confirmation = releaser.post(RELEASE, {"seen": page.context["seen"]})
    confirm(releaser, confirmation.context["seen"])

    assert page.context["original"].name == confirmation.context["held"][0].info.name == name
    assert locks.get(name) is None


def test_a_release_asks_then_releases_then_logs(hold, releaser, caplog):
    lock, heard = hold("invoice:42"), []

    confirmation = ask(releaser, lock)
    assert lock.owned()
    assert " within 10s " in words_of(confirmation)
    assert lock.token not in text_of(confirmation)
    with listening(lock_force_released, lambda **about: heard.append(about)):
        done = confirm(releaser, confirmation.context["seen"], reason=" It <hangs> ")

    assert messages_of(done) == ["Released “invoice:42”."]
    assert locks.get("invoice:42") is None
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.object_repr) == ("invoice:42", "invoice:42")
    assert f"fencing token {lock.fence_token}" in entry.change_message
    assert lock.token not in entry.change_message
    [event] = locks.history("invoice:42", limit=1)
    assert (event.by, event.reason) == (str(entry.user), "It <hangs>")
    assert "It &lt;hangs&gt;" in text_of(lock_page(releaser, "invoice:42"))
    assert [call["by"] for call in heard] == [entry.user]
    assert "Force-releasing" in caplog.text
    assert lock.token not in caplog.text


def test_only_the_selected_holders_that_were_seen_are_released(hold, releaser):
    old, other = hold("changes"), hold("not selected")
    selected = [boxes(releaser)[lock.name] for lock in (old, hold("stays"))]
    before = select(releaser, *selected)
    old.release()
    new = hold("changes")

    after = select(releaser, *selected)
    done = confirm(releaser, before.context["seen"])

    assert f"is {new.fence_token}." in words_of(after)
    assert [row.info.name for row in after.context["held"]] == ["stays"]
    assert new.owned()
    assert other.owned()
    assert messages_of(done) == [
        "Released “stays”.",
        "Skipped (changed after you opened the page): changes",
    ]
    assert LogEntry.objects.count() == 1


@pytest.mark.filterwarnings("default")
def test_locks_are_named_if_redis_fails_during_a_release(hold, releaser, settings):
    held, caches = [hold(name) for name in ("a", "b", "c")], settings.CACHES
    away = {**caches["default"], "LOCATION": "redis://127.0.0.1:1/0"}

    def fail(**_told):
        settings.CACHES = {"default": away}

    with listening(lock_force_released, fail):
        done = confirm(releaser, seen(*held))
    settings.CACHES = caches

    failed, released, unconfirmed = messages_of(done)
    assert (released, unconfirmed) == ("Released “a”.", "Release not confirmed: b, c")
    assert re.match("A release on “default” failed: .*refused", failed)
    assert [lock.owned() for lock in held] == [False, True, True]


# The log of admin actions


def test_a_locks_page_leads_to_its_history(hold, releaser):
    lock = hold("a b/..")
    confirm(releaser, seen(lock))

    page = lock_page(releaser, lock.name)
    [href] = re.findall(r'<a href="([^"]+)" class="historylink"', text_of(page))
    address = urljoin(page.wsgi_request.get_full_path(), href)  # the browser resolves dots
    history = releaser.get(address)

    assert history.context["object"].name == lock.name
    assert "Force-released." in text_of(history)
    # PostgreSQL would raise.
    assert releaser.get(f"{LIST}a%00/history/").status_code == 404


REFUSE = """
CREATE TRIGGER no_more BEFORE INSERT ON django_admin_log
WHEN (SELECT count(*) FROM django_admin_log) >= 2
BEGIN SELECT RAISE(ABORT, 'attempt to write a readonly database'); END
"""


def test_no_lock_is_released_if_the_log_refuses_its_entry(hold, releaser):
    held = [hold(name) for name in ("a", "b", "c", "d")]
    with connection.cursor() as cursor:
        cursor.execute(REFUSE)  # it goes with the transaction of the test

    done = confirm(releaser, seen(*held))

    assert [lock.owned() for lock in held] == [False, False, True, True]
    assert LogEntry.objects.count() == 2
    refusal, result = messages_of(done)
    assert refusal.endswith("(IntegrityError): c, d")
    assert result == "Released 2 locks."


@pytest.mark.django_db(transaction=True)
def test_the_entry_says_requested_until_redis_has_answered(hold, releaser, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    lock, entries = hold("x"), []

    def listener(**_told):
        assert not connection.in_atomic_block
        entries.append(LogEntry.objects.get().change_message)

    with listening(lock_force_released, listener):
        confirm(releaser, seen(lock))

    assert entries[0].startswith("Force-release requested. Held by ")
    assert LogEntry.objects.get().change_message.startswith("Force-released. Held by ")
