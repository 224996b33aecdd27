"""The page of one lock, on a real server."""

import contextlib
import html
import re
from threading import Thread

import pytest
from django.contrib import admin
from django.urls import reverse

from django_redislock import LockNotOwnedError, locks
from django_redislock.admin import ActiveLockAdmin, one
from django_redislock.admin.addresses import quote_name
from django_redislock.models import ActiveLock
from tests.pages import (
    HOSTILE,
    LIST,
    acquired_before,
    charts_of,
    make_past,
    marks,
    place,
    postpone,
    rects,
    round_trips,
    text_of,
    user_with,
    words_of,
)
from tests.tools import Child, stopped_holder, wait_until

pytestmark = pytest.mark.django_db

RELEASE = f"{LIST}release/"

TIMELINE = "Who held this lock, and who waits"


@pytest.fixture(autouse=True)
def no_past(redis_server):
    redis_server.flushdb()


@pytest.fixture
def viewer():
    return user_with("view_activelock")


@pytest.fixture
def releaser():
    return user_with("view_activelock", "release_activelock")


def page(client, name, **query):
    return client.get(f"{LIST}{quote_name(name)}/change/", query)


def stand(lock):
    with contextlib.suppress(LockNotOwnedError):  # at the end it is released by force
        lock.acquire(blocking_timeout=60)
        lock.release()


@pytest.fixture
def wait():
    """Stand in a lock's queue, until the end of the test."""
    started = []

    def begin(name, **options):
        before = locks.get(name).waiters
        thread = Thread(target=stand, args=(locks.lock(name, timeout=30, **options),))
        thread.start()
        started.append((name, thread))
        wait_until(lambda: locks.get(name).waiters > before)

    yield begin
    for name, thread in started:
        while thread.is_alive():
            locks.force_release(name)
            thread.join(0.05)


# How it stands


def test_page_says_in_a_sentence_how_the_lock_stands(hold, wait, viewer):
    hold("invoice")
    wait("invoice")
    wait("invoice")

    words = words_of(page(viewer, "invoice"))

    holder = locks.get("invoice").holder
    assert re.search(
        rf"Held by {holder.host}:{holder.pid} for [\d.]+s; renewed [\d.]+s ago;"
        r" 2 wait, the first for [\d.]+s\.",
        words,
    )


def test_a_holder_that_renews_is_not_safe_to_release(hold, viewer):
    hold("invoice", timeout=30)

    response = page(viewer, "invoice")

    assert response.context["verdict"].level == "held"
    words = words_of(response)
    assert "In use: releasing is not safe." in words
    assert "It may still hang, so check the process." in words
    assert "the holder is notified within 10s" in words


def test_a_holder_that_is_stopped_is_stale(viewer):
    with stopped_holder("stopped", timeout=6):
        response = page(viewer, "stopped")

    words = words_of(response)
    assert response.context["verdict"].level == "stale"
    assert re.search(
        r"Held by .* for [\d.]+s; renewal overdue: last renewed [\d.]+s ago, was due every 2.0s;"
        r" nobody waits",
        words,
    )
    assert re.search(r"Renewal overdue for [\d.]+s: check the process first\.", words)
    assert "Release the lock only if its process is gone." in words
    assert rects(charts_of(response)[TIMELINE], "stale")


def test_of_a_lease_that_is_not_renewed_nothing_tells(hold, viewer):
    hold("fixed", auto_renewal=False)

    response = page(viewer, "fixed")

    assert response.context["verdict"].level == "unknown"
    assert re.search(r"not renewed, expires in \d+s; nobody waits", words_of(response))
    assert "Automatic renewal is off" in words_of(response)


def test_a_renewal_that_is_overdue_is_told_before_the_holder_is_stale(redis_server, hold, viewer):
    hold("late", timeout=90)
    postpone(redis_server, "late", seconds=35)

    words, listed = words_of(page(viewer, "late")), words_of(viewer.get(LIST))

    assert "renewal overdue: last renewed 35s ago, was due every 30s; nobody waits." in words
    assert "Renewal overdue for 5." in words
    assert "s: check the process first." in words
    assert "In use" not in words
    assert "△ overdue renewed 35s ago" in listed


