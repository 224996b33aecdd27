"""System checks of single-instance tasks that work, but perhaps not as their author expects."""

from collections import defaultdict
from inspect import Parameter
from typing import Any

from django.core.checks import CheckMessage, Warning, register

from .decorator import decorated
from .single import Single, marked

TASK_PARAMETERS = {"self", "task", "context"}
"""The usual names of a first parameter that the task framework fills."""


@register
def check_names(**_: Any) -> list[CheckMessage]:
    """W011: Calls with different arguments share a lock. W012: Tasks that skip share a lock."""
    found: dict[str, Single] = {}
    for function in list(decorated):
        if single := marked(function):
            found[f"{function.__module__}.{function.__qualname__}"] = single
    return [*_without_arguments(found), *_with_a_shared_key(found)]


def _without_arguments(found: dict[str, Single]) -> list[CheckMessage]:
    messages: list[CheckMessage] = []
    for path, single in sorted(found.items()):
        options = single.options
        names = required_parameters(single)
        if names and options.unique_on is None and options.key is None:
            text = (
                f"{path} requires arguments ({', '.join(names)}), and its single_instance has"
                " neither unique_on nor key: calls with different arguments exclude each other."
            )
            hint = (
                "Name the arguments in unique_on, or '*' for all. If all calls are meant to"
                " exclude each other, say so with key='NAME'."
            )
            messages.append(Warning(text, hint=hint, id="redislock.W011"))
    return messages


def _with_a_shared_key(found: dict[str, Single]) -> list[CheckMessage]:
    shared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, single in sorted(found.items()):
        if isinstance(single.options.key, str):
            shared[single.manager.alias, single.options.key].append(path)
    messages: list[CheckMessage] = []
    for (_, key), paths in shared.items():
        skipping = [path for path in paths if found[path].options.on_conflict == "skip"]
        if len(paths) > 1 and skipping:
            text = (
                f"{', '.join(paths)} share key={key!r}, and {', '.join(skipping)} would be skipped"
                " while another of them runs: its work is lost."
            )
            hint = (
                "Use on_conflict='retry' or 'wait' for tasks that must not run at the same time."
                " Silence this check if one may be skipped because of another."
            )
            messages.append(Warning(text, hint=hint, id="redislock.W012"))
    return messages


def required_parameters(single: Single) -> list[str]:
    """Return the parameters without a default that a caller of the task has to give."""
    names = [
        name
        for name, each in single.signature.parameters.items()
        if each.default is Parameter.empty
        and each.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    first = next(iter(single.signature.parameters), None)
    return [name for name in names if not (name == first and name in TASK_PARAMETERS)]
