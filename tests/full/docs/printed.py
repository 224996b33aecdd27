"""Compare the output in a page with the real output, ignoring values that vary between runs."""

import re
import socket
from doctest import ELLIPSIS, OutputChecker

HOST = re.escape(socket.gethostname())

VARIES = (
    # The pages use vm as the host name.
    (re.compile(rf"\b({HOST}|vm):\d+\b"), "vm:1"),
    (re.compile(r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+)?"), r"2026-01-01\g<1>00:00:00"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "00:00:00"),
    (re.compile(r"\b1\d{15}\b"), "1000000000000000"),  # a fencing token
    (re.compile(r"\b\d+(\.\d+)?( ?m?s)\b"), r"1\g<2>"),
    (re.compile(r"[█░]+"), "█"),
    # What is typed is not printed.
    (re.compile(r"\[y/N\] (y\n)?"), "[y/N] "),
    # The width of a column depends on the host name.
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" ?\n+"), "\n"),
)


def assert_same(printed: str, shown: str) -> None:
    """Raise AssertionError if `printed` does not match the page. ``...`` matches any text."""
    __tracebackhide__ = True
    if not matches(printed, shown):
        raise AssertionError(f"The page shows\n\n{shown}\n\nand this was printed:\n\n{printed}")


def matches(printed: str, shown: str) -> bool:
    return OutputChecker().check_output(constant(shown), constant(printed), ELLIPSIS)


def constant(text: str) -> str:
    """Return `text` with fixed values instead of the varying ones."""
    for varying, instead in VARIES:
        text = varying.sub(instead, text)
    return text.strip() + "\n"
