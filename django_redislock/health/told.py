"""What the server tells of itself, and what it would not tell."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from ..engine.operations import Flow, RawCommands
from ..engine.parsing import text
from .finding import words


class NotTold(Exception):
    """Something could not be asked; `needs` is what a user's ACL lacks for it, if that is why."""

    def __init__(self, why: str, needs: str | None = None) -> None:
        super().__init__(why)
        self.needs = needs


@dataclass(frozen=True, slots=True)
class Told:
    """The server's reply to INFO. Reading a field that the reply lacks raises `NotTold`."""

    info: Any

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


def ask(limit: float, key: str = "") -> Flow[Told]:
    """Send INFO. A refusal or a missing reply is kept in `Told` and raised when it is read.

    CONFIG GET would tell more, but a user who may run it can also read ``requirepass`` and
    ``masterauth``. So no check may depend on it.
    """
    try:
        [info] = yield RawCommands((("INFO",),), limit, key)
    except RedisError as error:
        return Told(error)
    return Told(info)


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
