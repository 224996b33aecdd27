"""The changelist and the release of locks."""

import html
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urljoin

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client

from django_redislock import locks
from django_redislock.admin import ActiveLockAdmin
from django_redislock.signals import lock_force_released
from django_redislock.text import holder_text
from tests.lock_tools import listening
from tests.pages import DASHBOARD, HOSTILE, LIST, RELEASE, lock_page, text_of, words_of

pytestmark = pytest.mark.django_db


def page_of(name: str, client: Client) -> str:
    """Return the address that the list has for the page of a lock."""
    response = client.get(LIST)
    rows = response.context["cl"].result_list
    row = next(row for row in rows if row.name == name)
    address = response.context["cl"].url_for_result(row)
    assert html.escape(address) in text_of(response)
    return address


def seen(*held) -> str:
    return json.dumps([(lock.name, lock.fence_token) for lock in held])


def messages_of(response) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


def boxes(client, **query) -> dict[str, str]:
    """Return the value of the checkbox of each listed lock, by its name."""
    values = re.findall(
        r'name="_selected_action" value="([^"]*)"', text_of(client.get(LIST, query))
    )
    return {json.loads(html.unescape(value))[0][0]: html.unescape(value) for value in values}


def select(client, *names, **extra):
    there = boxes(client)
    return post_selected(client, *(there[name] for name in names), **extra)


def post_selected(client, *values, **extra):
    data = {"action": "release_selected", "_selected_action": values, "index": 0} | extra
    return client.post(LIST, data)


def confirm(client, text, **more):
    return client.post(RELEASE, {"seen": text, "confirmed": "yes"} | more)


# The list


def test_list_without_locks_says_so(hold, viewer):
    page = text_of(viewer.get(LIST))
    assert "No lock is held now." in page
    assert f'href="{DASHBOARD}"' in page
    assert "0 active locks" not in page
    hold("x")
    assert "No active lock matches." in text_of(viewer.get(LIST, {"kind": "quorum"}))


def test_a_list_without_locks_has_no_actions(hold, releaser):
    assert 'class="actions"' not in text_of(releaser.get(LIST))
    hold("x")
    page = text_of(releaser.get(LIST, {"kind": "mutex"}))
    assert 'class="actions"' in page
    assert "Show all" not in page
    assert '(<a href="?">1 total</a>)' in text_of(releaser.get(LIST, {"kind": "quorum"}))


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("voice", {"invoice:1", "invoice:22"}),
        ("invoice:?", {"invoice:1"}),
        ("in*2", {"invoice:22"}),
        ("nothing", set()),
        (" ", {"invoice:1", "invoice:22", "report"}),
        ("[i]nvoice", set()),
    ],
)
def test_search_is_by_part_or_pattern(hold, viewer, query, found):
    for name in ("invoice:1", "invoice:22", "report"):
        hold(name)

    rows = viewer.get(LIST, {"q": query}).context["cl"].result_list

    assert {row.name for row in rows} == found


def test_list_takes_a_part_and_says_so(hold, viewer, monkeypatch):
    monkeypatch.setattr(ActiveLockAdmin, "list_max", 2)
    for number in range(3):
        hold(f"n{number}", timeout=30 + number)

    every, some = viewer.get(LIST), viewer.get(LIST, {"q": "n", "kind": "mutex"})

    for page in (every, some):
        assert "3 active locks match. Only the 2 whose leases expire first were read." in text_of(
            page
        )
        assert [row.name for row in page.context["cl"].result_list] == ["n0", "n1"]


# One lock


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_can_be_listed_opened_and_released(hold, releaser, name):
    hold(name)
    address = page_of(name, releaser)

    response = releaser.get(address)
    confirmation = releaser.post(RELEASE, {"seen": response.context["seen"]})
    done = confirm(releaser, confirmation.context["seen"])

    assert (response.status_code, confirmation.status_code, done.status_code) == (200, 200, 302)
    assert "/.." not in address
    for page in (response, confirmation):
        assert html.escape(name) in text_of(page)
        assert "<script>alert" not in text_of(page)
    assert locks.get(name) is None


def test_page_of_a_free_lock_leads_back_to_the_list(viewer):
    response = viewer.get(f"{LIST}gone/change/")

    assert response.url == LIST
    assert messages_of(response) == ["“gone” is not locked on “default” now."]


# Release


def test_the_confirmation_says_who_is_next_and_how_many_wait(hold, wait, releaser):
    hold("x")
    alone = words_of(releaser.post(RELEASE, {"seen": lock_page(releaser, "x").context["seen"]}))
    wait("x")
    wait("x")
    response = releaser.post(RELEASE, {"seen": lock_page(releaser, "x").context["seen"]})

    waiter = holder_text(locks.queue("x")[0])
    assert "Nobody waits." in alone
    assert f"“x”: next is {waiter}, the first of 2 waiters." in words_of(response)


