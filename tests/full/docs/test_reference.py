"""The reference has each public name, setting, check and subcommand."""

import re
from pathlib import Path

import pytest

import django_redislock
from django_redislock import exceptions, info, testing
from django_redislock.conf import Conf, Setting
from django_redislock.management import subcommands
from tests.tools import ROOT

REFERENCE = ROOT / "docs" / "reference"

SETTINGS = [each for each in vars(Conf).values() if isinstance(each, Setting)]


def headings() -> set[str]:
    text = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    return set(re.findall(r"^## `(.+?)`", text, re.MULTILINE))


def test_each_public_name_is_in_the_api_reference() -> None:
    text = (REFERENCE / "api.md").read_text()
    documented = set(re.findall(r"^\.\. auto\w+:: (\w+)", text, re.MULTILINE))
    facts_and_errors = {
        name
        for module in (info, exceptions)
        for name, each in vars(module).items()
        if isinstance(each, type) and each.__module__ == module.__name__
    }
    public = {*django_redislock.__all__, *testing.__all__, *facts_and_errors}
    assert public - {"locks"} <= documented


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_each_setting_is_documented_with_its_default(setting: Setting[object]) -> None:
    default = str(setting.default).removesuffix(".0")
    if isinstance(setting.default, str):
        default = f'"{default}"'
    text = (REFERENCE / "settings.md").read_text()
    assert f"## `{setting.name}`\n\nDefault: `{default}`." in text


def test_each_check_and_subcommand_has_a_heading() -> None:
    checks = (ROOT / "django_redislock" / "checks.py").read_text()
    ids = set(re.findall(r"redislock\.[CEIW]\d{3}", checks))
    assert ids == {each for each in headings() if each.startswith("redislock.")}
    names = {path.stem for path in Path(subcommands.__path__[0]).glob("[!_]*.py")}
    assert {f"manage.py locks {name}" for name in names} <= headings()
