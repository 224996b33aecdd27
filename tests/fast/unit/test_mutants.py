"""What is planted is found: each fault in `mutants.toml`, by the machine of `test_model`.

``pytest tests/fast/unit/test_mutants.py -m slow -s`` searches and prints the moves that lead to
each.
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
import redis

import django_redislock
from django_redislock.engine import flows
from django_redislock.lua import Script, lines

from .finding import check_found_again, kept, replay, search
from .stage import SOURCES, staged
from .test_model import Turns, with_parts

HOME = Path(django_redislock.__file__).parent


@dataclass(frozen=True)
class Mutant:
    breaks: str
    file: str
    machine: str
    good: str
    bad: str

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
        if self.file not in {f"lua/{file}" for file, _, _ in lines(script.name)}:
            return script
        return replace(script, source=self.into(script.source))


MUTANTS = {
    name: Mutant(**facts)
    for name, facts in tomllib.loads(Path(__file__).with_name("mutants.toml").read_text()).items()
}


@pytest.fixture(params=MUTANTS)
def machine(request: pytest.FixtureRequest, redis_client: redis.Redis) -> type[Turns]:
    """That plays with the mutant of that name."""
    mutant = MUTANTS[request.param]
    parts = {"scripts": mutant.scripts(), "flows": mutant.flows(), "mutant": request.param}
    return with_parts(mutant.machine, redis_client, **parts)


def test_what_found_a_planted_fault_finds_it_again(machine: type[Turns]) -> None:
    check_found_again(machine.mutant, machine)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_same_moves_do_no_harm_without_the_fault(name: str, redis_client: redis.Redis) -> None:
    assert replay(with_parts(MUTANTS[name].machine, redis_client), kept(name)) is None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_planted_fault_is_found(machine: type[Turns]) -> None:
    search(machine.mutant, machine)