def test_release_of_one_asks_then_releases_then_logs(hold, releaser, caplog):
    lock, heard = hold("invoice:42"), []

    page = releaser.get(page_of("invoice:42", releaser))
    confirmation = releaser.post(RELEASE, {"seen": page.context["seen"]})
    for response in (releaser.get(LIST), page, confirmation):
        assert lock.token not in text_of(response)
    assert locks.get("invoice:42").token == lock.token
    assert 'name="reason"' in text_of(confirmation)
    with listening(lock_force_released, lambda **about: heard.append(about)):
        done = confirm(releaser, confirmation.context["seen"], reason=" It <hangs> ")

    [event] = locks.history("invoice:42", limit=1)
    assert (event.by, event.reason) == (str(LogEntry.objects.get().user), "It <hangs>")
    past = lock_page(releaser, "invoice:42")
    assert "It &lt;hangs&gt;" in text_of(past)
    assert event.by in text_of(past)
    assert locks.get("invoice:42") is None
    assert "<td>within 10s</td>" in text_of(confirmation)
    assert messages_of(done) == ["Released “invoice:42”."]
    (entry,) = LogEntry.objects.all()
    assert (entry.object_id, entry.object_repr) == ("invoice:42", "invoice:42")
    assert entry.is_change()
    assert f"fencing token {lock.fence_token}" in entry.change_message
    assert lock.token not in entry.change_message
    assert [call["by"] for call in heard] == [entry.user]
    [record] = [each for each in caplog.records if "Force-releasing" in each.message]
    assert (record.name, record.levelname) == ("django_redislock", "WARNING")
    assert "using='default' user='view_activelock-release_activelock'" in record.message
    assert f"fence_token={lock.fence_token}" in record.message
    assert lock.token not in caplog.text


def test_release_of_several_is_an_action(hold, releaser):
    kept, *others = [hold(name) for name in ("a", "b", "c")]

    confirmation = select(releaser, "b", "c")
    assert {row.info.name for row in confirmation.context["held"]} == {"b", "c"}
    assert all(locks.get(lock.name) for lock in others)
    done = confirm(releaser, confirmation.context["seen"])

    assert [info.name for info in locks.active()] == [kept.name]
    assert messages_of(done) == ["Released 2 locks."]
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {"b", "c"}


def test_new_holder_is_not_released(hold, releaser):
    hold("stays")
    old = hold("changes")
    before, text, was = select(releaser, "stays", "changes"), boxes(releaser), old.fence_token
    old.release()
    new = hold("changes")

    after = post_selected(releaser, *text.values())
    done = confirm(releaser, before.context["seen"])

    change = f"changed hands: its fencing token was {was}, and is {new.fence_token}."
    assert f"<li>“changes” {change}</li>" in text_of(after)
    assert [row.info.name for row in after.context["held"]] == ["stays"]
    assert new.owned()
    assert locks.get("stays") is None
    assert messages_of(done) == [
        "Released “stays”.",
        "Skipped (changed after you opened the page): changes",
    ]
    assert LogEntry.objects.count() == 1


@pytest.mark.filterwarnings("default")
def test_locks_are_named_if_redis_becomes_unreachable_during_a_release(hold, releaser, settings):
    """The receiver of the signal of the first release stands for a server that fails then."""
    held, caches = [hold(name) for name in ("a", "b", "c")], settings.CACHES

    def fail(**_told):
        settings.CACHES = {"default": {**caches["default"], "LOCATION": "redis://127.0.0.1:1/0"}}

    with listening(lock_force_released, fail):
        done = confirm(releaser, seen(*held))
    settings.CACHES = caches

    failed, released, unconfirmed = messages_of(done)
    assert (released, unconfirmed) == ("Released “a”.", "Release not confirmed: b, c")
    assert failed.startswith("A release on “default” failed: ")
    assert [lock.owned() for lock in held] == [False, True, True]


def test_a_release_that_the_server_refuses_is_reported(hold, releaser, redis_server):
    lock = hold("a")
    redis_server.config_set("min-replicas-to-write", 1)
    try:
        done = confirm(releaser, seen(lock))
    finally:
        redis_server.config_set("min-replicas-to-write", 0)

    failed, unconfirmed = messages_of(done)
    assert re.match("A release on “default” failed: .*[Nn]ot enough good replicas", failed)
    assert unconfirmed == "Release not confirmed: a"
    assert lock.owned()


def test_nothing_left_to_release_leads_back_to_the_list(releaser):
    text = json.dumps([(name, fence) for name in "abcdefg" for fence in (1, 2)])

    for response in (releaser.post(RELEASE, {"seen": text}), confirm(releaser, text)):
        assert response.url == LIST
        skipped = "Skipped (changed after you opened the page): a, b, c, d, e and 2 more"
        assert messages_of(response)[-1] == skipped
    assert LogEntry.objects.count() == 0


@pytest.mark.parametrize(
    "text",
    ["", "{}x", "[[1, 2]]", '[["x", 1, "else"]]', '[["x", 1, []]]', '[["x"]]', "[[]]", "null"],
)
def test_crafted_forms_are_bad_requests(releaser, text):
    assert releaser.post(RELEASE, {"seen": text}).status_code == 400
    assert post_selected(releaser, text).status_code == 400
    assert confirm(releaser, text).status_code == 400


