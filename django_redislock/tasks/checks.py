"""System checks of single-instance tasks that work, but perhaps not as their author expects."""

from inspect import Parameter
from typing import Any

from django.core.checks import CheckMessage, Warning, register

from .decorator import definitions
from .single import Single

TASK_PARAMETERS = {"self", "task", "context"}
"""The usual names of a first parameter that the task framework fills."""


@register
def check_names(**_: Any) -> list[CheckMessage]:
    """W006: Calls with different arguments are duplicates of each other, so their work is lost."""
    # A shared task has a definition in each app.
    found = {path_of(single): single for single in list(definitions)}
    messages: list[CheckMessage] = []
    for path, single in sorted(found.items()):
        options, names = single.options, required_parameters(single)
        is_default = [options.unique_on, options.key, options.limit] == [None, None, None]
        if names and is_default and options.policy.loses_work:
            text = (
                f"{path} requires arguments ({', '.join(names)}), and its single_instance has"
                " neither unique_on nor key: calls with different arguments are duplicates of"
                " each other."
            )
            hint = (
                "Name the arguments in unique_on, or '*' for all. If all calls are meant to"
                " be duplicates of each other, say so with key='NAME'."
            )
            messages.append(Warning(text, hint=hint, id="redislock.W006"))
    return messages


def path_of(single: Single) -> str:
    """Return the module and qualified name of a function."""
    function = single.decorated
    return f"{function.__module__}.{function.__qualname__}"


def required_parameters(single: Single) -> list[str]:
    """Return the parameters without a default that a caller of the task has to give."""
    names = [
        name
        for name, each in single.signature.parameters.items()
        if each.default is Parameter.empty
        and each.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    first = next(iter(single.signature.parameters), None)
    return [name for name in names if name != first or name not in TASK_PARAMETERS]
