"""The pages for operators have each health check and log message, and name no other metric."""

import ast
import re
from pathlib import Path

from prometheus_client import CollectorRegistry

import django_redislock
from django_redislock import metrics
from django_redislock.health import CHECKS
from tests.tools import ROOT


def first_cells(page: str, start: str, end: str) -> list[str]:
    """What the first cells of a page's tables have in code, from one heading to another."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n{start}\n")[2]
    return re.findall(r"^\| `([^`]+)`", text.partition(f"\n{end}\n")[0], re.MULTILINE)


def test_each_health_check_is_documented() -> None:
    found = first_cells("reference/health.md", "### Checks", "### Errors of `locking`")
    assert found == list(CHECKS)


def test_each_log_message_is_documented() -> None:
    calls = [
        call
        for path in Path(django_redislock.__path__[0]).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("logger.")
    ]
    logged = {str(ast.literal_eval(call.args[0])).partition(":")[0] for call in calls}
    table = first_cells("production/log-messages.md", "## Errors", "## Messages of other loggers")
    documented = {message.partition(":")[0] for message in table}
    assert documented == logged - {"%s"} | {"Task skipped", "Call skipped"}


def test_the_alerts_use_metrics_that_exist() -> None:
    registry = CollectorRegistry()
    metrics.install(registry=registry, using=[])
    families = [*registry.collect(), *metrics.Servers().describe()]
    page = (ROOT / "docs" / "production" / "monitoring.md").read_text()
    used = re.findall(r"\b(redislock_\w+?)(?:_total|_bucket|_count|_sum)?\b", page)
    assert set(used) <= {family.name for family in families}
