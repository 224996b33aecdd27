"""The reference and the pages for operators document each name, and no unknown name."""

import ast
import inspect
import json
import re
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import get_overloads

import pytest
import yaml
from django.dispatch import Signal
from prometheus_client import CollectorRegistry

import django_redislock
from django_redislock import (
    BaseLock,
    LockManager,
    exceptions,
    metrics,
    signals,
    single_instance,
    snapshots,
    testing,
)
from django_redislock.conf import Conf, Setting
from django_redislock.engine.history import RATES
from django_redislock.health import CHECKS, REMEDIES
from django_redislock.keys import Keys
from django_redislock.lock_types import LockOptions
from django_redislock.management import subcommands
from tests.tools import ROOT

from . import samples

REFERENCE = ROOT / "docs" / "reference"
PACKAGE = ROOT / "django_redislock"

SETTINGS = [each for each in vars(Conf).values() if isinstance(each, Setting)]
SNAPSHOTS = ast.parse(inspect.getsource(snapshots))
DATACLASSES = [each for each in vars(snapshots).values() if hasattr(each, "__dataclass_fields__")]
EXCEPTIONS = [
    each
    for each in vars(exceptions).values()
    if isinstance(each, type) and each.__module__ == exceptions.__name__
]


def text(page: str) -> str:
    return (REFERENCE / f"{page}.md").read_text()


def section(page: str, heading: str) -> str:
    return text(page).split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]


def in_code(text: str) -> set[str]:
    """Return the names at the start of code spans, such as `acquire` in `acquire(...)`."""
    return set(re.findall(r"`([\w:<>]+)(?=[`(])", text))


def in_first_cells(text: str) -> set[str]:
    cells = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)
    return {name for cell in cells for name in in_code(cell)}


def headings(page: str = "*") -> set[str]:
    pages = "".join(path.read_text() for path in REFERENCE.glob(f"{page}.md"))
    return set(re.findall(r"^##+ `(.+?)`", pages, re.MULTILINE))


def public(owner: type) -> set[str]:
    """Return the public methods and properties."""
    return {
        name
        for name, value in vars(owner).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }


def members(text: str, owner: str) -> set[str]:
    """Return the members whose docstrings a page shows."""
    block = text.partition(f".. autoclass:: {owner}\n")[2].partition("```")[0]
    return set(re.findall(r"\w+", block.partition(":members:")[2]))


def test_each_public_name_has_its_docstring_on_a_page() -> None:
    pages = "".join((ROOT / page).read_text() for page in samples.pages())
    documented = set(re.findall(r"^\.\. auto\w+:: (\w+)", pages, re.MULTILINE))
    names = {each.__name__ for each in (*DATACLASSES, *EXCEPTIONS)}
    assert {*django_redislock.__all__, *testing.__all__, *names} - {"locks"} <= documented


def test_each_method_is_documented() -> None:
    locks = text("locks")
    managers = in_code(locks + text("inspecting")) | members(locks, "LockManager")
    assert public(LockManager) <= managers
    internal = {"transfer", "release_when_dropped"}
    section_of_methods = section("locks", "## Using one")
    documented = in_code(section_of_methods) | members(section_of_methods, "BaseLock()")
    assert public(BaseLock) - internal <= documented


def test_each_option_is_documented() -> None:
    assert in_first_cells(section("locks", "## Options")) == set(LockOptions.__annotations__)
    options = {*get_overloads(single_instance)[1].__kwdefaults__}
    table = section("single-instance", "## Options").split("\n`unique_on` and `key`", 1)[0]
    assert in_first_cells(table) == options