@pytest.mark.parametrize(("timeout", "seconds"), [(90, 31), (6, 2.5), (30, 11)])
def test_a_renewal_that_is_a_little_late_is_not_overdue(
    redis_server, hold, viewer, timeout, seconds
):
    hold("busy", timeout=timeout)
    postpone(redis_server, "busy", seconds=seconds)

    assert page(viewer, "busy").context["verdict"].level == "held"


def test_of_an_at_least_for_that_is_longer_renewal_starts_later(redis_server, hold, viewer):
    hold("daily", timeout=30, at_least_for=60)

    words, listed = words_of(page(viewer, "daily")), words_of(viewer.get(LIST))

    assert re.search(r"renewal starts later, expires in \d+s", words)
    assert "Renewal starts later: not known whether releasing is safe." in words
    assert "Automatic renewal is off" not in words
    assert "○ not yet renewed" in listed
    assert locks.get("daily").renews_later

    # As after 120 s: the 60 s have passed, so the 20 s that are left are of a renewal.
    postpone(redis_server, "daily", seconds=40)
    acquired_before(redis_server, "daily", seconds=80)

    words = words_of(page(viewer, "daily"))
    assert re.search(r"renewed before, expires in \d+s unless it is renewed again", words)
    assert "Renewed before: check the process first." in words


def test_a_lock_that_cools_down_has_been_let_go(hold, viewer):
    hold("often", at_least_for=20).release()

    response = page(viewer, "often")
    locks.force_release("often")

    assert response.context["verdict"].level == "cooldown"
    assert "as asked, it stays taken for" in words_of(response)
    assert "Held since" not in words_of(response)
    assert "<progress" not in text_of(response)


PART_OF_A_QUORUM = "stays held until most of its servers let go of it."


def test_one_servers_part_of_a_quorum_is_told_as_such(hold, releaser, redis_server):
    hold("payout")
    redis_server.hset(locks._keys.of("payout").lock, "kind", "quorum")

    shown = page(releaser, "payout")
    asked = releaser.post(RELEASE, {"seen": shown.context["seen"]})
    confirmed = {"seen": asked.context["seen"], "confirmed": "yes"}
    done = releaser.post(RELEASE, confirmed, follow=True)

    for response in (shown, asked, done):
        assert PART_OF_A_QUORUM in words_of(response)
    hold("other")
    assert PART_OF_A_QUORUM not in words_of(page(releaser, "other"))


def test_who_reads_and_who_writes_is_told(wait, viewer):
    with locks.read_lock("prices", timeout=30):
        writer = locks.write_lock("prices", timeout=30)
        thread = Thread(target=stand, args=(writer,))
        thread.start()
        wait_until(lambda: locks.get("prices").waiters)
        response = page(viewer, "prices")
    thread.join()

    words = words_of(response)
    assert "Access reads" in words
    assert "writes" in words
    assert "Weight" not in words
    assert "Capacity" not in words


def test_a_free_lock_has_its_past(hold, viewer):
    hold("gone").release()

    response = page(viewer, "gone")

    assert response.status_code == 200
    assert "Nobody holds it now." in words_of(response)
    assert [row.outcome.what for row in response.context["past"]] == ["released"]


def test_a_free_lock_without_a_past_leads_to_the_list(viewer):
    assert page(viewer, "never").url == LIST


def test_without_history_only_the_present_is_told(hold, viewer, settings):
    settings.REDISLOCK_HISTORY = 0
    hold("now")
    hold("before").release()

    assert "No history is kept: REDISLOCK_HISTORY is 0." in words_of(page(viewer, "now"))
    assert page(viewer, "before").url == LIST


# Who


def test_every_holder_is_shown(viewer):
    held = [locks.semaphore("pool", 3, timeout=30, metadata={"n": n}) for n in range(3)]
    for each in held:
        assert each.acquire()

    response = page(viewer, "pool")
    fences = [str(each.fence_token) for each in held]
    for each in held:
        each.release()

    cards = response.context["cards"]
    shown = [{label: value for label, value, _ in card.facts} for card in cards]
    assert "Held by 3, the longest for" in words_of(response)
    assert "The processes of 3 holders are running" in words_of(response)
    assert [facts["Fencing token"] for facts in shown] == fences


