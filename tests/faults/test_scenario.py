"""What makes a row of the table fail, and what does not."""

from argparse import Namespace
from contextlib import closing

import pytest

from tests.servers import MAKES
from tests.servers.needs import needs

from .__main__ import happen
from .register import Attempts
from .scenario import EXCLUSION, Scenario, Setting
from .table import BEGIN, END, table_of, titles, write


@pytest.fixture
def row_of():
    settings = []

    def row_of(body, **facts):
        facts = {"runs": 3, "short": 2, "faults": 0, "operations": 0} | facts
        setting = Setting(Scenario(1, "a test", body, **facts), seed=7, short=True)
        settings.append(setting)
        return setting.row()

    yield row_of
    for setting in settings:
        setting.close()


def overlap(setting):
    """Two clients note that they hold a lock."""
    for fence, who in enumerate("ab"):
        about = {"lock": "a", "token": fence, "who": who}
        setting.log.write("kept", deadline=1e12, **about)
        setting.log.write("held", fence=fence, weight=1, capacity=1, asked=0, **about)


def test_a_row_in_which_nothing_is_wrong(row_of):
    row = row_of(lambda setting: setting.each(lambda run: run.fault("any")), faults=1)
    assert row.failures == ()
    assert (row.runs, row.faults, row.operations) == (2, 2, 0)


def test_nothing_passes_because_nothing_happened(row_of):
    row = row_of(lambda setting: None, faults=1, operations=2, free_within=3)
    assert row.failures == (
        "only 0 faults in 2 runs",
        "only 0 acquisitions in 2 runs",
        "nobody was seen to hold a lock after a fault",
    )


def test_an_error_in_a_run_is_told_with_the_runs_that_had_it(row_of):
    def body(run):
        assert run.number < 2, "too many"

    [failure] = row_of(lambda setting: setting.each(body)).failures
    assert failure.startswith("run 2: AssertionError: too many")


def test_an_error_outside_of_runs_is_told(row_of):
    [failure] = row_of(lambda setting: setting.use(None)).failures
    assert failure.startswith("run 0: TypeError")


def test_a_server_that_is_not_there_in_the_end_fails_the_scenario_alone(row_of):
    [failure] = row_of(lambda setting: setting.node().kill()).failures
    assert failure.startswith("run 0: ConnectionError")


def test_an_overlap_fails_unless_it_may_be(row_of):
    [failure] = row_of(overlap).failures
    assert failure.startswith("1 overlaps: a: ")
    row = row_of(overlap, may_fail=(EXCLUSION,))
    assert row.failures == ()
    assert row.overlaps == 1
    assert "1 (not promised)" in row.cells()


def test_errors_fail_unless_they_may_be(row_of):
    def error(setting):
        about = {"during": "acquire", "type": "TimeoutError", "text": "late"}
        setting.log.write("error", lock="a", **about)

    assert row_of(error).failures == ("1 unexpected errors: harness: TimeoutError: late",)
    assert row_of(error, errors=("TimeoutError",)).failures == ()


def test_a_lock_that_came_free_too_late_fails(row_of):
    def late(setting):
        setting.log.write("free", lock="a", t=1)
        setting.log.write(
            "held", t=5, lock="a", token=1, fence=1, weight=1, capacity=1, asked=0, who="a"
        )

    assert row_of(late, free_within=4).failures == ()
    assert row_of(late, free_within=3).failures == ("a lock came free after 4.00 s, not 3 s",)


@pytest.mark.parametrize("at_once", [False, True])
def test_hand_overs_that_are_mostly_late_fail_where_they_are_to_be_at_once(row_of, at_once):
    def late(setting):
        room = {"lock": "a", "weight": 1, "capacity": 1}
        setting.log.write("held", t=2, token=1, fence=1, asked=1, who="a", **room)
        setting.log.write("want", t=3, who="b", **room)
        setting.log.write("queued", t=4, who="b", lock="a")
        setting.log.write("release", t=5, token=1, who="a", lock="a")
        setting.log.write("released", t=5.1, token=1, who="a", lock="a")
        setting.log.write("held", t=5.3, token=2, fence=2, asked=3, who="b", **room)

    expected = ("half of 1 hand-overs took 0.30 s or more",) if at_once else ()
    assert row_of(late, at_once=at_once).failures == expected


def test_what_came_too_late_is_told_from_what_no_machine_excuses(row_of):
    late = row_of(lambda setting: None, faults=1)
    assert late.failures
    assert not late.is_wrong
    assert row_of(overlap).is_wrong


@pytest.mark.parametrize(
    ("body", "percent", "times"),
    [(lambda _: None, 25, 3), (lambda _: None, 1, 1), (overlap, 25, 1)],
    ids=["late while time was stolen", "late", "wrong while time was stolen"],
)
def test_what_came_too_late_happens_again_where_the_machine_was_not_there(
    steal, body, percent, times
):
    happened = []

    def once(setting):
        happened.append(setting)
        steal(percent)
        body(setting)

    scenario = Scenario(1, "a test", once, runs=1, short=1, faults=1, operations=0)
    options = Namespace(seed=7, short=True, make=None, run=None, keep=False)
    assert happen(scenario, options).failures
    assert len(happened) == times


@pytest.mark.slow
def test_the_seed_chooses_the_make_of_the_servers_and_the_row_tells_it():
    def makes(seed):
        scenario = Scenario(1, "a test", lambda s: [s.node(), s.node()], runs=1, short=1, faults=0)
        setting = Setting(scenario, seed=seed, short=True)
        with closing(setting):
            return setting.row().servers

    for make in MAKES:
        needs(make)
    found = [makes(seed) for seed in range(10)]
    assert [makes(seed) for seed in range(3)] == found[:3]
    assert {len(each) for each in found} == {1}
    assert {make for each in found for make in each} == {*MAKES}


def test_a_scenario_has_only_makes_that_it_allows(row_of):
    assert row_of(lambda setting: setting.node("redis-6.2")).servers == ("redis-6.2",)


def test_a_make_that_is_not_on_this_machine_is_no_reason_to_pass(row_of, monkeypatch, tmp_path):
    monkeypatch.setattr("tests.servers.makes.FETCHED", tmp_path)
    [failure] = row_of(lambda setting: setting.node("redis-6.2")).failures
    assert "Missing: There is no" in failure


def test_the_same_seed_makes_the_same_choices(row_of):
    chosen = []
    for _ in range(2):
        row_of(lambda setting: setting.each(lambda run: chosen.append(run.random.random())))
    assert chosen[:2] == chosen[2:]
    assert len(set(chosen)) == 2


def test_a_register_takes_no_write_with_a_smaller_fencing_token(tmp_path):
    first, second = Attempts(tmp_path, "a"), Attempts(tmp_path, "a")
    accepted = [
        writer.write("who", fence)
        for writer, fence in [(first, 3), (second, 2), (second, 3), (first, 5), (second, 4)]
    ]
    first.close()
    second.close()
    assert accepted == [True, False, True, True, False]


def test_the_table_is_written_between_its_markers(row_of, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    def body(setting):
        setting.notes.append("something else")

    write(page, table_of([row_of(body)]))
    before, *lines, after = page.read_text().splitlines()
    assert (before, after) == ("before", "after")
    assert "old" not in lines
    assert "- (1) a test: something else" in lines
    assert titles(page) == ["(1) a test"]
