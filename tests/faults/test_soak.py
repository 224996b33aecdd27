"""A short soak finds nothing, and finds what is planted."""

import random

import pytest

from .soak.flat import Allowed, Series
from .soak.report import text_of
from .soak.running import Outcome, Soak

FEW = "threads", "operator"


def soak(seconds: float, **options: object) -> Outcome:
    with Soak(seconds, random.randrange(1_000_000), **options) as one:
        outcome = one.run()
    print(text_of(outcome))
    return outcome


def grown(outcome: Outcome) -> set[tuple[str, str]]:
    return {(each.who, each.what) for each in outcome.series if not each.is_flat}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("faults")
def test_nothing_grows_in_a_short_soak():
    outcome = soak(45)
    assert not outcome.failures
    assert outcome.rounds >= 12
    assert outcome.judged > 100
    assert outcome.faults.total() > 20


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("faults")
@pytest.mark.parametrize(
    ("plant", "found"),
    [
        ("keep", ("threads", "objects")),
        ("leave_a_key", ("server", "keys")),
        ("keep_a_connection", ("threads", "connections in use")),
    ],
)
def test_what_leaks_is_found(plant, found):
    outcome = soak(12, plant=f"tests.faults.soak.planting:{plant}", only=FEW)
    assert found in grown(outcome)
    assert any(": ".join(found) in failure for failure in outcome.failures)


# What counts as flat


def is_flat(values, allowed: Allowed = Allowed(10)) -> bool:  # noqa: B008  it is frozen
    return Series("a", "b", list(values), allowed).is_flat


def test_what_stays_is_flat():
    noise = random.Random(1)
    assert is_flat([100] * 12)
    assert is_flat(100 + noise.uniform(-8, 8) for _ in range(40))
    assert is_flat(100 - at for at in range(40))


def test_the_way_to_what_it_needs_does_not_count():
    assert is_flat([10, 50, 80, 100, *[100] * 8])


def test_a_few_outliers_do_not_count():
    assert is_flat([500 if at in (7, 11, 23, 39) else 100 for at in range(40)])


def test_what_grows_is_not_flat():
    noise = random.Random(1)
    assert not is_flat(100 + at for at in range(40))
    assert not is_flat(100 + at + noise.uniform(-20, 20) for at in range(40))
    assert not is_flat(100 + 15 * (at // 10) for at in range(40))


def test_what_may_grow_may_grow_so_much():
    assert is_flat([100 + at for at in range(12)], Allowed(0, 0.1))
    assert not is_flat([100 + 2 * at for at in range(12)], Allowed(0, 0.1))