def test_holders_beyond_the_most_that_are_shown_are_counted(hold, viewer, monkeypatch):
    monkeypatch.setattr(one, "HOLDERS", 1)
    held = [locks.semaphore("pool", 3, timeout=30) for _ in range(3)]
    for each in held:
        assert each.acquire()

    words = words_of(page(viewer, "pool"))
    for each in held:
        each.release()

    assert "2 more holders are not shown." in words


def test_queue_tells_who_waits_first_to_last(hold, wait, viewer):
    hold("queue")
    wait("queue", metadata={"place": "first"})
    wait("queue", metadata={"place": "second"})

    rows = page(viewer, "queue").context["queue"]

    assert [row.place for row in rows] == [1, 2]
    assert "first" in rows[0].metadata
    assert "second" in rows[1].metadata


def test_a_long_queue_is_told_in_part(hold, wait, viewer, monkeypatch):
    monkeypatch.setattr(one, "QUEUED", 1)
    hold("queue")
    wait("queue")
    wait("queue")

    assert "The first 1 of 2." in words_of(page(viewer, "queue"))


def test_metadata_that_are_to_be_hidden_are_hidden_everywhere(hold, wait, viewer, settings):
    settings.REDISLOCK_REDACT = ["pass*"]
    hold("x", metadata={"password": "s3cret", "why": "because"}).release()
    hold("x", metadata={"password": "s3cret", "why": "because"})
    wait("x", metadata={"password": "s3cret", "why": "because"})

    text = text_of(page(viewer, "x"))

    assert "s3cret" not in text
    assert text.count("***") == text.count("because") == 3


# The past


def test_history_tells_how_holdings_ended(hold, viewer):
    hold("x").release()
    hold("x")
    locks.force_release("x")
    hold("x")
    assert not locks.lock("x").acquire(blocking=False)

    response = page(viewer, "x")

    rows = {row.outcome.what: row for row in response.context["past"]}
    assert rows.keys() == {"refused", "forced", "released"}
    for word in ("refused", "forced", "released"):
        assert f'href="#redislock-{word}"' in text_of(response)
    assert rows["refused"].held == ""
    assert rows["released"].held


def test_timeline_shows_wait_and_hold_one_after_the_other(hold, wait, viewer):
    first = hold("x")
    wait("x")
    wait_until(lambda: locks.queue("x")[0].waited > 0.1)
    first.release()
    wait_until(lambda: len(locks.history("x")) == 2)

    chart = charts_of(page(viewer, "x"))[TIMELINE]

    first, second = rects(chart, "released")
    [waiting] = rects(chart, "waiting")
    assert place(waiting)[1] == pytest.approx(place(second)[0], abs=1.5)
    assert place(first)[0] <= place(waiting)[0]
    assert marks(chart) == ["released", "released"]
    heights = [float(rect.get("y")) for rect in (first, second)]
    assert heights[0] < heights[1]


def test_timeline_ends_with_who_holds_and_who_waits(hold, wait, viewer):
    hold("x").release()
    hold("x")
    wait("x")

    response = page(viewer, "x")

    chart = charts_of(response)[TIMELINE]
    [held], [waiting] = rects(chart, "held"), rects(chart, "waiting")
    assert [row.note for row in response.context["chart"].rows][1:] == ["now", "waits"]
    assert place(held)[1] == pytest.approx(place(waiting)[1], abs=1)
    assert marks(chart) == ["released"]


def test_drawing_is_small_whatever_happened(hold, viewer, redis_server):
    hold("x").release()
    make_past(redis_server, "x", times=1000, seconds=1, step=lambda number: 2 * number + 5)

    response = page(viewer, "x")

    chart = charts_of(response)[TIMELINE]
    assert len(list(chart.iter())) < 300
    assert len(response.context["past"]) == one.PAST


# Untrusted text, numbers and time zones


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_the_page(hold, viewer, name):
    hold(name, metadata={"</pre><script>": name}).release()
    hold(name, metadata={"</pre><script>": name})

    response = page(viewer, name)

    assert response.status_code == 200
    assert html.escape(name) in text_of(response)
    assert "<script>alert" not in text_of(response)
    assert "</pre><script>" not in text_of(response)
    assert TIMELINE in charts_of(response)


