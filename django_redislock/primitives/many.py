"""Several locks, all or none."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Literal, Unpack

from redis.exceptions import RedisError

from ..connection import Server
from ..engine.lease import Lease
from ..engine.ops import Flow
from ..engine.renewal import Book
from ..exceptions import LockError
from ..names import Template, arguments, check_name
from ..values import Seconds
from .base import Lock, Options
from .mutex import Mutex


class Many(Lock):
    """The mutexes of several names, acquired one after the other in the order of their names.

    As everybody keeps that order, two callers can't wait for each other (Havender, 1968). Who
    gets not all of them in time keeps none; `blocking_timeout` is for all together.
    """

    kind = "mutex"
    capacity = 1
    weight = 1

    def __init__(
        self, server: Callable[[], Server], names: Iterable[str], **options: Unpack[Options]
    ) -> None:
        if options.get("on_lost") == "abort":
            raise ValueError("on_lost='abort' is not for several locks at once; ask lost")
        self._options = options
        self._members = [Mutex(server, name, **options) for name in _in_order(names)]
        self.names = tuple(member.name for member in self._members)
        super().__init__(server, self.names[0], **options)
        self.name = ", ".join(self.names)  # for errors; no lock has this name

    def __repr__(self) -> str:
        return f"<Many {', '.join(map(repr, self.names))}>"

    @property
    def token(self) -> str | None:
        """The owner's token of the first; each has its own."""
        return self._members[0].token

    @property
    def fence_token(self) -> int | None:
        """None: each has its own, in `fence_tokens`."""
        return None

    @property
    def fence_tokens(self) -> Mapping[str, int | None]:
        """The fencing token of each name."""
        return {member.name: member.fence_token for member in self._members}

    @property
    def lost(self) -> bool:
        """Whether any of them is lost."""
        return any(member.lost for member in self._members)

    def assert_held(self) -> None:
        """Raise unless its caller holds all of them."""
        for member in self._members:
            member.assert_held()

    def release(self) -> None:
        """Let go of all. What goes wrong with one does not keep the others."""
        self._mine_all()
        with ExitStack() as stack:
            for member in self._members:
                stack.callback(member.release)

    async def arelease(self) -> None:
        """See release()."""
        self._mine_all()
        async with AsyncExitStack() as stack:
            for member in self._members:
                stack.push_async_callback(member.arelease)

    def extend(self, additional_time: Seconds, replace_ttl: bool = False) -> Literal[True]:
        """See Lock.extend()."""
        for member in self._members:
            member.extend(additional_time, replace_ttl)
        return True

    async def aextend(self, additional_time: Seconds, replace_ttl: bool = False) -> Literal[True]:
        """See extend()."""
        for member in self._members:
            await member.aextend(additional_time, replace_ttl)
        return True

    def locked(self) -> bool:
        """Whether anybody holds any of them, as Redis knows."""
        return any(member.locked() for member in self._members)

    async def alocked(self) -> bool:
        """See locked()."""
        return any([await member.alocked() for member in self._members])

    def owned(self) -> bool:
        """Whether its caller holds all of them, as Redis knows."""
        return all(member.owned() for member in self._members)

    async def aowned(self) -> bool:
        """See owned()."""
        return all([await member.aowned() for member in self._members])

    def _acquire(self, book: Book, until: float | None, token: str | bytes | None) -> Flow[bool]:
        taken: list[Mutex] = []
        try:
            for member in self._members:
                if not (yield from member._acquire(book, until, token)):
                    break
                taken.append(member)
            else:
                self.assert_held()  # one may have been lost while another was waited for
                return True
        except GeneratorExit:
            raise
        except BaseException:
            yield from _give_back(taken)
            raise
        yield from _give_back(taken)
        return False

    def _mine_all(self) -> None:
        for member in self._members:
            member._mine("Cannot release", lost=True)

    def _callers(self) -> Lease | None:
        leases = [lease for member in self._members if (lease := member._callers())]
        return next((lease for lease in leases if lease.lost), leases[0] if leases else None)

    def _for_calls(self, signature: inspect.Signature) -> Callable[..., Lock]:
        templates = [Template(name, signature) for name in self.names]

        def lock(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
            given = arguments(signature, args, kwargs)
            names = [template.fill(given) for template in templates]
            return type(self)(self._server, names, **self._options)

        return lock


def _in_order(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"names must be several names, got the str {names!r}")
    ordered = sorted({check_name(name, "each of names") for name in names})
    if not ordered:
        raise ValueError(f"names must not be empty, got {names!r}")
    return ordered


def _give_back(taken: list[Mutex]) -> Flow[None]:
    interrupt: BaseException | None = None
    for member in reversed(taken):
        lease = member._mine("Cannot release", lost=True)
        member._forget_entry(lease)
        lease.at_least_for = 0  # it was not held, as not all were
        try:
            yield from member._release(lease)
        except (RedisError, LockError):
            continue
        except GeneratorExit:
            raise
        except BaseException as error:  # a second interrupt does not keep the others
            interrupt = error
    if interrupt:
        raise interrupt
