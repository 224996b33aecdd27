"""The package does not run data as code. The linter finds exec(), pickle, shells and similar."""

import ast
import re
from collections.abc import Iterator

from tests.tools import ROOT

PACKAGE = ROOT / "django_redislock"

TREES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}
LUA = {path.name: path.read_text() for path in sorted((PACKAGE / "lua").glob("*.lua"))}
TEMPLATES = {path.name: path.read_text() for path in sorted(PACKAGE.rglob("*.html"))}
JAVASCRIPT = {path.name: path.read_text() for path in sorted(PACKAGE.rglob("*.js"))}


def calls(*names: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of these functions with the name of its module."""
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and name_of(node.func) in names:
                yield module, node


def name_of(function: ast.expr) -> str:
    """Return the last name of the called function."""
    return getattr(function, "id", None) or getattr(function, "attr", "")


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


# Python


def test_only_constants_are_markup() -> None:
    found = list(calls("mark_safe", "SafeString", "format_html", "format_html_join"))
    assert len(found) > 5
    assert not [
        (module, call) for module, call in found if call.args and not is_text(call.args[0])
    ]


# Scripts


def test_lua_does_not_run_data_as_code_or_commands() -> None:
    for name, source in LUA.items():
        code = re.sub(r"--.*", "", source)
        makes = r"\b(loadstring|dofile|loadfile|require|setfenv|getfenv|cmsgpack|_G)\b"
        makes += r"|\bcjson\b(?!\.encode\()"
        assert not re.search(makes, code), name
        asked = re.findall(r"\b(?:redis\.p?call|(?<!function )(?:read|use))\(\s*(\S+)", code)
        # `read` and `use` pass on their arguments, which are checked here too.
        passed_on = ("...)", "command,")
        assert not [each for each in asked if each[0] != "'" and each not in passed_on], name


# Pages


def test_templates_escape_all_values() -> None:
    for name, text in TEMPLATES.items():
        assert not re.search(r"\|\s*(safe|safeseq|escapejs|json_script)\b", text), name
        assert not re.search(r"\{%\s*(autoescape|filter|debug|include\s+[^\"])", text), name
        runs = r"<script|\son\w+\s*=|javascript:|<style|\sstyle="
        assert not re.search(runs, text, re.IGNORECASE), name
        for value in re.findall(
            r"\s[\w-]+=([^\s>]+)", re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "x", text)
        ):
            assert value.startswith('"'), f"{value} of {name} has no quotes around it"


def test_javascript_does_not_treat_data_as_markup_or_code() -> None:
    makes = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    makes += r"|setTimeout\(\s*[\"'`]|createContextualFragment|\.src\s*=|location\s*="
    for name, source in JAVASCRIPT.items():
        assert not re.search(makes, source), name
