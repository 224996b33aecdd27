"""The machine of test_model finds each planted fault of mutants.toml."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
import redis

import django_redislock
from django_redislock.engine import protocol
from django_redislock.lua import Script, lines
from tests.mutants.__main__ import faults

from .finding import check_found, check_harmless
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


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str, redis_client: redis.Redis) -> None:
    mutant = MUTANTS[name]
    parts = {"scripts": mutant.scripts(), "flows": mutant.flows()}
    check_found(name, with_parts(mutant.machine, redis_client, **parts))
    check_harmless(name, with_parts(mutant.machine, redis_client))


def test_each_fault_of_make_mutants_has_its_place() -> None:
    texts = {each.name: (HOME / each.file).read_text().count(each.good) for each in faults([])}
    assert [name for name, count in texts.items() if count != 1] == []
