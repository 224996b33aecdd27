"""What is planted is found: each fault in `mutants.toml`, by the machine of `test_model`.

``pytest tests/unit/test_mutants.py -s`` prints the moves that lead to each, and no more of them
than it takes.
"""

import re
import tomllib
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import django_redislock
from django_redislock.engine import flows
from django_redislock.lua import Script
from tests.unit.stage import SOURCES, staged
from tests.unit.test_model import Turns, with_parts

STEP = re.compile(r"state\.then\(move=(.*)\)")

HOME = Path(django_redislock.__file__).parent

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


@dataclass(frozen=True)
class Mutant:
    breaks: str
    file: str
    machine: str
    good: str
    bad: str
    quick: bool = False

    def into(self, source: str) -> str:
        assert source.count(self.good) == 1, f"{self.file} has no such text: {self.good}"
        return source.replace(self.good, self.bad)

    def scripts(self) -> dict[str, Script]:
        return {each.name: staged(self._script(each)) for each in SOURCES}

    def flows(self) -> ModuleType:
        if self.file != "engine/flows.py":
            return flows
        module = ModuleType(flows.__name__)
        module.__package__ = flows.__package__
        path = HOME / self.file
        exec(compile(self.into(path.read_text()), path, "exec"), module.__dict__)  # noqa: S102  our own
        return module

    def _script(self, script: Script) -> Script:
        if self.file not in ("lua/_lib.lua", f"lua/{script.name}.lua"):
            return script
        return replace(script, source=self.into(script.source))


MUTANTS = {
    name: Mutant(**facts)
    for name, facts in tomllib.loads(Path(__file__).with_name("mutants.toml").read_text()).items()
}


NAMES = [
    pytest.param(name, marks=[] if mutant.quick else [pytest.mark.slow])
    for name, mutant in MUTANTS.items()
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_fault_is_found(name: str, redis_client: redis.Redis) -> None:
    mutant = MUTANTS[name]
    parts = {"scripts": mutant.scripts(), "flows": mutant.flows()}
    machine = with_parts(mutant.machine, redis_client, **parts)
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(machine, settings=SEARCH)
    found = [match[1] for note in caught.value.__notes__ if (match := STEP.fullmatch(note))]
    moves, trouble = shrink(machine, found)
    title = f"\n{name} ({mutant.machine}): {mutant.breaks}"
    print(title, *moves, f"-> {str(trouble).splitlines()[0]}", sep="\n    ")


def shrink(machine: type[Turns], moves: list[str]) -> tuple[list[str], AssertionError | None]:
    """As few of the moves as still fail, and how. One at a time: Hypothesis would try for
    minutes to make each of them smaller, too."""
    trouble = replay(machine, moves)
    assert trouble, "it fails only once"
    at = len(moves)
    while at > 0:
        at -= 1
        fewer = moves[:at] + moves[at + 1 :]
        fails = replay(machine, fewer)
        if fails:
            moves, trouble, at = fewer, fails, len(fewer)
    return moves, trouble


def replay(machine: type[Turns], moves: list[str]) -> AssertionError | None:
    """Make those of the moves that are possible; answers what fails."""
    turns = machine()
    try:
        make_all(turns, moves)
    except AssertionError as error:
        return error
    return None


def make_all(turns: Turns, moves: list[str]) -> None:
    try:
        for text in moves:
            possible = chain.from_iterable(make() for make in turns.moves().values())
            if move := next((move for move in possible if move.text == text), None):
                turns.make(move)
    finally:
        turns.teardown()
