"""The sdist and the wheel are complete, and a project can use the wheel."""

import os
import subprocess
from pathlib import Path

import pytest

import django_redislock
from tests.tools import ROOT

from .artefacts import Artefacts, differing, unfit, unlike
from .installing import beside
from .tree import Tree

# The wheel is built once, in one test process.
pytestmark = pytest.mark.xdist_group("packaging")


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    return Artefacts.built(ROOT, tmp_path_factory.mktemp("dist"), isolated=False)


@pytest.fixture(scope="module")
def python(artefacts: Artefacts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, and not this checkout."""
    return beside(artefacts.wheel, tmp_path_factory.mktemp("site") / "venv")


def run(python: Path, *arguments: str, cwd: Path, **environment: str) -> str:
    """Run Python with warnings as errors, and return its output."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-W", "error", *arguments],
        cwd=cwd,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows what belongs to the tree")
def test_the_archives_have_exactly_the_files_of_the_tree(artefacts: Artefacts) -> None:
    listed = Tree(ROOT).git("ls-files", "--cached", "--others", "--exclude-standard").split("\n")
    files = {each for each in listed if each and (ROOT / each).exists()}
    assert list(differing(artefacts, ROOT, files)) == []
    assert list(unlike(artefacts, ROOT)) == []


def test_an_index_accepts_the_metadata_and_renders_the_readme(artefacts: Artefacts) -> None:
    assert list(unfit(artefacts, django_redislock.__version__)) == []
    metadata = artefacts.metadata
    requirements = {str(each) for each in metadata.requires_dist or [] if not each.marker}
    assert requirements == {"django>=5.2", "redis>=5.0.3"}
    assert str(metadata.license_expression) == "BSD-3-Clause"


def test_the_tests_below_use_the_wheel_and_not_the_checkout(python: Path, tmp_path: Path) -> None:
    code = "import django_redislock; print(django_redislock.__file__)"
    assert Path(run(python, "-c", code, cwd=tmp_path).strip()).is_relative_to(python.parent.parent)


INSTALLED = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=['django.contrib.contenttypes', 'django_redislock'])
django.setup()
"""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import django_redislock", {"celery", "django", "redis"}),
        ("from django_redislock import locks", {"celery"}),
        (INSTALLED, {"celery", "redis"}),
    ],
    ids=["package", "locks", "app"],
)
def test_an_import_does_not_load_what_it_does_not_need(
    python: Path, tmp_path: Path, code: str, absent: set[str]
) -> None:
    run(python, "-c", f"{code}\nimport sys\nassert not {absent} & {{*sys.modules}}", cwd=tmp_path)


SETTINGS = """
SECRET_KEY = "of-a-test-" + 5 * "0123456789"
USE_TZ = USE_I18N = True
SECURE_SSL_REDIRECT = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
SECURE_HSTS_SECONDS = 31536000
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = True
STATIC_URL = "static/"
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.admin",
    "django_redislock",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}}
CACHES = {
    name: {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": LOCATION.rpartition("/")[0] + f"/{database}",
    }
    for name, database in {"default": 0, "locks": 3}.items()
}
REDISLOCK_CACHE = "locks"
"""

URLS = """
from django.contrib import admin
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
"""

BARE = """
SECRET_KEY = "of a test"
ROOT_URLCONF = "bare_urls"
INSTALLED_APPS = ["django_redislock"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "bare.sqlite3"}}
CACHES = {"default": {
    "BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": LOCATION
}}
"""

PAGES = """
import importlib, pkgutil
import django
django.setup()
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client
from django.urls import reverse
import django_redislock
from django_redislock import locks

for module in pkgutil.walk_packages(django_redislock.__path__, "django_redislock."):
    importlib.import_module(module.name)
for name in django_redislock.__all__:
    getattr(django_redislock, name)

client = Client(headers={"accept-language": "de"})
client.force_login(User.objects.create_superuser("ada", password="-"))

def show(page, **options):
    path = reverse(f"admin:django_redislock_activelock_{page}", **options)
    answer = client.get(path, secure=True)
    assert answer.status_code == 200, (path, answer.status_code)
    return answer.content.decode()

with locks.lock("packaged"):
    assert "packaged" in show("changelist")
    assert "packaged" in show("change", args=["packaged"])
    assert "Dashboard der Sperren" in show("dashboard")
for name in ("admin.css", "pages.css", "list.js"):
    assert finders.find(f"django_redislock/{name}"), name
"""


@pytest.fixture
def django(python: Path, tmp_path: Path):
    """Run Python in a user's project. Its default settings have the admin and are strict."""
    location = f"LOCATION = {os.environ['REDIS_URL']!r}\n"
    tmp_path.joinpath("urls.py").write_text(URLS)
    tmp_path.joinpath("bare_urls.py").write_text("urlpatterns = []")
    tmp_path.joinpath("full.py").write_text(location + SETTINGS)
    tmp_path.joinpath("bare.py").write_text(location + BARE)

    def django(*arguments: str, settings: str = "full") -> str:
        return run(python, *arguments, cwd=tmp_path, DJANGO_SETTINGS_MODULE=settings)

    return django


@pytest.mark.parametrize(("settings", "strict"), [("bare", []), ("full", ["--deploy"])])
def test_a_project_with_the_app_has_no_warnings_and_no_table(django, settings, strict) -> None:
    def command(*arguments: str) -> str:
        return django("-m", "django", *arguments, settings=settings)

    assert "no issues (0 silenced)" in command("check", *strict, "--fail-level", "WARNING")
    assert "No changes detected" in command("makemigrations", "--check", "--dry-run")
    command("migrate", "--verbosity", "0")
    assert "CREATE TABLE" not in command("sqlmigrate", "django_redislock", "0001")
    assert "activelock" not in command("dumpdata", "django_redislock")


def test_the_admin_of_the_wheel_has_its_templates_styles_and_translations(django) -> None:
    django("-m", "django", "migrate", "--verbosity", "0")
    django("-c", PAGES)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lokcs'"):
        django_redislock.lokcs  # noqa: B018  the access is the test