def test_holders_are_untrusted_too(viewer):
    code = r"""
import threading
from django_redislock import locks
from django_redislock.holder import host
import django_redislock.holder as holder
holder.host = lambda: "<b>host</b>\u202e"
threading.current_thread().name = "</title><script>alert(1)</script>"
lock = locks.lock("told")
lock.acquire()
say("held")
hear()
lock.release()
say("released")
"""
    with Child(code) as child:
        child.expect("held")
        held = page(viewer, "told")
        child.tell()
        child.expect("released")
        past = page(viewer, "told")

    for response in (held, past):
        assert "<b>host" not in text_of(response)
        assert "<script>alert" not in text_of(response)
        assert "\u202e" not in text_of(response)
        assert "&lt;b&gt;host" in text_of(response)
        assert TIMELINE in charts_of(response)


def test_no_locale_gets_into_the_drawing(hold, viewer, settings, redis_server):
    settings.LANGUAGE_CODE = "de"
    settings.USE_THOUSAND_SEPARATOR = True
    lock = hold("x")
    fence = str(lock.fence_token)
    lock.release()
    make_past(redis_server, "x", times=3, seconds=1.5, step=lambda number: number * 7 + 1)

    response = page(viewer, "x")

    [chart] = charts_of(response).values()
    for rect in chart.iter("rect"):
        assert re.fullmatch(r"\d+(\.\d+)?%", rect.get("x"))
        assert re.fullmatch(r"\d+", rect.get("y"))
    assert fence in words_of(response)


