"""What is installed: the artefacts' contents, and how a user's project likes them."""

import os
import re
import subprocess
import tarfile
import textwrap
import tomllib
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import django_redislock
from tests.tools import ROOT

from .artefacts import Artefacts, differing, unfit, unlike
from .installing import beside

# Built once, in one test process.
pytestmark = pytest.mark.xdist_group("packaging")

GENERATED = {"__pycache__", "_build", "node_modules"}
KEPT = ("benchmarks", "django_redislock", "docs", "testproject", "tests")


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    return Artefacts.built(ROOT, tmp_path_factory.mktemp("dist"), isolated=False)


@pytest.fixture(scope="session")
def python(artefacts: Artefacts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, and not this checkout."""
    return beside(artefacts.wheel, tmp_path_factory.mktemp("site") / "venv")


@pytest.fixture(scope="session")
def metadata(artefacts: Artefacts) -> Metadata:
    return artefacts.metadata


def run(
    python: Path, *arguments: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Python with warnings as errors; AssertionError with what it wrote if it fails."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-W", "error", *arguments],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def tree() -> set[str]:
    """What there is in this folder and belongs to it, also where it is no git checkout."""
    below = (path for name in KEPT for path in (ROOT / name).rglob("*"))
    files = {*below, *ROOT.glob("*.md"), *map(ROOT.joinpath, ("LICENSE", "Makefile"))}
    files |= {ROOT / name for name in (".gitignore", "pyproject.toml", "tox.ini")}
    return {
        str(path.relative_to(ROOT))
        for path in files
        if path.is_file() and not GENERATED & {*path.parts} and not path.match("*.sqlite3*")
    }


def test_the_wheel_and_the_sdist_have_every_file_and_nothing_else(artefacts: Artefacts) -> None:
    assert list(differing(artefacts, ROOT, tree())) == []


@pytest.mark.parametrize(
    "wanted",
    [
        "lua/_lock.lua",
        "templates/admin/django_redislock/activelock/change_list.html",
        "static/django_redislock/list.js",
        "static/django_redislock/admin.css",
        "locale/zh_Hans/LC_MESSAGES/django.mo",
        "migrations/0001_initial.py",
        "management/commands/locks.py",
        "py.typed",
    ],
)
def test_the_wheel_has_what_a_project_needs(artefacts: Artefacts, wanted: str) -> None:
    assert f"django_redislock/{wanted}" in artefacts.in_wheel()


def test_the_wheel_has_the_licence(artefacts: Artefacts) -> None:
    assert f"{artefacts.dist_info}/licenses/LICENSE" in artefacts.in_wheel()


def test_the_sdist_builds_the_same_wheel(artefacts: Artefacts) -> None:
    """It was built of the sdist, and this asks the tree."""
    assert list(unlike(artefacts, ROOT)) == []


def test_an_index_takes_the_metadata_and_shows_the_readme(artefacts: Artefacts) -> None:
    assert list(unfit(artefacts, django_redislock.__version__)) == []


def test_at_run_time_only_django_and_redis_are_needed(metadata: Metadata) -> None:
    needs = [each for each in metadata.requires_dist or [] if not each.marker]
    assert {*map(str, needs)} == {"django>=5.2", "redis>=5.0.3"}


def test_every_extra_brings_something(metadata: Metadata) -> None:
    brought = {
        extra
        for extra in metadata.provides_extra or []
        for need in metadata.requires_dist or []
        if need.marker and need.marker.evaluate({"extra": extra})
    }
    assert brought == {*(metadata.provides_extra or [])}
    assert {"celery", "django-redis", "prometheus", "terminal", "testing"} <= brought


def test_what_the_extras_bring_is_what_the_tests_have() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tested = {
        Requirement(each).name
        for each in project["dependency-groups"]["test"]
        if isinstance(each, str)
    }
    for extra, needs in project["project"]["optional-dependencies"].items():
        assert {Requirement(each).name for each in needs} <= tested, extra


def test_the_metadata_say_licence_and_author(metadata: Metadata) -> None:
    assert str(metadata.license_expression) == "BSD-3-Clause"
    assert metadata.license_files == ["LICENSE"]
    assert metadata.author == "The django-redislock contributors"
    assert metadata.description_content_type == "text/markdown"


@pytest.mark.slow
def test_what_an_index_shows_of_the_readme_is_the_readme(metadata: Metadata) -> None:
    """But for what leads to other files: words stay, addresses go."""
    readme = (ROOT / "README.md").read_text()
    shown = metadata.description or ""
    assert len(shown) > len(readme) * 0.7
    assert re.findall(r"^#+ .+$", shown, re.MULTILINE) == re.findall(
        r"^#+ .+$", readme, re.MULTILINE
    )
    assert re.findall(r"^```.*?^```$", shown, re.MULTILINE | re.DOTALL) == re.findall(
        r"^```.*?^```$", readme, re.MULTILINE | re.DOTALL
    )


def test_the_sdist_is_one_folder(artefacts: Artefacts) -> None:
    with tarfile.open(artefacts.sdist) as archive:
        folders = {name.partition("/")[0] for name in archive.getnames()}
    assert folders == {f"django_redislock-{django_redislock.__version__}"}


def test_what_is_tested_here_is_not_the_checkout(python: Path, tmp_path: Path) -> None:
    code = "import django_redislock, sys; print(django_redislock.__file__); print(*sys.path)"
    file, path = run(python, "-c", code, cwd=tmp_path).stdout.splitlines()
    assert Path(file).is_relative_to(python.parent.parent)
    assert str(ROOT) not in path.split()


def test_every_module_can_be_imported_alone(python: Path, tmp_path: Path) -> None:
    """Where Django is set up, and what the extras bring is there."""
    code = """
        import importlib, pkgutil, django, django_redislock
        from django.conf import settings
        apps = ["django.contrib." + each for each in ("contenttypes", "auth", "admin", "messages")]
        settings.configure(INSTALLED_APPS=[*apps, "django_redislock"])
        django.setup()
        for each in pkgutil.walk_packages(django_redislock.__path__, "django_redislock."):
            importlib.import_module(each.name)
    """
    run(python, "-c", textwrap.dedent(code), cwd=tmp_path)


def test_every_script_is_loaded(python: Path, artefacts: Artefacts, tmp_path: Path) -> None:
    code = (
        "from django_redislock import lua\n"
        "print(*sorted(each.name for each in vars(lua).values() if isinstance(each, lua.Script)))"
    )
    loaded = run(python, "-c", code, cwd=tmp_path).stdout.split()
    there = re.findall(r"lua/([a-z]\w*)\.lua", "\n".join(sorted(artefacts.in_wheel())))
    assert loaded == there


def test_with_celery_comes_what_it_needs_for_redis_as_its_broker(metadata: Metadata) -> None:
    assert Requirement('celery[redis]>=5.4; extra == "celery"') in (metadata.requires_dist or [])


@pytest.mark.parametrize("heavy", ["celery", "django", "redis"])
def test_importing_the_package_imports_nothing_heavy(
    python: Path, tmp_path: Path, heavy: str
) -> None:
    code = f"import django_redislock, sys; assert {heavy!r} not in sys.modules"
    run(python, "-c", code, cwd=tmp_path)


def test_to_have_the_app_installed_imports_nothing_heavy(python: Path, tmp_path: Path) -> None:
    code = (
        "import django, sys\n"
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django.contrib.contenttypes', 'django_redislock'])\n"
        "django.setup()\n"
        "assert not {'redis', 'celery'} & {*sys.modules}\n"
    )
    run(python, "-c", code, cwd=tmp_path)


def test_locks_come_without_celery(python: Path, tmp_path: Path) -> None:
    code = "import sys; from django_redislock import locks; assert 'celery' not in sys.modules"
    run(python, "-c", code, cwd=tmp_path)


def test_every_public_name_is_there(python: Path, tmp_path: Path) -> None:
    code = (
        "import django_redislock\n"
        "for name in django_redislock.__all__: getattr(django_redislock, name)\n"
    )
    run(python, "-c", code, cwd=tmp_path)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lokcs'"):
        django_redislock.lokcs  # noqa: B018  asking is the test


CONTENT_TYPES = ["django.contrib.contenttypes", "django.contrib.auth"]
ADMIN = [
    *CONTENT_TYPES,
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.admin",
]

NO_URLS = "urlpatterns = []"
URLS = """
from django.contrib import admin
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
"""

PAGES = """
import django
django.setup()
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django_redislock import locks

User.objects.create_superuser("ada", password="-")
client = Client(headers={"accept-language": "de"})
client.login(username="ada", password="-")

def show(page, **data):
    path = reverse(f"admin:django_redislock_activelock_{page}", **data)
    answer = client.get(path)
    assert answer.status_code == 200, (path, answer.status_code)
    print(answer.content.decode())

with locks.lock("packaged"):
    show("changelist")
    show("dashboard")
    show("change", args=[locks.get("packaged").name])
"""


class Project:
    """A user's project on the built wheel, as `django-admin` sees it."""

    def __init__(self, folder: Path, python: Path, apps: list[str]) -> None:
        self.folder = folder
        self.python = python
        folder.joinpath("urls.py").write_text(URLS if "django.contrib.admin" in apps else NO_URLS)
        folder.joinpath("theirs.py").write_text(self.settings(apps))

    def settings(self, apps: list[str]) -> str:
        return textwrap.dedent(f"""
            SECRET_KEY = "of a test"
            USE_TZ = USE_I18N = True
            STATIC_URL = "static/"
            ALLOWED_HOSTS = ["testserver"]
            ROOT_URLCONF = "urls"
            DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
            INSTALLED_APPS = {[*apps, "django_redislock"]!r}
            MIDDLEWARE = [
                "django.contrib.sessions.middleware.SessionMiddleware",
                "django.middleware.locale.LocaleMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware",
                "django.contrib.messages.middleware.MessageMiddleware",
            ]
            TEMPLATES = [{{
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {{"context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]}},
            }}]
            DATABASES = {{"default": {{
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": {str(self.folder / "their.sqlite3")!r},
            }}}}
            CACHES = {{"default": {{
                "BACKEND": "django.core.cache.backends.redis.RedisCache",
                "LOCATION": {os.environ["REDIS_URL"]!r},
                "KEY_PREFIX": "theirs",
            }}}}
        """)

    def django(self, *arguments: str) -> str:
        """What `django-admin` writes to stdout, in a project that takes no warning."""
        done = self.run("-m", "django", *arguments)
        assert done.stderr in ("", "System check identified no issues (0 silenced).\n")
        return done.stdout

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(self.python, *arguments, cwd=self.folder, DJANGO_SETTINGS_MODULE="theirs")


@pytest.fixture(
    params=[
        pytest.param([], id="bare", marks=pytest.mark.slow),
        pytest.param(CONTENT_TYPES, id="auth", marks=pytest.mark.slow),
        pytest.param(ADMIN, id="admin"),
    ]
)
def project(request: pytest.FixtureRequest, python: Path, tmp_path: Path) -> Project:
    return Project(tmp_path, python, request.param)


@pytest.fixture
def admin(python: Path, tmp_path: Path) -> Project:
    return Project(tmp_path, python, ADMIN)


def test_a_project_that_installs_the_app_is_clean(project: Project) -> None:
    assert "no issues (0 silenced)" in project.django("check")
    assert "No changes detected" in project.django("makemigrations", "--check", "--dry-run")
    project.django("migrate", "--verbosity", "0")
    assert "activelock" not in project.django("dumpdata", "django_redislock")
    project.django("dumpdata")


@pytest.mark.slow
def test_the_app_makes_no_table(project: Project) -> None:
    sql = project.django("sqlmigrate", "django_redislock", "0001")
    assert "CREATE TABLE" not in sql


@pytest.mark.slow
def test_the_admin_pages_are_shown_with_their_templates_styles_and_words(admin: Project) -> None:
    admin.django("migrate", "--verbosity", "0")
    pages = admin.run("-c", PAGES).stdout
    assert pages.count("packaged") > 3
    for each in ("admin.css", "pages.css", "list.js"):
        assert f"/static/django_redislock/{each}" in pages
        assert f"django_redislock/static/django_redislock/{each}" in admin.django(
            "findstatic", f"django_redislock/{each}"
        )
    assert "Dashboard der Sperren" in pages


@pytest.mark.slow
def test_every_template_of_the_wheel_can_be_loaded(admin: Project, artefacts: Artefacts) -> None:
    names = {
        each.removeprefix("django_redislock/templates/")
        for each in artefacts.in_wheel()
        if each.endswith(".html")
    }
    assert len(names) > 5
    code = (
        "import django; django.setup()\n"
        "from django.template.loader import get_template\n"
        f"for name in {sorted(names)}: print(get_template(name).origin)\n"
    )
    assert admin.run("-c", code).stdout.count(str(admin.python.parent.parent)) == len(names)
