"""Apply a sample with settings to the rest of its page, and use locks with these settings."""

import ast
from typing import Any

from django.core.checks import run_checks
from django.test import override_settings

from .page import Page

IMPORTS = (ast.Import, ast.ImportFrom)


def names_of(code: str) -> list[str]:
    """Return the names of the settings in `code`, or an empty list if it has other statements."""
    body = [each for each in ast.parse(code).body if not isinstance(each, IMPORTS)]
    names = [name for each in body for name in _assigned(each)]
    return names if len(names) == len(body) and all(map(str.isupper, names)) else []


def augmented(code: str) -> set[str]:
    """Return the settings to which `code` adds something."""
    added = (each for each in ast.parse(code).body if isinstance(each, ast.AugAssign))
    return {each.target.id for each in added if isinstance(each.target, ast.Name)} & set(
        names_of(code)
    )


def _assigned(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Assign):
        return [each.id for each in statement.targets if isinstance(each, ast.Name)]
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def settle(page: Page, code: str, values: dict[str, Any]) -> None:
    """Use the settings of `code` in this process and in the page's project."""
    from django_redislock import locks  # needs the settings

    given = {name: _without_doubles(value) for name, value in values.items()}
    page.write("mysite/settings.py", "a", code + "".join(map(_line, given.items())))
    page.enter(override_settings(**given))
    assert not (errors := run_checks()), errors
    for manager in locks.everywhere():
        with manager.lock("of the docs", blocking=False):
            assert manager.get("of the docs")


def _without_doubles(value: Any) -> Any:
    """Return a list without the items that the settings of the tests have already."""
    return list(dict.fromkeys(value)) if isinstance(value, list) else value


def _line(setting: tuple[str, Any]) -> str:
    name, value = setting
    return f"{name} = {value!r}\n" if name == "INSTALLED_APPS" else ""
