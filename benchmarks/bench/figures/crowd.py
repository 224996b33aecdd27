"""(c) 64 processes that all want one lock, all the time."""

from dataclasses import replace
from functools import partial

from ..contenders import LIST, OURS, PEERS, client_of
from ..crew import Crew
from ..figure import Bench, Figure, Line, Plot
from ..places import Commands
from ..rounds import interleaved
from ..turns import Story, play

PROCESSES = 64
WORK = 0.0005

BY_CLIENTS = ("evalsha", "eval", "blpop", "wait")
"""The commands that we send. The scripts call all others."""


def crowd(bench: Bench) -> Figure:
    url, seconds = bench.node.url, bench.size(4, 1.5)
    with Crew(PROCESSES, {"default": url}) as crew:
        one = partial(
            play, crew, PROCESSES, url=url, name="crowd", seconds=seconds, work=WORK, pause=0
        )

        def ours() -> Story:
            with Commands(client_of(url)) as commands:
                story = one(OURS)
            warming_up = 2 * PROCESSES  # each acquires and releases once before
            sent = commands.sent(*BY_CLIENTS) - warming_up
            return replace(story, sent=sent / len(story.turns))

        contenders = {OURS: ours} | {label: partial(one, label) for label in (LIST, *PEERS)}
        stories = interleaved(contenders, bench.rounds(5), bench.random, warm=False)
    speed, longest, fairness = (
        {label: [getattr(each, what) for each in stories[label]] for label in stories}
        for what in ("per_second", "longest_wait", "fairness")
    )
    sent = [each.sent for each in stories[OURS]]
    in_rounds = [each.longest_wait / each.full_round for each in stories[OURS]]
    faster, shorter = "acquisitions a second / {}'s", "longest wait / {}'s"
    return Figure(
        f"{PROCESSES} processes, one lock",
        (
            *(
                Line.ratio(faster.format(label), speed, OURS, label, "at least", 1, LIST)
                for label in PEERS
            ),
            Line.of("commands sent for an acquisition", sent, "at most", 3.2),
            Line.of("Jain's index", fairness[OURS], "at least", 0.99),
            Line.of("longest wait / a mean full round", in_rounds, "at most", 2),
            *(
                Line.ratio(shorter.format(label), longest, OURS, label, "at most", 0.2)
                for label in PEERS
            ),
        ),
        (
            Plot.of("crowd", "Acquisitions a second", "", speed),
            Plot.of("crowd-longest", "The longest wait", "s", longest),
            Plot.of("crowd-fairness", "Jain's index of fairness", "", fairness),
        ),
    )
