"""Helpers of many tests: waiting for a condition, and a second process."""

import contextlib
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Self, TypeVar

import redis

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent

KEY = re.compile(r"\{.+\}:(?P<part>(?:lock|queue|waiting|index|inbox|history)\b.*)", re.DOTALL)
"""Every key of the package, with any prefix."""

PREAMBLE = """\
import sys
import django
django.setup()
def say(text):
    print(text, flush=True)
def hear():
    return sys.stdin.readline().strip()
"""


def wait_until(predicate: Callable[[], T], *, timeout: float = 60, interval: float = 0.01) -> T:
    """Return the first true result of `predicate`, or fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        assert time.monotonic() < deadline, f"{predicate} was not true within {timeout} s"
        time.sleep(interval)
    return answer


STOPPED = """
import json
from django_redislock import locks
name, timeout, metadata = sys.argv[1:]
locks.lock(name, timeout=float(timeout), metadata=json.loads(metadata)).acquire()
say("held")
hear()
"""
"""A process that holds a lock, for a test that stops it."""


class Child:
    """A Python process with Django set up that runs `code`, killed at the end of ``with``.

    The code has ``say(text)`` and ``hear()`` to talk with the test, and
    ``sys.argv[1:]`` for `arguments`; what it says is taken with `expect`.

    >>> with Child("say('ready'); hear()") as child:
    ...     child.expect("ready")
    ...     child.tell("go on")
    """

    def __init__(self, code: str, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + code, *arguments],
            cwd=ROOT,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self._said: SimpleQueue[str | None] = SimpleQueue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line.rstrip("\n"))
        self._said.put(None)

    def expect(self, text: str, *, timeout: float = 60) -> str:
        """The rest of the next line, which begins with `text`; AssertionError if it doesn't."""
        try:
            line = self._said.get(timeout=timeout)
        except Empty:
            raise AssertionError(f"no {text!r} from the child within {timeout} s") from None
        assert line is not None, f"the child ended without {text!r}"
        assert line.startswith(text), f"the child said {line!r}, not {text!r}"
        return line[len(text) :].strip()

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def wait(self, *, timeout: float = 60) -> int:
        return self.process.wait(timeout)

    def kill(self) -> None:
        """Send SIGKILL, so that the process releases nothing."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # it did not read the last line
                stream.close()


@contextlib.contextmanager
def no_new_threads() -> Iterator[None]:
    """In the block, no thread of this process can be started."""
    before = threading.stack_size(1 << 47)  # more than there are addresses
    try:
        yield
    finally:
        threading.stack_size(before)


def wait_for_none_left(client: redis.Redis, *, timeout: float = 3) -> list[str]:
    try:
        wait_until(lambda: not leftovers(client), timeout=timeout, interval=0.05)
    except AssertionError:
        return leftovers(client)
    return []


def leftovers(client: redis.Redis) -> list[str]:
    """The names of keys, and of members of an index, that should be gone, and of keys that
    somebody wrote over."""
    left: list[str] = []
    seconds, microseconds = client.time()
    now = seconds * 1000 + microseconds / 1000
    for key in sorted(client.scan_iter(count=1000)):
        match = KEY.search(key)
        if match is None or match["part"].startswith("history:"):
            continue
        if match["part"].startswith("inbox:") and client.pttl(key) != -1:
            continue  # it expires a moment after the last wait
        kind = client.type(key)
        if match["part"] == "index" and kind == "zset":
            left += [f"{key} -> {name}" for name in client.zrangebyscore(key, now, "inf") if name]
        elif not match["part"].startswith("lock:") or kind != "hash" or _is_held(client, key, now):
            left.append(key)
    return left


def _is_held(client: redis.Redis, key: str, now: float) -> bool:
    """Whether a lease is running. Where none is, its end is still to be noted in the history."""
    return float(client.hget(key, "latest") or 0) > now


@contextlib.contextmanager
def same_logging() -> Iterator[None]:
    """For a Celery worker in this process, which takes the root logger over for good."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
