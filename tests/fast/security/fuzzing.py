from hypothesis import HealthCheck, Phase, settings

EXPECTED = HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large
"""Examples share a server, are long, and take up to half a second each."""


def fuzzed(examples):
    """Settings without shrinking, which would take minutes."""
    return settings(
        max_examples=examples,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=EXPECTED,
    )
