"""What the pages claim of settings, names, signals, permissions, keys and times is what the code
has."""

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.dispatch import Signal
from django.urls import reverse

import django_redislock
from django_redislock import (
    LockError,
    LockLost,
    exceptions,
    info,
    locks,
    signals,
    single_instance,
    testing,
)
from django_redislock.conf import Conf, Setting
from django_redislock.engine import flows, lease, renewal
from django_redislock.keys import Keys
from django_redislock.management import subcommands
from django_redislock.management.subcommands import show
from django_redislock.models import ActiveLock
from django_redislock.primitives import Options
from tests.pages import LIST, user_with
from tests.tools import ROOT

DOCS = ROOT / "docs"
PAGES = DOCS / "reference"
PATHS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
CHECKS = ROOT / "django_redislock" / "checks.py"
LUA = ROOT / "django_redislock" / "lua"
ID = re.compile(r"redislock\.[CEIW]\d{3}")
CODE = re.compile(r"`([^`]+)`")


def page(name: str) -> str:
    return (DOCS / name).read_text()


def pages() -> str:
    return "".join(path.read_text() for path in sorted(DOCS.rglob("*.md")))


def headings(path: Path) -> set[str]:
    return set(re.findall(r"^## `(.+?)`", path.read_text(), re.MULTILINE))


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the tables under that heading."""
    under = text.split(f"{heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in under.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def torn(text: str) -> list[str]:
    """The rows that stand in no table: what begins without a heading is none."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"(?:^\|.*\n?)+", outside, re.MULTILINE)
    return [each for each in blocks if not re.match(r".*\n\|[-:| ]+\|(?:\n|$)", each)]


def settings() -> list[Setting[object]]:
    return [each for each in vars(Conf).values() if isinstance(each, Setting)]


# Tables


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_no_table_is_torn(path: Path) -> None:
    assert torn(path.read_text()) == []


def test_a_table_with_a_blank_line_in_it_is_torn() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert torn(f"{table}\n```text\n| 3 | 4 |\n```\n") == []
    assert torn(f"{table}\n| 3 | 4 |\n| 5 | 6 |\n") == ["| 3 | 4 |\n| 5 | 6 |\n"]


# Settings and checks


def test_every_setting_has_its_heading_and_nothing_else_has() -> None:
    assert headings(PAGES / "settings.md") == {each.name for each in settings()}


@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting.name)
def test_a_settings_default_is_as_documented(setting: Setting[object]) -> None:
    default = str(setting.default).removesuffix(".0")
    if isinstance(setting.default, str):
        default = f'"{default}"'
    assert f"## `{setting.name}`\n\nDefault: `{default}`." in page("reference/settings.md")


def test_what_pages_call_a_setting_is_one() -> None:
    of_a_command = {"REDISLOCK_NAME", "REDISLOCK_FENCE_TOKEN"}
    named = set(re.findall(r"REDISLOCK_[A-Z_]+", pages()))
    assert named - of_a_command == {each.name for each in settings()}


def test_every_check_has_its_heading_and_nothing_else_has() -> None:
    ids = set(ID.findall(CHECKS.read_text()))
    assert headings(PAGES / "checks.md") == ids
    assert set(ID.findall(pages())) == ids


# Names


def in_the_api() -> set[str]:
    return set(re.findall(r"^\.\. auto\w+:: (\w+)", page("reference/api.md"), re.MULTILINE))


def test_the_api_has_all_that_is_public() -> None:
    assert set(django_redislock.__all__) - {"locks"} <= in_the_api()
    assert set(testing.__all__) <= in_the_api()
    assert "`django_redislock.locks`" in page("reference/api.md")


@pytest.mark.parametrize("module", [info, exceptions])
def test_the_api_has_all_facts_and_errors(module: Any) -> None:
    own = {name for name, each in vars(module).items() if inspect.isclass(each)}
    own = {name for name in own if getattr(module, name).__module__ == module.__name__}
    assert own <= in_the_api()


def test_the_options_of_locks_are_those_in_the_table() -> None:
    told = {
        cell
        for row in rows(page("reference/locks.md"), "## Making one")
        for cell in CODE.findall(row[0])
    }
    assert {"name", *Options.__annotations__} <= told


def test_the_options_of_single_instance_are_those_in_the_table() -> None:
    told = [row[0] for row in rows(page("reference/single-instance.md"), "# `single_instance`")]
    options = set(inspect.signature(single_instance).parameters) - {"function"}
    assert {name for cell in told for name in CODE.findall(cell)} == options


def test_every_subcommand_has_its_heading() -> None:
    known = {path.stem for path in Path(subcommands.__path__[0]).glob("[!_]*.py")}
    named = headings(PAGES / "operators.md")
    assert {name.removeprefix("manage.py locks ") for name in named} == known


def test_what_the_docs_name_of_the_tests_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", pages()))
    assert "tests/fast/security/test_records.py" in named
    assert not [name for name in named if not (ROOT / name).exists()]


# Signals


def all_signals() -> dict[str, Signal]:
    return {name: each for name, each in vars(signals).items() if isinstance(each, Signal)}


def arguments_told() -> dict[str, set[str]]:
    """The arguments of each signal, as the page has them."""
    text = page("reference/signals.md")
    life, others = rows(text, "## A lock's life"), rows(text, "## What others do to it")
    own = {
        name: set(CODE.findall(row[2]))
        for row in [*life, *others]
        if (name := row[0].strip("`")) in all_signals()
    }
    of_all_six = {row[0].strip("`") for row in life if len(row) == 2} - {"Argument"}
    return {
        name: told | (of_all_six if any(row[0] == f"`{name}`" for row in life) else set())
        for name, told in own.items()
    }


