"""The package does not run data as code. The linter finds exec(), pickle, shells and similar."""

import re

import pytest

from tests.tools import ROOT

PACKAGE = ROOT / "django_redislock"

FORBIDDEN = {
    "*.py": [r"\b(mark_safe|SafeString|format_html|format_html_join)\((?!\s*[\"']|\))"],
    "*.lua": [
        r"\b(loadstring|dofile|loadfile|require|setfenv|getfenv|cmsgpack|_G)\b",
        r"\bcjson\b(?!\.encode\()",
        # The command is a constant, except in `read` and `use`, whose callers are checked too.
        r"\b(?:redis\.p?call|(?<!function )(?:read|use))\(\s*+(?!'|\.\.\.\)|command,)",
    ],
    "*.html": [
        r"\|\s*(safe|safeseq|escapejs|json_script)\b",
        r"\{%\s*(autoescape|filter|debug|include\s+[^\"])",
        r"\s[\w-]+=\{",  # an attribute without quotes
        r"(?i)<script|\son\w+\s*=|javascript:|<style|\sstyle=",
    ],
    "*.js": [
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function",
        r"setTimeout\(\s*[\"'`]|createContextualFragment|\.src\s*=|location\s*=",
    ],
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_file_treats_data_as_code_commands_or_markup(kind: str) -> None:
    found = [*PACKAGE.rglob(kind)]
    assert found
    for path in found:
        text = path.read_text()
        if kind == "*.lua":
            text = re.sub(r"--.*", "", text)
        for pattern in FORBIDDEN[kind]:
            assert not re.search(pattern, text), f"{path.name} has {pattern}"
