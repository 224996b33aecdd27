"""The package's own code never makes code of data: not in Python, in Lua, nor in a page.

The linter finds exec(), pickle, shells and their like.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tools import ROOT

PACKAGE = ROOT / "django_redislock"

TREES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}
LUA = {path.name: path.read_text() for path in sorted((PACKAGE / "lua").glob("*.lua"))}
TEMPLATES = {path.name: path.read_text() for path in sorted(PACKAGE.rglob("*.html"))}
JAVASCRIPT = {path.name: path.read_text() for path in sorted(PACKAGE.rglob("*.js"))}

IMPORTS_BY_NAME = {"import_module", "import_string", "symbol_by_name", "load_module"}
MAY_IMPORT_BY_NAME = {
    "__init__.py": "names of its own",
    "backends/client_factory.py": "the classes that CACHES names",
    "conf.py": "what a setting names",
    "celery/worker.py": "the class that Celery names",
    "tasks/__init__.py": "the part for Celery, if that is installed",
    "tasks/backend.py": "the backend that TASKS names",
    "tasks/django.py": "the task frameworks, and the task that runs",
    "testing/__init__.py": "names of its own",
    "testing/embedded.py": "the backends that the settings name",
}

RUNS_COMMANDS = {"Popen", "check_call", "check_output"}
RUNS_COMMANDS |= {"execv", "execve", "execvp", "execvpe", "spawnv", "posix_spawn"}
MAY_RUN_COMMANDS = {
    "management/child_process.py": "what its caller wants to run, and no shell",
    "management/launcher.py": "the same",
    "testing/server.py": "the server of a project's tests, and its keeper",
}


def all_nodes(*kinds: type) -> Iterator:
    """Each with the name of its module."""
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield module, node


def calls(*names: str) -> Iterator[tuple[str, ast.Call]]:
    for module, node in all_nodes(ast.Call):
        if name_of(node.func) in names:
            yield module, node


def name_of(function: ast.expr) -> str:
    """The last name of what is called."""
    return getattr(function, "id", None) or getattr(function, "attr", "")


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


# Python


@pytest.mark.parametrize(
    ("names", "allowed"),
    [(IMPORTS_BY_NAME, MAY_IMPORT_BY_NAME), (RUNS_COMMANDS, MAY_RUN_COMMANDS)],
)
def test_only_a_few_modules_import_by_name_or_run_commands(names, allowed) -> None:
    assert {module for module, _ in calls(*names)} == {*allowed}


def test_only_constants_are_markup() -> None:
    safe = [(module, call, call.args[:1]) for module, call in calls("mark_safe", "SafeString")]
    formats = [
        # Or the translation of one.
        (module, call, call.args[0].args[:1] if isinstance(call.args[0], ast.Call) else call.args)
        for module, call in calls("format_html", "format_html_join")
    ]
    wrong = [(module, call) for module, call, of in safe + formats if of and not is_text(of[0])]
    joined = [each for each in wrong if ast.unparse(each[1].args[0]) != "SafeString('<wbr>')"]
    assert len(formats) > 5
    assert not joined


# Scripts


def test_what_is_run_is_a_script_by_its_name() -> None:
    asked = [(module, call) for module, call in calls("Call") if module.startswith("engine/")]
    assert len(asked) > 8
    assert all(ast.unparse(call.args[0]).isupper() for _, call in asked)


def test_lua_makes_no_code_and_no_command_of_data() -> None:
    for name, source in LUA.items():
        code = re.sub(r"--.*", "", source)
        makes = r"\b(loadstring|dofile|loadfile|require|setfenv|getfenv|cmsgpack|_G)\b"
        makes += r"|\bcjson\b(?!\.encode\()"
        assert not re.search(makes, code), name
        asked = re.findall(r"\b(?:redis\.p?call|(?<!function )read)\(\s*(\S+)", code)
        # `read` passes on what it was given, and that is looked at here too.
        assert not [each for each in asked if each[0] != "'" and each != "...)"], name


# Pages


def test_templates_escape_all_that_they_show() -> None:
    for name, text in TEMPLATES.items():
        assert not re.search(r"\|\s*(safe|safeseq|escapejs|json_script)\b", text), name
        assert not re.search(r"\{%\s*(autoescape|filter|debug|include\s+[^\"])", text), name
        runs = r"<script|\son\w+\s*=|javascript:|<style|\sstyle="
        assert not re.search(runs, text, re.IGNORECASE), name
        for value in re.findall(
            r"\s[\w-]+=([^\s>]+)", re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "x", text)
        ):
            assert value.startswith('"'), f"{value} of {name} has no quotes around it"


def test_javascript_makes_no_markup_and_no_code() -> None:
    makes = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    makes += r"|setTimeout\(\s*[\"'`]|createContextualFragment|\.src\s*=|location\s*="
    for name, source in JAVASCRIPT.items():
        assert not re.search(makes, source), name