@pytest.mark.parametrize("name", ["a b/c", "..", "_2E"])
def test_a_locks_page_leads_to_its_history(hold, releaser, name):
    lock = hold(name)
    confirm(releaser, seen(lock))

    page = lock_page(releaser, name)
    [href] = re.findall(r'<a href="([^"]+)" class="historylink"', text_of(page))
    address = urljoin(page.wsgi_request.get_full_path(), href)  # the browser resolves dots
    history = releaser.get(address)

    assert history.context["object"].name == name
    assert "Force-released." in text_of(history)


@pytest.mark.parametrize("text", ["%00", "a%00", "x" * 513])
def test_an_invalid_name_has_no_history(releaser, text):
    # PostgreSQL would raise for the first two.
    assert releaser.get(f"{LIST}{text}/history/").status_code == 404


# The trace of a release


REFUSE = """
CREATE TRIGGER no_more BEFORE INSERT ON django_admin_log
WHEN (SELECT count(*) FROM django_admin_log) >= %d
BEGIN SELECT RAISE(ABORT, 'attempt to write a readonly database'); END
"""


@contextmanager
def log_table_refuses_after(count: int) -> Iterator[None]:
    """Let the database refuse each new entry of the log of admin actions after the first ones."""
    with connection.cursor() as cursor:
        cursor.execute(REFUSE % count)
        try:
            yield
        finally:
            cursor.execute("DROP TRIGGER no_more")


def entries() -> dict[str, str]:
    return dict(LogEntry.objects.values_list("object_id", "change_message"))


@pytest.mark.parametrize("entered", [0, 2])
def test_no_lock_is_released_if_the_log_refuses_its_entry(hold, releaser, caplog, entered):
    held = [hold(name) for name in ("a", "b", "c", "d")]

    with log_table_refuses_after(entered):
        done = confirm(releaser, seen(*held))

    assert set(entries()) == set("ab"[:entered])
    assert [lock.owned() for lock in held] == [False] * entered + [True] * (4 - entered)
    refusal, result = messages_of(done)
    assert "Not released, because the admin log cannot be written " in refusal
    assert refusal.endswith("(IntegrityError): " + ("c, d" if entered else "a, b, c, d"))
    assert result == ("Released 2 locks." if entered else "Nothing was released.")
    assert "Lock not force-released in the admin" in caplog.text


def test_a_filter_that_does_not_exist_releases_nothing(hold, releaser):
    lock = hold("x")
    response = releaser.post(f"{RELEASE}?host__x=1", {"all": "1"})
    assert response.status_code == 302
    assert lock.owned()


@pytest.mark.django_db(transaction=True)
def test_the_entry_says_requested_until_redis_has_answered(hold, releaser, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    lock, seen_by_listener = hold("x"), []

    def listener(**_told):
        assert not connection.in_atomic_block
        seen_by_listener.append(entries()["x"])

    with listening(lock_force_released, listener):
        confirm(releaser, seen(lock))

    [before] = seen_by_listener
    assert before.startswith("Force-release requested. Held by ")
    assert entries()["x"].startswith("Force-released. Held by ")


# Who may


def test_nothing_can_be_added_changed_or_deleted(hold, admin_client):
    hold("x")

    for page in ("add/", "x/delete/"):
        assert admin_client.get(LIST + page).status_code == 403
        assert admin_client.post(LIST + page, {"post": "yes"}).status_code == 403
    assert admin_client.post(f"{LIST}x/change/", {"name": "y"}).status_code == 403


# Redis away


@pytest.mark.filterwarnings("default")
def test_pages_say_when_redis_is_away(releaser, settings):
    caches = settings.CACHES
    settings.CACHES = {"away": {**caches["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    settings.REDISLOCK_CACHE = "away"
    text = json.dumps([("x", 1)])
    responses = [
        releaser.get(LIST),
        releaser.get(f"{LIST}x/change/"),
        releaser.post(RELEASE, {"seen": text}),
        post_selected(releaser, text),
        confirm(releaser, text),
    ]

    assert [response.status_code for response in responses] == [503] * 5
    for response in responses:
        assert "The locks of “away” cannot be read: " in html.unescape(text_of(response))


def test_a_user_of_the_server_without_a_right_is_told_so(viewer, redis_server, settings):
    default = settings.CACHES["default"]
    location = re.sub("//(.*@)?", "//limited:any@", default["LOCATION"])
    settings.CACHES = {**settings.CACHES, "default": {**default, "LOCATION": location}}
    redis_server.acl_setuser(
        "limited", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-evalsha", "-eval"]
    )
    try:
        refused = viewer.get(f"{LIST}x/change/")
    finally:
        redis_server.acl_deluser("limited")

    assert refused.status_code == 503
    assert "lacks a right that locks need" in text_of(refused)
    assert "check the settings of the cache alias" in text_of(refused)
