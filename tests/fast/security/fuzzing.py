"""How much is tried of what Hypothesis thinks of."""

import pytest
from hypothesis import HealthCheck, Phase, settings

EXPECTED = HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large
"""Examples meet one server, take up to half a second, and are long."""


def fuzzed(examples):
    """Without shrinking, which would take minutes."""
    return settings(
        max_examples=examples,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=EXPECTED,
    )


def examples(quick, much):
    """Parameters for `examples`: so many, and so many among the slow tests."""
    slow = [pytest.mark.slow, pytest.mark.timeout(600)]
    return pytest.mark.parametrize(
        "examples", [pytest.param(quick, id="quick"), pytest.param(much, id="much", marks=slow)]
    )
