"""What is installed: the wheel's contents, and how a user's project likes them."""

import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import django_redislock

from .tools import ROOT

PACKAGE = ROOT / "django_redislock"


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as installed, for a PYTHONPATH: it goes before the checkout."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)  # noqa: S202  our own wheel
    return folder


@pytest.fixture(scope="session")
def metadata(site: Path) -> Message:
    (path,) = site.glob("*.dist-info/METADATA")
    return Parser().parsestr(path.read_text())


def run(
    *arguments: str, cwd: Path, path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Python with warnings as errors; AssertionError with what it wrote if it fails."""
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def package_files() -> set[str]:
    files = (each for each in PACKAGE.rglob("*") if each.is_file() and each.suffix != ".pyc")
    return {str(each.relative_to(ROOT)) for each in files}


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name for name in names if ".dist-info/" not in name} == package_files()


@pytest.mark.parametrize("suffix", [".lua", ".html", ".js", ".css", ".mo", ".typed"])
def test_the_wheel_has_what_is_not_python(wheel: Path, suffix: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith(suffix) for name in archive.namelist())


@pytest.mark.parametrize("wanted", ["tests/conftest.py", "testproject/settings.py", "Makefile"])
def test_the_sdist_has_what_the_tests_need(dist: Path, wanted: str) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        assert f"{path.name.removesuffix('.tar.gz')}/{wanted}" in archive.getnames()


def test_at_run_time_only_django_and_redis_are_needed(metadata: Message) -> None:
    needs = metadata.get_all("Requires-Dist", [])
    assert [each for each in needs if "extra ==" not in each] == ["django>=5.2", "redis>=5.0"]
    extras = ["celery", "django-redis", "prometheus", "terminal"]
    assert metadata.get_all("Provides-Extra") == extras


def test_the_metadata_say_version_licence_and_python(metadata: Message) -> None:
    assert metadata["Version"] == django_redislock.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.11"


@pytest.mark.parametrize("heavy", ["celery", "django", "redis"])
def test_importing_the_package_imports_nothing_heavy(
    site: Path, tmp_path: Path, heavy: str
) -> None:
    code = f"import django_redislock, sys; assert {heavy!r} not in sys.modules"
    run("-W", "error", "-c", code, cwd=tmp_path, path=site)


def test_to_have_the_app_installed_imports_nothing_heavy(site: Path, tmp_path: Path) -> None:
    code = (
        "import django, sys\n"
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django.contrib.contenttypes', 'django_redislock'])\n"
        "django.setup()\n"
        "assert not {'redis', 'celery'} & {*sys.modules}\n"
    )
    run("-W", "error", "-c", code, cwd=tmp_path, path=site)


def test_locks_come_without_celery(site: Path, tmp_path: Path) -> None:
    code = "import sys; from django_redislock import locks; assert 'celery' not in sys.modules"
    run("-W", "error", "-c", code, cwd=tmp_path, path=site)


def test_every_public_name_is_there(site: Path, tmp_path: Path) -> None:
    code = (
        "import django_redislock\n"
        "for name in django_redislock.__all__: getattr(django_redislock, name)\n"
    )
    run("-W", "error", "-c", code, cwd=tmp_path, path=site)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lokcs'"):
        django_redislock.lokcs  # noqa: B018  asking is the test


CONTENT_TYPES = ["django.contrib.contenttypes", "django.contrib.auth"]
ADMIN = [*CONTENT_TYPES, "django.contrib.sessions", "django.contrib.messages"]


class Project:
    """A user's project on the built wheel, as `django-admin` sees it."""

    def __init__(self, folder: Path, site: Path, apps: list[str]) -> None:
        self.folder = folder
        self.site = site
        folder.joinpath("urls.py").write_text("urlpatterns = []")
        folder.joinpath("theirs.py").write_text(self.settings(apps))

    def settings(self, apps: list[str]) -> str:
        return textwrap.dedent(f"""
            SECRET_KEY = "of a test"
            USE_TZ = True
            ROOT_URLCONF = "urls"
            DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
            INSTALLED_APPS = {[*apps, "django_redislock"]!r}
            MIDDLEWARE = [
                "django.contrib.sessions.middleware.SessionMiddleware",
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
        done = run(
            *("-W", "error", "-m", "django", *arguments),
            cwd=self.folder,
            path=self.site,
            DJANGO_SETTINGS_MODULE="theirs",
        )
        assert done.stderr in ("", "System check identified no issues (0 silenced).\n")
        return done.stdout


@pytest.fixture(
    params=[[], CONTENT_TYPES, [*ADMIN, "django.contrib.admin"]], ids=["bare", "auth", "admin"]
)
def project(request: pytest.FixtureRequest, site: Path, tmp_path: Path) -> Project:
    return Project(tmp_path, site, request.param)


def test_a_project_that_installs_the_app_is_clean(project: Project) -> None:
    assert "no issues (0 silenced)" in project.django("check")
    assert "No changes detected" in project.django("makemigrations", "--check", "--dry-run")
    project.django("migrate", "--verbosity", "0")
    assert "activelock" not in project.django("dumpdata", "django_redislock")
    project.django("dumpdata")


def test_the_app_makes_no_table(project: Project) -> None:
    sql = project.django("sqlmigrate", "django_redislock", "0001")
    assert "CREATE TABLE" not in sql
