"""Planted faults of mutants.toml, each of which the machine of test_model must find.

A search for moves that find a fault takes up to minutes, so a sequence that found one is reduced
to as few moves as possible and kept in `found/`, a file for each fault. A test replays it in a
moment. If the file of a fault is missing, the test searches and writes it.
"""

import re
import tomllib
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import django_redislock
from django_redislock.engine import protocol
from django_redislock.lua import Script, lines
from tests.mutants.__main__ import faults

from .stage import SOURCES, staged
from .test_model import with_parts

HOME = Path(django_redislock.__file__).parent


@dataclass(frozen=True)
class Mutant:
    file: str
    good: str
    bad: str
    breaks: str = ""
    machine: str = ""

    def into(self, source: str) -> str:
        assert source.count(self.good) == 1, f"{self.file} has no such text: {self.good}"
        return source.replace(self.good, self.bad)

    def scripts(self) -> dict[str, Script]:
        return {each.name: staged(self._script(each)) for each in SOURCES}

    def flows(self) -> ModuleType:
        if self.file != "engine/protocol.py":
            return protocol
        module = ModuleType(protocol.__name__)
        module.__package__ = protocol.__package__
        path = HOME / self.file
        exec(compile(self.into(path.read_text()), path, "exec"), module.__dict__)  # noqa: S102  our own
        return module

    def _script(self, script: Script) -> Script:
        if self.file not in {f"lua/{file}" for file, _, _ in lines(script.name)}:
            return script
        return replace(script, source=self.into(script.source))


MUTANTS = {
    name: Mutant(**facts)
    for name, facts in tomllib.loads(Path(__file__).with_name("mutants.toml").read_text()).items()
}


FOUND = Path(__file__).with_name("found")

STEP = re.compile(r"state\.then\(move=(.*)\)")

SEARCH = settings(
    max_examples=6000,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def search(name: str, machine: Any) -> list[str]:
    """Return moves that lead to the fault. Raises AssertionError if none are found."""
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(machine, settings=SEARCH)
    notes = caught.value.__notes__
    moves, trouble = fewest(
        machine, [match[1] for note in notes if (match := STEP.fullmatch(note))]
    )
    print(f"\n{name}", *moves, f"-> {str(trouble).splitlines()[0]}", sep="\n    ")
    return moves


def fewest(machine: Any, moves: list[str]) -> tuple[list[str], AssertionError]:
    """Return few moves that still fail, and the failure: without a half, a quarter, and so on.
    Hypothesis would also spend minutes on each single move."""
    trouble = replay(machine, moves)
    assert trouble, "it fails only once"
    size = len(moves)
    while size:
        before = len(moves)
        for start in range(len(moves) - size, -1, -size):
            fewer = moves[:start] + moves[start + size :]
            if fails := replay(machine, fewer):
                moves, trouble = fewer, fails
        if len(moves) == before:
            size //= 2
    return moves, trouble


def replay(machine: Any, moves: list[str]) -> AssertionError | None:
    """Make the possible moves among these, and return the failure, which may be in `teardown`."""
    turns = machine()
    try:
        try:
            for text in moves:
                possible = chain.from_iterable(make() for make in turns.moves().values())
                if move := next((move for move in possible if move.text == text), None):
                    turns.make(move)
        finally:
            turns.teardown()
    except AssertionError as error:
        return error.with_traceback(None)
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str, redis_client: redis.Redis) -> None:
    mutant = MUTANTS[name]
    good = with_parts(mutant.machine, redis_client)
    parts = {"scripts": mutant.scripts(), "flows": mutant.flows()}
    broken = with_parts(mutant.machine, redis_client, **parts)
    path = FOUND / f"{name}.txt"
    if not path.exists():
        path.write_text("\n".join([*search(name, broken), ""]))
    moves = path.read_text().splitlines()
    assert replay(broken, moves), f"delete {path} to search for other moves"
    assert replay(good, moves) is None


def test_each_fault_of_make_mutants_has_its_place() -> None:
    texts = {each.name: (HOME / each.file).read_text().count(each.good) for each in faults([])}
    assert [name for name, count in texts.items() if count != 1] == []
