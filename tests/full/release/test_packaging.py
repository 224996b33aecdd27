"""The sdist and the wheel are complete, and a project can use the wheel."""

import os

import pytest
from readme_renderer import markdown

import django_redislock
from tests.tools import ROOT
from tools.release.artefacts import ADDRESS, Artefacts, differing, unfit, unlike
from tools.release.installing import Place, beside
from tools.release.tree import Tree

# The wheel is built once, in one test process.
pytestmark = pytest.mark.xdist_group("packaging")


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    return Artefacts.built(ROOT, tmp_path_factory.mktemp("dist"), isolated=False)


@pytest.fixture(scope="module")
def place(artefacts: Artefacts, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A project with strict settings, in an environment with the wheel."""
    place = Place(tmp_path_factory.mktemp("place"))
    beside(artefacts.wheel, place.folder / "venv")
    place.start_project(f"LOCATION = {os.environ['REDIS_URL']!r}\n{SETTINGS}")
    file = place.python("-c", "import django_redislock; print(django_redislock.__file__)")
    assert file.startswith(str(place.folder / "venv")), "it uses the checkout"
    return place


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows what belongs to the tree")
def test_the_archives_have_exactly_the_files_of_the_tree(artefacts: Artefacts) -> None:
    listed = Tree(ROOT).files("--cached", "--others", "--exclude-standard")
    files = {each for each in listed if (ROOT / each).exists()}
    assert list(differing(artefacts, files)) == []
    assert list(unlike(artefacts, ROOT)) == []


def test_an_index_accepts_the_metadata_and_renders_the_readme(artefacts: Artefacts) -> None:
    assert list(unfit(artefacts, django_redislock.__version__)) == []
    metadata = artefacts.metadata
    requirements = {str(each) for each in metadata.requires_dist or [] if not each.marker}
    assert requirements == {"django>=5.2", "redis>=5.0.3"}
    assert str(metadata.license_expression) == "BSD-3-Clause"
    page, urls = markdown.render(metadata.description) or "", metadata.project_urls or {}
    addresses = {each for each in ADDRESS.findall(page) if not each.startswith("#")}
    assert "<img " in page
    assert {urls["Documentation"], urls["Changelog"], urls["Issues"]} <= addresses


def test_an_import_does_not_load_unneeded_modules(place: Place) -> None:
    check = "import {}, sys; assert not {} & {{*sys.modules}}"
    place.python("-W", "error", "-c", check.format("django_redislock", {"celery", "django"}))
    place.python("-W", "error", "-c", check.format("django_redislock.manager", {"celery"}))


SETTINGS = """
SECRET_KEY = "of-a-test-" + 5 * "0123456789"
DEBUG = False
SECURE_SSL_REDIRECT = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
SECURE_HSTS_SECONDS = 31536000
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = True
ALLOWED_HOSTS = ["testserver"]
INSTALLED_APPS += ["django_redislock"]
MIDDLEWARE += ["django.middleware.locale.LocaleMiddleware"]
CACHES = {
    name: {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": LOCATION.rpartition("/")[0] + f"/{database}",
    }
    for name, database in {"default": 0, "locks": 3}.items()
}
REDISLOCK_CACHE = "locks"
SILENCED_SYSTEM_CHECKS = ["mail.E001"]  # a new project of Django 6.1 prints its mail
"""

PAGES = """
import importlib, pkgutil
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client
from django.urls import reverse
import django_redislock
from django_redislock import locks

for module in pkgutil.walk_packages(django_redislock.__path__, "django_redislock."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # an extra that is not installed
        assert error.name in ("django_celery_beat", "rest_framework"), error
for name in django_redislock.__all__:
    getattr(django_redislock, name)

client = Client(headers={"accept-language": "de"})
client.force_login(User.objects.create_superuser("ada", password="-"))

def show(page, *arguments):
    path = reverse(f"admin:django_redislock_activelock_{page}", args=arguments)
    answer = client.get(path, secure=True)
    assert answer.status_code == 200, (path, answer.status_code)
    return answer.content.decode()

with locks.lock("packaged"):
    assert "packaged" in show("changelist")
    assert "packaged" in show("change", "packaged")
    assert "Dashboard der Sperren" in show("dashboard")
for name in ("admin.css", "pages.css", "list.js"):
    assert finders.find(f"django_redislock/{name}"), name
"""


def test_a_project_has_no_warning_and_no_table_and_shows_the_pages(place: Place) -> None:
    assert "no issues" in place.manage("check", "--deploy")
    assert "No changes detected" in place.manage("makemigrations", "--check", "--dry-run")
    place.manage("migrate", "--verbosity", "0")
    assert "CREATE TABLE" not in place.manage("sqlmigrate", "django_redislock", "0001")
    assert "activelock" not in place.manage("dumpdata", "django_redislock")
    place.manage("shell", "--command", PAGES)
