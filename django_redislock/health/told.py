"""What the server tells of itself, and what it would not tell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from ..engine.drivers import text
from ..engine.ops import Ask, Flow
from .finding import words

CONFIG = ("save", "appendfsync", "min-replicas-to-write", "min-replicas-max-lag")


class NotTold(Exception):
    """Something could not be asked; `needs` is what a user's ACL lacks for it, if that is why."""

    def __init__(self, why: str, needs: str | None = None) -> None:
        super().__init__(why)
        self.needs = needs


@dataclass(frozen=True, slots=True)
class Told:
    """The answers to INFO and CONFIG GET. What they lack raises `NotTold` when it is wanted."""

    info: Any
    config: Mapping[str, Any]

    def get(self, field: str, default: str | None = None) -> str:
        """A field of INFO."""
        found = fields(given(self.info, "INFO", "+info")).get(field, default)
        if found is None:
            raise NotTold(f"The server's INFO has no {field}.")
        return str(found)

    def number(self, field: str) -> int:
        return int(self.get(field, "0"))

    def replicas(self) -> list[Mapping[str, str]]:
        every = fields(given(self.info, "INFO", "+info"))
        return [pairs(every[f"slave{n}"]) for n in range(len(every)) if f"slave{n}" in every]

    def setting(self, name: str) -> str:
        """A parameter of the server's configuration."""
        answer = given(self.config[name], "CONFIG GET", "+config|get")
        found = answer if isinstance(answer, dict) else dict(_two_by_two(answer))
        values = {text(key): text(value) for key, value in found.items()}
        if name not in values:
            raise NotTold(f"The server's CONFIG has no {name}.")
        return values[name]


def ask(limit: float, key: str = "") -> Flow[Told]:
    """Ask all at once; what is refused, or not answered, is told of by `Told`."""
    commands = (("INFO",), *(("CONFIG", "GET", name) for name in CONFIG))
    try:
        info, *config = yield Ask(commands, limit, key)
    except RedisError as error:
        return Told(error, dict.fromkeys(CONFIG, error))
    return Told(info, dict(zip(CONFIG, config, strict=True)))


def given(answer: Any, command: str, needs: str) -> Any:
    """What was answered to a command that an ACL allows by `needs`."""
    if isinstance(answer, NoPermissionError):
        raise NotTold(f"The server refuses {command} ({words(answer)}); {needs} allows it.", needs)
    if isinstance(answer, ResponseError):
        raise NotTold(f"The server refuses {command}: {words(answer)}.")
    if isinstance(answer, Exception):
        raise NotTold(f"The server did not answer {command}: {type(answer).__name__}.")
    return answer


def fields(info: Any) -> Mapping[str, Any]:
    """What INFO answers: as text, or as a client has parsed it."""
    if isinstance(info, dict):
        return info
    lines = (line.partition(":") for line in text(info).splitlines())
    return {name: value for name, colon, value in lines if colon}


def pairs(told: Any) -> Mapping[str, str]:
    """``a=1,b=2``, or what a client has made of it."""
    if isinstance(told, dict):
        return {name: str(value) for name, value in told.items()}
    return dict(pair.partition("=")[::2] for pair in told.split(","))


def _two_by_two(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
