"""Processes that wait for orders, so that all contenders are measured in the same processes."""

import os
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar

T = TypeVar("T")

_context = get_context("forkserver")


class Crew:
    """Context manager with `size` processes that know the `aliases`.

    An order is a function of a module, with arguments. The processes are forked from one process
    that has imported everything, so hundreds of them start within seconds.
    """

    def __init__(self, size: int, aliases: Mapping[str, str]) -> None:
        self._size, self._aliases = size, dict(aliases)
        self._processes: list[Any] = []
        self._lines: list[Connection] = []

    def order(self, members: int, function: Callable[..., T], *args: Any) -> list[T]:
        """Run an order in the first `members` processes at once, and return the answers."""
        chosen = self._lines[:members]
        for line in chosen:
            line.send((function, args))
        answers = [line.recv() for line in chosen]
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def __enter__(self) -> Self:
        _context.set_forkserver_preload([f"{__package__}.preloaded"])
        for _ in range(self._size):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_obey, args=(theirs, self._aliases), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._lines.append(ours)
        self.order(self._size, os.getpid)  # wait until all have started
        return self

    def __exit__(self, *error: object) -> None:
        for line in self._lines:
            line.close()  # ends the processes
        for process in self._processes:
            process.join(10)
            process.kill()


def _obey(line: Connection, aliases: dict[str, str]) -> None:
    from .places import aliases as known

    with known(**aliases):
        while True:
            try:
                function, args = line.recv()
            except EOFError:
                return
            try:
                answer = function(*args)
            except Exception as error:
                answer = RuntimeError(f"{type(error).__name__} in process {os.getpid()}: {error}")
            line.send(answer)
