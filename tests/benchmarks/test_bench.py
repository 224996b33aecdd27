"""The benchmark's own arithmetic: ratios, spreads, marks, turns, the page, and how it ends."""

import json
import os
import socket
import subprocess
import sys
from random import Random

import pytest
import redis

from tests.round_trips import RoundTrips
from tests.tools import ROOT

from .bench import rounds
from .bench.contenders import OURS, REDIS_PY, SAME, SENT, contender
from .bench.figure import Figure, Plot
from .bench.lines import Line, number, quartiles, ratios
from .bench.places import Commands
from .bench.plots import OURS_BARS, draw
from .bench.report import BEGIN, END, as_json, ends_well, put_on, table
from .bench.rounds import interleaved
from .bench.turns import SETTLE, Story, Turn, percentile


def line(*values: float, sense="at most", goal=1.0) -> Line:
    return Line.of("a", "it", values, sense, goal)


def figures(*lines: Line, plots=()) -> dict[str, Figure]:
    return {"a": Figure("One", lines, plots, ("It was so.",))}


# Lines


def test_ratios_are_of_one_round():
    assert ratios([1, 4, 9], [1, 2, 3]) == [1, 2, 3]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        ratios([1, 2], [1])


def test_a_line_is_the_median_and_the_middle_half():
    found = line(5, 1, 4, 2, 3)
    assert (found.low, found.result, found.high) == (2, 3, 4)
    assert quartiles([7]) == (7, 7, 7)


@pytest.mark.parametrize(
    ("found", "holds", "marked"),
    [
        (line(0.7, 0.8, 0.9), True, False),
        (line(0.9, 0.95, 1.3), True, True),
        (line(0.9, 1.05, 1.3), False, True),
        (line(1.1, 1.2, 1.3), False, False),
        (line(1.1, 1.2, 1.3, sense="at least"), True, False),
        (line(0.8, 0.99, 1.3, sense="at least"), False, True),
        (line(1, 1, 1, sense="exactly"), True, False),
        (line(1, 1, 1, 1, 2, 2, sense="exactly"), False, True),
        (line(2, 2, 2, sense="exactly"), False, False),
    ],
)
def test_a_line_holds_by_its_median_and_is_marked_where_the_goal_is_in_its_spread(
    found, holds, marked
):
    assert (found.holds, found.within_noise) == (holds, marked)
    assert ("**no**" in found.verdict, "noise" in found.verdict) == (not holds, marked)


def test_numbers_are_short():
    assert [number(each) for each in (2, 0.949, 123.456, 12345.6)] == [
        "2",
        "0.95",
        "123.5",
        "12,346",
    ]


# Rounds


@pytest.mark.slow
def test_all_contenders_take_part_in_each_round_in_some_order():
    called: list[str] = []
    contenders = {name: lambda name=name: called.append(name) or len(called) for name in "abc"}

    found = interleaved(contenders, 20, Random(1), warm=False)

    rounds = ["".join(called[at : at + 3]) for at in range(0, 60, 3)]
    assert {"".join(sorted(each)) for each in rounds} == {"abc"}
    assert len(set(rounds)) > 1
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys("abc", 20)


