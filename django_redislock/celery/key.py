"""The name of the lock, from the call."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import Parameter, Signature
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_redislock.names import Template, arguments, check_name, fit_name

from .call import Call
from .canonical import text_of
from .options import Options

KeyOf = Callable[[Call], str]


def key_maker(options: Options, signature: Signature) -> KeyOf:
    """Return what makes the lock's name for a call.

    Raises `ImproperlyConfigured` if an option names an argument that
    `signature` does not have.
    """
    if callable(options.key):
        return partial(_chosen, options.key)
    if options.key is not None:
        return partial(_filled, Template(options.key, signature, "key"))
    if options.unique_on is None:
        return _one_per_task
    return partial(_one_per_arguments, _Picker(options.unique_on, signature))


def _chosen(key: Callable[..., str], call: Call) -> str:
    return check_name(key(*call.sent_args, **call.kwargs), "the result of key")


def _filled(template: Template, call: Call) -> str:
    return template.of_call(call.args, call.kwargs)


def _one_per_task(call: Call) -> str:
    return fit_name(call.name)


def _one_per_arguments(picker: "_Picker", call: Call) -> str:
    values = ",".join(f"{name}={_text(name, value)}" for name, value in picker.pick(call))
    return fit_name(f"{call.name}:{values}" if values else call.name)


class _Picker:
    """Picks out of a call the arguments that `unique_on` names, in the signature's order."""

    def __init__(self, unique_on: Iterable[str], signature: Signature) -> None:
        self._signature = signature
        self._rest = _rest_of(signature)
        self._names = None if unique_on == "*" else self._sorted(unique_on)

    def _sorted(self, unique_on: Iterable[str]) -> list[str]:
        known = list(self._signature.parameters)
        unknown = sorted(set(unique_on).difference(known))
        if unknown and self._rest is None:
            raise ImproperlyConfigured(
                f"unique_on names {', '.join(map(repr, unknown))}, but the function has no such"
                f" parameter (its parameters: {', '.join(known) or 'none'})"
            )
        return [name for name in known if name in unique_on] + unknown

    def pick(self, call: Call) -> Iterable[tuple[str, Any]]:
        given = arguments(self._signature, call.args, call.kwargs)
        if self._names is None:
            return [item for item in given.items() if not _is_task(item[1], call)]
        extra = given.get(self._rest, {}) if self._rest else {}
        return [(name, _value(name, {**extra, **given})) for name in self._names]


def _value(name: str, given: Mapping[str, Any]) -> Any:
    if name not in given:
        raise ValueError(f"unique_on names {name!r}, which this call does not have")
    return given[name]


def _is_task(value: object, call: Call) -> bool:
    return call.task is not None and value is call.task


def _text(name: str, value: object) -> str:
    try:
        return text_of(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"Argument {name!r} cannot be part of the lock name: {error}") from error


def _rest_of(signature: Signature) -> str | None:
    parameters = signature.parameters.values()
    return next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
