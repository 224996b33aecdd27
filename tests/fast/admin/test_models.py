"""The model's migrations and permissions, and pages with `USE_TZ = False`."""

import json
from io import StringIO

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection

from django_redislock.models import ActiveLock
from tests.commands import run
from tests.pages import DASHBOARD, LIST, user_with

pytestmark = pytest.mark.django_db


def test_migrations_are_complete_and_make_two_permissions_but_no_table():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
    assert ActiveLock._meta.db_table not in connection.introspection.table_names()
    permissions = Permission.objects.filter(content_type__app_label="django_redislock")
    assert {p.codename for p in permissions} == {"view_activelock", "release_activelock"}


def test_dumpdata_finds_no_rows():
    out = StringIO()
    call_command("dumpdata", "django_redislock", stdout=out)
    assert json.loads(out.getvalue()) == []


def test_every_page_and_every_subcommand(settings, empty_history, hold):
    settings.USE_TZ = False
    hold("x").release()
    hold("x")
    viewer = user_with("view_activelock", "release_activelock")

    for page in (LIST, DASHBOARD, f"{LIST}x/history/", f"{LIST}x/change/"):
        assert viewer.get(page).status_code == 200, page
    for line in ("list", "show x", "history --since=1h", "check"):
        assert run(*line.split()).returncode == 0, line
