"""The name of the lock, from the call."""

from collections.abc import Callable, Iterable
from inspect import Signature
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
    key = options.key
    if callable(key):
        return lambda call: check_name(key(*call.sent_args, **call.kwargs), "the result of key")
    if key is not None:
        template = Template(key, signature, "key")
        return lambda call: template.of_call(call.args, call.kwargs)
    if options.unique_on is None:
        return lambda call: fit_name(call.name)
    return _ArgumentNames(options.unique_on, signature).lock_name


class _ArgumentNames:
    """The arguments that `unique_on` names, in the order of the signature."""

    def __init__(self, unique_on: Iterable[str], signature: Signature) -> None:
        self._signature = signature
        self._keywords = next(
            (each.name for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD),
            None,
        )
        self._names = None if unique_on == "*" else self._sorted(unique_on)

    def _sorted(self, unique_on: Iterable[str]) -> list[str]:
        known = list(self._signature.parameters)
        unknown = sorted(set(unique_on).difference(known))
        if unknown and self._keywords is None:
            raise ImproperlyConfigured(
                f"unique_on names {', '.join(map(repr, unknown))}, but the function has no such"
                f" parameter (its parameters: {', '.join(known) or 'none'})"
            )
        return [name for name in known if name in unique_on] + unknown

    def lock_name(self, call: Call) -> str:
        given = arguments(self._signature, call.args, call.kwargs)
        if self._names is None:
            added = list(self._signature.parameters)[: call.added_args]
            given = {name: value for name, value in given.items() if name not in added}
        else:
            given = self._named(self._names, given)
        values = ",".join([f"{name}={_text(name, value)}" for name, value in given.items()])
        return fit_name(f"{call.name}:{values}" if values else call.name)

    def _named(self, names: Iterable[str], given: dict[str, Any]) -> dict[str, Any]:
        known = {**given.get(self._keywords, {}), **given} if self._keywords else given
        for name in names:
            if name not in known:
                raise ValueError(f"unique_on names {name!r}, which this call does not have")
        return {name: known[name] for name in names}


def _text(name: str, value: object) -> str:
    try:
        return text_of(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"Argument {name!r} cannot be part of the lock name: {error}") from error
