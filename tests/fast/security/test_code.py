"""The package does not run data as code. The linter finds exec(), pickle, shells and similar."""

import ast
import re
from pathlib import Path

import pytest

from tests.tools import ROOT

PACKAGE = ROOT / "django_redislock"

MAKE_MARKUP = {"mark_safe", "SafeString", "format_html", "format_html_join"}

FORBIDDEN = {
    "*.lua": [
        r"\b(loadstring|dofile|loadfile|require|setfenv|getfenv|cmsgpack|_G)\b",
        r"\bcjson\b(?!\.encode\()",
        # The command is a constant, except in `read` and `use`, whose callers are checked too.
        r"\b(?:redis\.p?call|(?<!function )(?:read|use))\(\s*+(?!'|\.\.\.\)|command,)",
    ],
    "*.html": [
        r"\|\s*(safe|safeseq|escapejs|json_script)\b",
        r"\{%\s*(autoescape|filter|debug|include\s+[^\"])",
        r"(?i)<script|\son\w+\s*=|javascript:|<style|\sstyle=",
    ],
    "*.js": [
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function",
        r"setTimeout\(\s*[\"'`]|createContextualFragment|\.src\s*=|location\s*=",
    ],
}


def files(pattern: str) -> list[Path]:
    found = sorted(PACKAGE.rglob(pattern))
    assert found
    return found


def test_only_constants_are_markup() -> None:
    count = 0
    for path in files("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
                if name in MAKE_MARKUP and node.args:
                    count += 1
                    first = node.args[0]
                    is_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
                    assert is_text, f"{path}:{node.lineno}"
    assert count > 5


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_file_treats_data_as_code_commands_or_markup(kind: str) -> None:
    for path in files(kind):
        text = path.read_text()
        if kind == "*.lua":
            text = re.sub(r"--.*", "", text)
        for pattern in FORBIDDEN[kind]:
            assert not re.search(pattern, text), f"{path.name} has {pattern}"


def test_templates_have_quotes_around_all_attributes() -> None:
    for path in files("*.html"):
        text = re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "x", path.read_text())
        for value in re.findall(r"\s[\w-]+=([^\s>]+)", text):
            assert value.startswith('"'), f"{value} of {path.name} has no quotes around it"