def test_times_are_of_the_current_time_zone(hold, viewer, settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    hold("x").release()
    ended = locks.history("x")[0].at

    row = page(viewer, "x").context["past"][0]

    minutes = (ended.hour * 60 + ended.minute + 330) % (24 * 60)
    assert row.at[-8:-3] == f"{minutes // 60:02}:{minutes % 60:02}"


def test_page_has_nothing_that_a_strict_policy_forbids(hold, wait, releaser):
    hold("x", metadata={"a": 1}).release()
    hold("x", metadata={"a": 1})
    wait("x", metadata={"a": 1})

    content = text_of(page(releaser, "x"))
    own = content[content.index('class="redislock-page"') :]

    assert not re.search(r"<style|\sstyle=|<script|\son\w+=", own)


# Several caches


@pytest.fixture
def other(settings):
    settings.CACHES = {
        **settings.CACHES,
        "other": {**settings.CACHES["default"], "KEY_PREFIX": "other"},
        "away": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"},
        "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    }
    return locks.using("other")


def test_a_lock_of_another_cache_has_a_page(hold, viewer, other):
    mine, theirs = hold("x"), hold("x", other)

    here, there = page(viewer, "x"), page(viewer, "x", using="other")

    assert str(mine.fence_token) in words_of(here)
    assert str(theirs.fence_token) in words_of(there)
    assert "Cache alias other" in words_of(there)
    assert f"{LIST}dashboard/?using=other" in text_of(there)


def test_a_lock_is_released_by_any_alias_of_where_it_lives(hold, releaser, settings):
    settings.CACHES = {**settings.CACHES, "twin": settings.CACHES["default"]}
    lock = hold("x")

    seen = page(releaser, "x", using="twin").context["seen"]
    asked = releaser.post(RELEASE, {"seen": seen})
    releaser.post(RELEASE, {"seen": asked.context["seen"], "confirmed": "yes"})

    assert "twin" in seen
    assert not lock.owned()


@pytest.mark.filterwarnings("default")
def test_a_lock_that_only_another_cache_knows_is_found(hold, viewer, other):
    theirs = hold("x", other)

    found = page(viewer, "x")

    assert str(theirs.fence_token) in words_of(found)
    assert "Cache alias other" in words_of(found)
    assert page(viewer, "x", using="default").url == LIST
    assert page(viewer, "y").url == LIST


@pytest.mark.filterwarnings("default")
def test_a_lock_that_another_cache_knows_is_found_while_the_locks_own_is_away(
    hold, viewer, other, settings
):
    theirs = hold("x", other)
    settings.REDISLOCK_CACHE = "away"

    assert str(theirs.fence_token) in words_of(page(viewer, "x"))
    refused = page(viewer, "y")
    assert "The locks of “away” can't be read: " in html.unescape(text_of(refused))
    assert viewer.get(dict(refused.context["aliases"])["other"]).status_code == 200
    assert page(viewer, "x", using="away").status_code == 503
    assert page(viewer, "y").status_code == 503


@pytest.mark.filterwarnings("default")
def test_where_an_alias_could_not_be_asked_it_is_told(viewer, other):
    response = viewer.get(f"{LIST}y/change/", follow=True)

    assert "“y” is not locked now." in words_of(response)
    assert any("The locks of “away” can't" in str(each) for each in response.context["messages"])


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("alias", "status"), [("away", 503), ("memory", 503), ("nonsense", 404), ("<b>", 404)]
)
def test_a_cache_that_is_away_or_none_is_told(viewer, other, alias, status):
    response = page(viewer, "x", using=alias)

    assert response.status_code == status
    assert "<b>" not in text_of(response)


# What it costs


def test_page_costs_three_round_trips(hold, wait):
    hold("x").release()
    hold("x")
    wait("x")
    one.look(locks, "x")  # now the server knows the scripts

    with round_trips() as asked:
        looked = one.look(locks, "x")

    assert looked.waiters
    assert looked.events
    assert len(asked) == 3


# The buttons


def test_only_who_may_release_sees_the_button(hold, viewer, releaser):
    hold("x")

    assert 'name="seen"' in text_of(page(releaser, "x"))
    assert 'name="seen"' not in text_of(page(viewer, "x"))


def test_nothing_is_to_be_released_of_a_free_lock(hold, releaser):
    hold("x").release()

    assert 'name="seen"' not in text_of(page(releaser, "x"))


def test_page_links_the_dashboard(hold, viewer):
    hold("x")

    assert f'href="{reverse("admin:django_redislock_activelock_dashboard")}"' in text_of(
        page(viewer, "x")
    )


# The results of tasks

RESULTS = """
import re
from celery import Celery
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client
from django_redislock import locks

call_command("migrate", verbosity=0)
app = Celery("results", backend="django_celery_results.backends:DatabaseBackend")
app.conf.update(task_store_eager_result=True, broker_url="memory://")
LIST = "/admin/django_redislock/activelock/"

def client(*codenames):
    user = User.objects.create_user("-".join(codenames), is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client

clients = {
    "viewer": client("view_activelock"),
    "both": client("view_activelock", "view_taskresult"),
}

@app.task(bind=True, name="close")
def close(self):
    self.update_state(state="STARTED")
    with locks.lock("invoice", timeout=30):
        tell("held")

def tell(when):
    for who, each in clients.items():
        text = each.get(LIST + "invoice/change/").content.decode()
        links = len(re.findall(r'href="/admin/django_celery_results/taskresult/\\d', text))
        assert "id-of-the-task" in text
        say(f"{when} {who} {links}")

def result_page():
    from django_celery_results.models import TaskResult
    result = TaskResult.objects.get(task_id="id-of-the-task")
    address = f"/admin/django_celery_results/taskresult/{result.pk}/change/"
    assert address in clients["both"].get(LIST + "invoice/change/").content.decode()
    say(f"result {clients['both'].get(address).status_code}")

close.apply(task_id="id-of-the-task").get()
tell("past")
result_page()
from django_celery_results.models import TaskResult
admin.site.unregister(TaskResult)
tell("unregistered")
"""


def test_a_task_leads_to_its_result(tmp_path):
    where = {
        "DJANGO_SETTINGS_MODULE": "tests.results_settings",
        "TESTPROJECT_DB": str(tmp_path / "results.sqlite3"),
    }
    with Child(RESULTS, **where) as child:
        assert child.expect("held viewer") == "0"
        assert child.expect("held both") == "1"
        assert child.expect("past viewer") == "0"
        assert child.expect("past both") == "1"
        assert child.expect("result") == "200"
        assert child.expect("unregistered viewer") == "0"
        assert child.expect("unregistered both") == "0"
        assert child.wait() == 0


def test_a_subclass_may_tell_more_or_otherwise(hold, viewer):
    class Own(ActiveLockAdmin):
        def change_view(self, request, object_id, form_url="", extra_context=None):
            told = {"title": "Ours", "more": "of it"}
            return super().change_view(request, object_id, form_url, extra_context=told)

    hold("x")
    request = page(viewer, "x").wsgi_request
    shown = Own(ActiveLock, admin.site).change_view(request, "x").context_data
    assert (shown["title"], shown["more"]) == ("Ours", "of it")