def test_what_warms_up_does_not_count():
    called: list[str] = []
    assert interleaved({"a": lambda: called.append("a")}, 1, Random(1)) == {"a": [None]}
    assert called == ["a", "a"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_portion_in_which_the_machine_was_away_is_measured_again(steal, monkeypatch, fails):
    monkeypatch.setattr(rounds, "repeated", [])
    monkeypatch.setattr(rounds, "wait_for_calm", lambda: None)
    shares = iter([50, 0])

    def portion() -> int:
        steal(share := next(shares))
        if share and fails:
            raise RuntimeError("its lease ran out")
        return share

    assert interleaved({"a": portion}, 1, Random(1), warm=False) == {"a": [0]}
    assert rounds.repeated == ["a"]


def test_a_portion_that_fails_on_a_calm_machine_ends_the_run(steal):
    with pytest.raises(ZeroDivisionError):
        interleaved({"a": lambda: 1 // 0}, 1, Random(1), warm=False)


def test_a_machine_that_is_always_away_is_taken_as_it_is(steal, monkeypatch):
    monkeypatch.setattr(rounds, "repeated", [])
    monkeypatch.setattr(rounds, "wait_for_calm", lambda: None)
    assert interleaved({"a": lambda: steal(50)}, 2, Random(1), warm=False) == {"a": [None, None]}
    assert len(rounds.repeated) == rounds.AGAIN


# Turns

BEGIN_AT = 100.0


def story(*by_process: list[tuple[float, float, float]], seconds: float = 10.0) -> Story:
    at = BEGIN_AT + SETTLE
    moved = [[Turn(*(at + each for each in turn)) for turn in turns] for turns in by_process]
    return Story(BEGIN_AT, BEGIN_AT + SETTLE + seconds, moved)


def test_a_handover_is_from_the_release_to_the_next_who_waited():
    told = story([(0, 0, 1), (3, 3.5, 4)], [(0.5, 1.25, 3)])
    assert told.handovers() == [0.25]  # the third asked when it was free

    told = story([(0, 0, 1), (2, 4.5, 5)], [(0.5, 1.25, 4)])
    assert told.handovers() == [0.25, 0.5]


def test_fairness_is_jains():
    turn = (0, 0, 0.1)
    assert story([turn] * 4, [turn] * 4).fairness == 1
    assert story([turn] * 4, [], [], []).fairness == 0.25


def test_what_was_got_after_the_end_is_waited_for_and_not_counted():
    told = story([(0, 1, 2)], [(0, 12, 13)], seconds=10 - SETTLE)
    assert told.longest_wait == pytest.approx(12)
    assert told.per_second == pytest.approx(0.1)
    assert told.full_round == pytest.approx(20)


def test_percentiles():
    assert percentile(range(101), 99) == 99
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([4], 99) == 4


# Round trips


def test_round_trips_are_counted_at_the_socket(redis_server):
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        client.ping()
        with RoundTrips() as made:
            client.ping()
            pipeline = client.pipeline(transaction=False)
            for _ in range(3):
                pipeline.echo("x" * 10_000)
            pipeline.execute()
        client.ping()
    assert made.count == 2
    assert "send" not in vars(socket.socket)


# The floor


def test_the_least_that_ours_needs_is_what_ours_asks_for(redis_server):
    def asked(label):
        lock = contender(label, os.environ["REDIS_URL"], "floor")
        lock.acquire()
        lock.release()
        with Commands(redis_server) as commands:
            for _ in range(10):
                lock.acquire()
                lock.release()
        return {name: calls for name, calls in commands.calls.items() if calls >= 10}

    try:
        assert asked(SAME) == asked(SENT) == asked(OURS)
        assert sum(asked(SAME).values()) == 10 * (2 + 12)
    finally:
        redis_server.delete(*redis_server.keys(f"{SAME}*:*"))


# The report


def test_a_run_ends_well_if_every_line_holds():
    good, bad = line(0.5), line(1.5)
    assert ends_well(figures(good, good))
    assert not ends_well(figures(good, bad))
    assert not ends_well(figures(line(0.9, 1.05, 1.3)))  # that it is marked excuses nothing


def test_table_has_goal_and_result():
    assert table(figures(line(0.5, 0.6, 0.7))).splitlines()[2:] == [
        "| (a) | it | at most 1 |  | 0.60 | 0.55 to 0.65 | yes |",
        "",
        "- (a) It was so.",
    ]


def test_table_has_what_the_least_was_measured_as():
    least = Line.of("a", "it", [0.6], "at most", 0.5, " B", floor=[0.3, 0.4, 0.6])
    assert table(figures(least)).splitlines()[2] == (
        "| (a) | it | at most 0.50 B | 0.40 B | 0.60 B |  | **no** |"
    )
    assert json.loads(as_json(figures(least), "Here."))["lines"][0]["floor"] == 0.4


PLOT = Plot("speed", "How <fast>", "µs", {OURS: 20.0, REDIS_PY: 40.0})


def test_page_gets_the_table_and_the_plots(tmp_path):
    page, images = tmp_path / "docs" / "page.md", tmp_path / "images"
    for folder in (page.parent, images):
        folder.mkdir()
    page.write_text(f"Before.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    (images / "bench-old.svg").write_text("old")

    put_on(page, images, figures(line(0.5), plots=(PLOT,)), "Here.")

    text = page.read_text()
    assert text.startswith(f"Before.\n\n{BEGIN}\n\nHere.\n\n| Figure |")
    assert text.endswith(f"![How <fast>](../images/bench-speed.svg)\n\n{END}\n\nAfter.\n")
    assert [each.name for each in images.iterdir()] == ["bench-speed.svg"]
    assert "<svg" in (images / "bench-speed.svg").read_text()


def test_ours_is_in_colour_and_bars_are_as_long_as_they_say():
    ours, theirs = draw(PLOT).iter("rect")
    assert float(theirs.get("width")) == 2 * float(ours.get("width"))
    assert ours.get("fill") == OURS_BARS != theirs.get("fill")


def test_json_has_all_of_it():
    told = json.loads(as_json(figures(line(0.9, 1.05, 1.3), plots=(PLOT,)), "Here."))
    assert (told["where"], told["holds"]) == ("Here.", False)
    assert told["lines"][0]["within_noise"] is True
    assert told["figures"]["a"]["plots"][0]["bars"][OURS] == 20


# A run


@pytest.mark.slow
def test_a_run_ends_as_its_lines_do(tmp_path):
    file = tmp_path / "run.json"
    command = ["-m", "tests.benchmarks.bench", "--quick", "--rounds", "1", "--only", "g"]

    done = subprocess.run(
        [sys.executable, *command, "--json", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    told = json.loads(file.read_text())
    assert [each["figure"] for each in told["lines"]] == ["g", "g", "g"]
    assert done.returncode == (0 if told["holds"] else 1), done.stderr
    assert "| (g) | keys left after the release | exactly 0 |  | 0 |  | yes |" in done.stdout