@pytest.mark.parametrize("each", DATACLASSES, ids=lambda each: each.__name__)
def test_each_attribute_of_a_dataclass_is_documented(each: type) -> None:
    [body] = [node.body for node in SNAPSHOTS.body if getattr(node, "name", "") == each.__name__]
    described = {
        ast.unparse(node.target)
        for node, text in pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    assert {field.name for field in fields(each)} == described
    directive = rf"^\.\. autoclass:: {each.__name__}\(\)\n   :members:$"
    found = section("inspecting", f"## `{each.__name__}`")
    assert re.search(directive, found, re.MULTILINE)


def test_each_exception_is_documented_with_its_attributes() -> None:
    assert {each.__name__ for each in EXCEPTIONS} == headings("exceptions")
    for each in EXCEPTIONS:
        found = section("exceptions", f"## `{each.__name__}`")
        assert f".. autoexception:: {each.__name__}()" in found
    for each in (exceptions.AlreadyRunning, exceptions.StaleLock):
        arguments = {*inspect.signature(each).parameters} - {"lock_name"}
        assert arguments <= {*re.findall(r"^ +(\w+): ", each.__doc__, re.MULTILINE)}, each


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_each_setting_is_documented_with_its_default(setting: Setting[object]) -> None:
    default = str(setting.default).removesuffix(".0")
    if isinstance(setting.default, str):
        default = f'"{default}"'
    assert f"## `{setting.name}`\n\nDefault: `{default}`." in text("settings")


def test_each_signal_is_documented() -> None:
    names = {name for name, each in vars(signals).items() if isinstance(each, Signal)}
    assert names <= in_first_cells(section("exceptions", "## Signals"))


THAT_LOG = {"self._log", "warn_once"}
"""Functions of the package that log their first argument."""

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


def exported() -> dict[str, set[str]]:
    """Return the names of samples by the metric's name in the documentation."""
    registry = CollectorRegistry()
    metrics.install(registry=registry, using=[])
    return {
        family.name + "_total" * (family.type == "counter"): {
            family.name + suffix for suffix in SUFFIXES[family.type]
        }
        for family in registry.collect()
    }


def check_queries(text: str) -> None:
    assert set(re.findall(r"\bredislock_\w+", text)) <= set().union(*exported().values())
    assert set(re.findall(r'\bevent!?="(\w+)"', text)) <= {*RATES}


def test_each_metric_is_documented_and_the_alerts_use_only_these() -> None:
    monitoring = (ROOT / "docs" / "production" / "monitoring.md").read_text()
    documented = {name for name in in_first_cells(monitoring) if "redislock_" in name}
    assert exported().keys() == documented
    [group] = yaml.safe_load((ROOT / "docs" / "production" / "alerts.yml").read_text())["groups"]
    check_queries("\n".join(rule["expr"] for rule in group["rules"]))
    alerts = monitoring.partition("\n## Alerts\n")[2].partition("\n## Metrics\n")[0]
    assert [rule["alert"] for rule in group["rules"]] == re.findall(r"^\| `(\w+)`", alerts, re.M)


def test_the_dashboard_for_grafana_uses_metrics_and_variables_that_exist() -> None:
    board = json.loads((ROOT / "docs" / "production" / "grafana-dashboard.json").read_text())
    variables = board["templating"]["list"]
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    check_queries("\n".join(queries + [each["query"] for each in variables]))
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board)))
    assert used == {each["name"] for each in variables} | {"__rate_interval"}


def test_each_check_and_subcommand_has_a_heading() -> None:
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    ids = re.findall(r"redislock\.[CEIW]\d{3}", code)
    assert {name for name in headings("checks") if name.startswith("redislock.")} == set(ids)
    names = {path.stem for path in Path(subcommands.__path__[0]).glob("[!_]*.py")}
    assert {f"manage.py locks {name}" for name in names} <= headings()


def test_each_key_is_documented() -> None:
    keys = Keys("p").of("<name>")
    names = [keys.lock, keys.queue, keys.waiting, keys.index, Keys("p").last_runs("<name>")]
    names += [f"{keys.inboxes}<id>", f"{keys.inboxes}<id>:alive"]
    scripts = "".join(path.read_text() for path in (PACKAGE / "lua").glob("*.lua"))
    names += [
        f"{keys.inboxes}outbox:{part}" for part in re.findall(r"outbox_key\(.*?'(\w+)'\)", scripts)
    ]
    streams = {*re.findall(r"history \.\. '(\w+)'", scripts), "ended", "broken"}
    names += [f"{keys.history}{stream}" for stream in streams]
    assert {name.partition("}:")[2] for name in names} == in_first_cells(
        section("redis", "## Keys")
    )


def first_cells(page: str, start: str, end: str | None = None) -> list[str]:
    """Return the code in the first cells of the tables between two headings, or up to the end."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n{start}\n")[2]
    if end:
        text = text.partition(f"\n{end}\n")[0]
    cells = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    return [code for cell in cells for code in re.findall("`([^`]+)`", cell)]


def test_each_health_check_is_documented() -> None:
    found = first_cells("reference/checks.md", "### Checks", "### Errors of `locking`")
    assert found == list(CHECKS)
    page = (ROOT / "docs" / "reference" / "checks.md").read_text().replace("`", "")
    words = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", page)
    for id, remedy in REMEDIES.items():
        assert re.search(rf"^\| {id} \|.*\| {re.escape(remedy)}", words, re.MULTILINE), id


def test_each_log_message_is_documented() -> None:
    calls = [
        call
        for path in PACKAGE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant)
        if ast.unparse(call.func).startswith("logger.") or ast.unparse(call.func) in THAT_LOG
    ]
    logged = {str(ast.literal_eval(call.args[0])).partition(":")[0] for call in calls}
    table = first_cells("production/troubleshooting.md", "### Errors")
    documented = {message.partition(":")[0] for message in table}
    assert documented == logged - {"%s"} | {"Task skipped", "Call skipped"}
