"""What the reference pages claim of settings and checks is what the code has."""

import re
from pathlib import Path

import pytest

from django_redislock.conf import Conf, Setting

from .tools import ROOT

PAGES = ROOT / "docs" / "reference"
CHECKS = ROOT / "django_redislock" / "checks.py"
ID = re.compile(r"redislock\.[CEIW]\d{3}")


def headings(page: Path) -> set[str]:
    return set(re.findall(r"^## `(.+?)`", page.read_text(), re.MULTILINE))


def settings() -> list[Setting[object]]:
    return [each for each in vars(Conf).values() if isinstance(each, Setting)]


def test_every_setting_has_its_heading_and_nothing_else_has() -> None:
    assert headings(PAGES / "settings.md") == {each.name for each in settings()}


@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting.name)
def test_a_settings_default_is_as_documented(setting: Setting[object]) -> None:
    default = str(setting.default).removesuffix(".0")
    if isinstance(setting.default, str):
        default = f'"{default}"'
    page = (PAGES / "settings.md").read_text()
    assert f"## `{setting.name}`\n\nDefault: `{default}`." in page


def test_every_check_has_its_heading_and_nothing_else_has() -> None:
    assert headings(PAGES / "checks.md") == set(ID.findall(CHECKS.read_text()))


def test_what_the_docs_name_of_the_tests_is_there() -> None:
    named = {
        name
        for page in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"`(tests/[\w/.]+)`", page.read_text())
    }
    assert "tests/security/test_records.py" in named
    assert not [name for name in named if not (ROOT / name).exists()]
