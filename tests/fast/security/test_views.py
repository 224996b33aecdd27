"""The permissions for each view of the admin."""

import json

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils.http import urlencode

from django_redislock.models import ActiveLock
from tests.pages import LIST, text_of, user_with

pytestmark = pytest.mark.django_db

HELD = "held"

VIEWS = {
    "changelist": LIST,
    "release": f"{LIST}release/",
    "revoke": f"{LIST}revoke/",
    "remove": f"{LIST}remove/",
    "dashboard": f"{LIST}dashboard/",
    "add": f"{LIST}add/",
    "history": f"{LIST}{HELD}/history/",
    "delete": f"{LIST}{HELD}/delete/",
    "change": f"{LIST}{HELD}/change/",
    "": f"{LIST}{HELD}/",
}
"""An address of each view. The last view is Django's own, and redirects to the page of a lock."""

PAGES = ("changelist", "dashboard", "history", "change")
"""The views that show locks."""

ALL = ("view_activelock", "release_activelock")


def client_of(**about):
    user = User.objects.create_user("somebody", **about)
    user.user_permissions.set(Permission.objects.filter(codename__in=ALL))
    client = Client()
    client.force_login(user)
    return client


STRANGERS = {
    "nobody": Client,
    "not staff": client_of,
    "inactive staff": lambda: client_of(is_staff=True, is_active=False),
}


@pytest.fixture
def lock(hold):
    """A held lock, which is named in all forms below."""
    return hold(HELD)


def forms(lock):
    """Return the forms that the browser of an operator may send."""
    seen = json.dumps([[HELD, lock.fence_token]])
    action = {"action": "release_selected", "_selected_action": seen}
    return [
        {"seen": seen, "confirmed": "yes"},
        {"all": "yes"},
        action | {"confirmed": "yes", "seen": seen},
        {"post": "yes", "_save": "Save", "name": "other"},
    ]


def answers(client, view, lock):
    """Return the status codes of all forms, and of other methods with their fields in the query,
    and check that no request had an effect."""
    query = urlencode({name: value for form in forms(lock) for name, value in form.items()})
    found = {
        client.generic(method, VIEWS[view], QUERY_STRING=query).status_code
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS")
    }
    found |= {client.post(VIEWS[view], form).status_code for form in forms(lock)}
    assert lock.owned()
    assert not LogEntry.objects.exists()
    return found


def test_every_view_is_covered():
    urls = admin.site.get_model_admin(ActiveLock).get_urls()
    names = [(url.name or "").removeprefix("django_redislock_activelock_") for url in urls]
    assert sorted(names) == sorted(VIEWS)


@pytest.mark.parametrize("who", STRANGERS)
def test_strangers_are_sent_to_the_login(lock, who):
    client = STRANGERS[who]()

    for view, address in VIEWS.items():
        assert answers(client, view, lock) == {302}, view
        assert client.get(address).url.startswith("/admin/login/?next=/admin/"), view


@pytest.mark.parametrize("permissions", [(), ("release_activelock",)])
def test_everything_is_forbidden_without_the_view_permission(lock, settings, permissions):
    client = user_with(*permissions)

    for view, address in VIEWS.items():
        assert answers(client, view, lock) <= ({403} if view else {302, 405}), view
        assert client.get(address, follow=True).status_code == 403, view
    settings.REDISLOCK_CACHE = "an-alias-of-ours"
    for view in (*PAGES, "release"):
        assert "an-alias-of-ours" not in text_of(client.get(VIEWS[view])), view


def test_the_view_permission_alone_changes_nothing(lock):
    client = user_with("view_activelock")

    for view, address in VIEWS.items():
        assert answers(client, view, lock) <= {200, 302, 403, 405}, view
        assert client.get(address).status_code == (200 if view in PAGES else 403 if view else 302)


def test_only_a_post_with_the_csrf_token_changes_something(lock, admin_user):
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)

    for view, address in VIEWS.items():
        for form in forms(lock):
            response = client.post(address, form)
            assert response.status_code == 403, view
            assert "CSRF" in text_of(response), f"{view} refuses it for another reason"
            for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
                client.generic(method, address, QUERY_STRING=urlencode(form))
    assert lock.owned()


def test_pages_are_not_cached_framed_or_sniffed(lock, admin_client):
    form = {"seen": json.dumps([[HELD, lock.fence_token]])}
    shown = [admin_client.get(VIEWS[view]) for view in PAGES]

    for response in (*shown, admin_client.post(VIEWS["release"], form)):
        headers = response.headers
        assert {"no-store", "private"} <= set(headers["Cache-Control"].split(", "))
        assert headers["X-Frame-Options"] == "DENY"
        assert "script-src 'self'" in headers["Content-Security-Policy"]  # for tests/full/browser
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"  # addresses contain names
        assert headers["Content-Type"] == "text/html; charset=utf-8"
