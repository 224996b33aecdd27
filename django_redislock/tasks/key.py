"""The name of the lock, from the call."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from django_redislock.names import Template, arguments, check_name, fit_name

from .canonical import text_of

if TYPE_CHECKING:
    from .call import Call
    from .options import Options

KeyOf = Callable[["Call"], str]


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
    return _key_of_arguments(
        None if options.unique_on == "*" else set(options.unique_on), signature
    )


def _key_of_arguments(unique_on: set[str] | None, signature: Signature) -> KeyOf:
    """Return what makes a name of these arguments, or of all, in the order of the signature."""
    parameters = signature.parameters
    keywords = next(
        (each.name for each in parameters.values() if each.kind is each.VAR_KEYWORD), ""
    )
    unknown = sorted((unique_on or set()).difference(parameters))
    if unknown and not keywords:
        raise ImproperlyConfigured(
            f"unique_on names {', '.join(map(repr, unknown))}, but the function has no such"
            f" parameter (its parameters: {', '.join(parameters) or 'none'})"
        )
    known = [name for name in parameters if unique_on is None or name in unique_on]

    def key_of(call: Call) -> str:
        given = arguments(signature, call.args, call.kwargs)
        if keywords and unique_on:
            given = {**given[keywords], **given}
        texts = []
        for name in known[call.added_args :] if unique_on is None else known + unknown:
            if name not in given:
                raise ValueError(f"unique_on names {name!r}, which this call does not have")
            try:
                texts.append(f"{name}={text_of(given[name])}")
            except (TypeError, ValueError) as error:
                raise type(error)(
                    f"Argument {name!r} cannot be part of the lock name: {error}"
                ) from error
        return fit_name(f"{call.name}:{','.join(texts)}" if texts else call.name)

    return key_of
