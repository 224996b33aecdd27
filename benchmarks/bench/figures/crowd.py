"""(c) 64 processes that all want one lock, all the time."""

import statistics
from dataclasses import replace
from functools import partial

from ..contenders import LIST, OURS, PEERS, client_of
from ..crew import Crew
from ..figure import Bench, Figure, Plot
from ..lines import Line, ratios
from ..places import Commands
from ..rounds import interleaved
from ..turns import Story, play

PROCESSES = 64
WORK = 0.0005

BY_CLIENTS = ("evalsha", "eval", "blpop", "wait")
"""What we send; all else is called by the scripts."""


def crowd(bench: Bench) -> Figure:
    url = bench.node.url
    with Crew(PROCESSES, {"default": url}) as crew:
        one = partial(
            play, crew, PROCESSES, url=url, name="crowd", seconds=bench.size(4, 1.5), work=WORK
        )

        def ours() -> Story:
            with Commands(client_of(url)) as commands:
                story = one(OURS)
            warming_up = 2 * PROCESSES  # each acquires and releases once before
            sent = commands.sent(*BY_CLIENTS) - warming_up
            return replace(story, sent=sent / len(story.turns))

        def bare() -> Story:
            # What is in the list at the end of a round stays there.
            return one(LIST, name=f"crowd:{bench.random.random()}")

        contenders = {OURS: ours, LIST: bare} | {label: partial(one, label) for label in PEERS}
        stories = interleaved(contenders, bench.rounds(5), bench.random, warm=False)
    speed = {label: [each.per_second for each in stories[label]] for label in stories}
    longest = {label: [each.longest_wait for each in stories[label]] for label in stories}
    fairness = {label: [each.fairness for each in stories[label]] for label in stories}
    sent = [each.sent for each in stories[OURS]]
    in_rounds = [each.longest_wait / each.full_round for each in stories[OURS]]
    return Figure(
        f"{PROCESSES} processes, one lock",
        (
            *(
                Line.of(
                    "c",
                    f"acquisitions a second / {label}'s",
                    ratios(speed[OURS], speed[label]),
                    "at least",
                    1,
                    floor=ratios(speed[LIST], speed[label]),
                )
                for label in PEERS
            ),
            Line.of("c", "commands sent for an acquisition", sent, "at most", 3.2),
            Line.of("c", "Jain's index", fairness[OURS], "at least", 0.99),
            Line.of("c", "longest wait / a mean full round", in_rounds, "at most", 2),
            *(
                Line.of(
                    "c",
                    f"longest wait / {label}'s",
                    ratios(longest[OURS], longest[label]),
                    "at most",
                    0.2,
                )
                for label in PEERS
            ),
        ),
        (
            Plot("crowd", "Acquisitions a second", "", _medians(speed)),
            Plot("crowd-longest", "The longest wait", "s", _medians(longest)),
            Plot("crowd-fairness", "Jain's index of fairness", "", _medians(fairness)),
        ),
    )


def _medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {label: statistics.median(values) for label, values in found.items()}