@contextmanager
def listening() -> Iterator[dict[str, set[str]]]:
    """The arguments that each signal was sent with."""
    heard: defaultdict[str, set[str]] = defaultdict(set)

    def listener(name: str) -> Any:
        def hear(signal: Signal, **about: Any) -> None:
            heard[name] |= set(about)

        return hear

    listeners = {name: listener(name) for name in all_signals()}
    for name, hear in listeners.items():
        all_signals()[name].connect(hear)
    try:
        yield heard
    finally:
        for name, hear in listeners.items():
            all_signals()[name].disconnect(hear)


def do_what_is_told_of() -> None:
    lock = locks.lock("docs")
    with lock:
        assert not locks.lock("docs", blocking_timeout=0.01).acquire()
        with pytest.raises(LockError, match="another kind"):
            locks.semaphore("docs", 2).acquire()
        single_instance(key="docs")(do_what_is_told_of)()
    assert lock.acquire()
    assert locks.force_release("docs") == 1
    with pytest.raises(LockLost):
        lock.release()
    replace_a_task()


def replace_a_task() -> None:
    app = Celery("tests.full.docs", broker="memory://", set_as_current=False)

    @single_instance(mode="until_executed", on_conflict="replace", key="docs")
    @app.task(name="tests.full.docs", shared=False)
    def queued() -> None: ...

    queued.delay()
    queued.delay()
    assert locks.force_release("docs") == 1
    app.close()


def test_the_arguments_of_signals_are_those_that_are_sent() -> None:
    with listening() as heard:
        do_what_is_told_of()
    assert dict(heard) == arguments_told()


# What operators read


def test_the_permissions_are_those_of_the_model() -> None:
    meta = ActiveLock._meta
    names = [f"{each}_activelock" for each in meta.default_permissions]
    names += [codename for codename, _ in meta.permissions]
    told = {row[0].strip("`") for row in rows(page("reference/permissions.md"), "# Permissions")}
    assert {f"django_redislock.{name}" for name in names} == {
        each for each in told if each.startswith("django_redislock.")
    }


def test_the_names_of_the_admins_pages_lead_there() -> None:
    named = re.findall(r"`(admin:\w+)`", page("reference/permissions.md"))
    assert len(named) == 4
    for name in named:
        of_one = name.endswith(("change", "history"))
        assert reverse(name, args=["a"] if of_one else []).startswith("/admin/")


@pytest.mark.django_db
def test_the_list_in_the_tutorial_has_the_columns_of_the_admin(settings, hold) -> None:
    settings.CACHES = {"default": settings.CACHES["default"]}
    hold("x")
    page = user_with("view_activelock").get(LIST).content.decode()
    columns = re.findall(r'<th scope="col"[^>]*\bcolumn-(\w+)', page)
    (line,) = re.findall("^Name  .*$", (DOCS / "getting-started" / "tutorial.md").read_text(), re.MULTILINE)
    assert line.lower().split() == columns


def test_the_keys_are_those_of_the_reference() -> None:
    of_one = Keys("p").of("<name>")
    keys = {of_one.lock, of_one.queue, of_one.waiting, of_one.index, of_one.grant("<token>")}
    scripts = "".join(path.read_text() for path in LUA.glob("*.lua"))
    streams = {*re.findall(r"history \.\. '(\w+)'", scripts), "ended", "broken"}
    keys |= {f"{of_one.history}{stream}" for stream in streams}
    told = {row[0].strip("`") for row in rows(page("reference/redis.md"), "## Keys")}
    assert {key.partition("}:")[2] for key in keys} == told - {"Part"}


def test_the_states_at_three_in_the_morning_are_what_the_command_says() -> None:
    table = rows(page("how-to/three-in-the-morning.md"), "## Look at the lock")
    bold = [phrase for row in table for phrase in re.findall(r"\*\*(.+?)\*\*", row[0])]
    said = inspect.getsource(show)
    parts = [part for phrase in bold for part in phrase.split("...")]
    assert len(bold) == 10
    assert [part for part in parts if part not in said] == []


# Times


def seconds_in(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) s\b", text)]


def test_the_times_of_waiters_are_those_of_the_engine() -> None:
    table = rows(page("concepts/waiting.md"), "## Waiters that die")
    told = [second for row in table for second in seconds_in(row[-1])]
    assert told == [flows.SLICE, flows.ALIVE, flows.CLAIM]


@pytest.mark.hurried
def test_the_round_trip_that_is_warned_of_is_that_of_the_engine() -> None:
    findings = dict(row[:2] for row in rows(page("reference/operators.md"), "locks check`"))
    assert f" {flows.GRACE * 1000:g} ms " in findings["`round_trip`"]


def test_the_times_of_renewal_are_those_of_the_engine() -> None:
    table = dict(row for row in rows(page("concepts/leases.md"), "## When"))
    assert seconds_in(table["the lease"]) == [Conf.__dict__["timeout"].default]
    assert (lease.SOON, renewal.RETRY, info.STALE_AFTER) == (0.5, 1, 0.5)
    assert "tried again after a second" in table["a renewal failed"]
    assert "half of the lease" in table["a holder is shown as *stale*"]
    waited = table["who was let in from the queue"]
    assert seconds_in(waited) == [flows.CLAIM]
    assert "half a second later" in waited
