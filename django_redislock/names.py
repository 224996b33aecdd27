"""Lock names: validation, patterns, and templates that use the arguments of a call."""

import hashlib
import re
import reprlib
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from fnmatch import translate
from inspect import Parameter, Signature
from typing import Any

from django.core.exceptions import ImproperlyConfigured

MAX_BYTES = 512
"""The maximum length of a name in UTF-8."""

_DIGEST_CHARACTERS = 32
_SHORTENED = re.compile(rf":[0-9a-f]{{{_DIGEST_CHARACTERS}}}\Z")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_INDEX = re.compile(r"\[[^\]]*\]")
_WILDCARDS = re.compile(r"[*?]*\*[*?]*")
_WIDE = re.compile(r"\d{5}")


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        # The width can come from an argument of the call, and could exhaust the memory.
        if _WIDE.search(format_spec) and not isinstance(value, date | time):
            raise ValueError(f"the format width in {shown(format_spec)} is too large")
        return super().format_field(value, format_spec)


_FORMATTER = _Formatter()

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def check_names(names: object) -> list[str]:
    """Each of several names; see check_name()."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"names must be an iterable of lock names, got {shown(names)}")
    return [check_name(name, "each name in names") for name in names]


def check_name(name: object, argument: str = "name") -> str:
    """Return `name` if it can be a lock's, as a plain str.

    A name has 1 to 512 bytes in UTF-8 and no control characters.
    Raises `TypeError` or `ValueError`, which call it `argument`.
    """
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a str, not {shown(name)} ({type(name).__name__})")
    if not name:
        raise ValueError(f"{argument} must not be empty, got {name!r}")
    _refuse_unprintable(name, argument)
    if len(name) * 4 > MAX_BYTES and (size := len(name.encode())) > MAX_BYTES:
        raise ValueError(
            f"{argument} must be at most {MAX_BYTES} bytes in UTF-8, got {size}: {shown(name)}"
        )
    return str.__str__(name)


def could_match(pattern: str) -> bool:
    """Return whether any valid name can match a pattern."""
    literal = pattern.replace("*", "")
    return len(literal) <= MAX_BYTES and not _UNPRINTABLE.search(literal)


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that says whether a name matches `pattern`; None matches every name.

    ``*`` stands for any run of characters, ``?`` for one character. ``*?*?`` means the same as
    ``??*``, and is replaced by it: a regular expression takes much longer for the former.
    """
    if pattern is None:
        return lambda name: True
    if not could_match(pattern):
        return lambda name: False
    simple = _WILDCARDS.sub(lambda run: "?" * run.group().count("?") + "*", pattern)
    compiled = re.compile(translate(simple.replace("[", "[[]")))  # no character classes
    return lambda name: compiled.match(name) is not None


def fit_name(text: str) -> str:
    """Make a name of any text that is not empty.

    Control characters become backslash escapes. A text that is too long keeps its
    beginning and ends with ``:`` and a digest of the whole text. A text that looks like
    such a name is shortened too, so that it cannot be the name of another text.
    """
    printable = _UNPRINTABLE.sub(_escape, text)
    encoded = printable.encode()
    if len(encoded) <= MAX_BYTES and not _looks_shortened(printable, len(encoded)):
        return printable
    digest = hashlib.sha256(encoded).hexdigest()[:_DIGEST_CHARACTERS]
    beginning = encoded[: MAX_BYTES - _DIGEST_CHARACTERS - 1].decode(errors="ignore")
    return f"{beginning}:{digest}"


def _looks_shortened(name: str, size: int) -> bool:
    # A shortened name can lack up to 3 bytes, if a character was cut.
    return size > MAX_BYTES - 4 and _SHORTENED.search(name) is not None


def arguments(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Name the arguments of a call, with its defaults filled in.

    Raises the `TypeError` of the call itself if they don't fit `signature`.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


class Template:
    """A name with fields that get their values from the arguments of a call.

    Fields have the syntax of `str.format`, with the names of the parameters:
    ``"report:{account_id}"``, ``"user:{user.pk}"``. Errors refer to the text as `argument`. A
    field that is not a parameter raises `ImproperlyConfigured` when the template is created.
    """

    def __init__(self, text: str, signature: Signature, argument: str = "name") -> None:
        self.text = _check_text(text, argument)
        self.argument = argument
        self._signature = signature
        self._parameters = signature.parameters
        self._rest = _name_of_kind(signature, Parameter.VAR_KEYWORD)
        self._fields = tuple(self._check_field(field) for field in self._parse(text))
        self._has_specs = any(spec for _, _, spec, _ in _FORMATTER.parse(text))
        self._fixed = None if self._fields else check_name(text.format(), argument)

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the name for a call. Arguments that do not fit the signature raise `TypeError`,
        if the template has fields. Raises the same errors as `fill()`."""
        return self._fixed or self.fill(arguments(self._signature, args, kwargs))

    def fill(self, arguments: Mapping[str, Any]) -> str:
        """Return the name for `arguments` (of `arguments()`), always a valid one.

        Raises `ValueError` if an argument is missing or does not support the field, or if the name
        would be empty.
        """
        values = {**arguments.get(self._rest, {}), **arguments} if self._rest else arguments
        self._refuse_missing(values)
        try:
            text = self._format(values)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self._label()} cannot be filled from this call: {error}"
            ) from error
        return fit_name(text) or check_name("", f"{self._label()} as filled")

    def _format(self, values: Mapping[str, Any]) -> str:
        if self._has_specs:
            return _FORMATTER.vformat(self.text, (), values)
        return self.text.format_map(values)  # the same result, but faster

    def _parse(self, text: str) -> Iterator[str]:
        try:
            yield from _fields_of(text)
        except ValueError as error:
            raise ImproperlyConfigured(
                f"{self._label()} is not a valid template: {error}"
            ) from error

    def _check_field(self, field: str) -> str:
        name, *attributes = _INDEX.sub("", field).split(".")
        if not name or name.isdigit():
            self._refuse_field(field, "a field must have a name")
        if any(attribute.startswith("_") for attribute in attributes):
            self._refuse_field(field, "attributes that begin with '_' are not allowed")
        if name not in self._parameters and not self._rest:
            self._refuse_field(field, "there is no such parameter")
        return name

    def _refuse_field(self, field: str, why: str) -> None:
        known = ", ".join(self._parameters) or "none"
        raise ImproperlyConfigured(
            f"{self._label()} has the field {{{field}}}: {why}"
            f" (the function's parameters: {known})"
        )

    def _refuse_missing(self, values: Mapping[str, Any]) -> None:
        for name in self._fields:
            if name not in values:
                raise ValueError(f"{self._label()} needs {name!r}, which this call does not have")

    def _label(self) -> str:
        return f"{self.argument}={shown(self.text)}"


def shown(value: object) -> str:
    """Return a short repr of an untrusted value, for an error's text."""
    return _short.repr(value)


def _check_text(text: object, argument: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{argument} must be a str, not {shown(text)} ({type(text).__name__})")
    if not text:
        raise ValueError(f"{argument} must not be empty, got {text!r}")
    _refuse_unprintable(text, argument)
    return str.__str__(text)


def _refuse_unprintable(text: str, argument: str) -> None:
    if found := _UNPRINTABLE.search(text):
        raise ValueError(
            f"{argument} must not contain control characters, got {found.group()!r}"
            f" in {shown(text)}"
        )


def _fields_of(text: str) -> Iterator[str]:
    for _, field, spec, _ in _FORMATTER.parse(text):
        if field is None:
            continue
        yield field
        yield from _fields_of(spec or "")


def _name_of_kind(signature: Signature, kind: object) -> str | None:
    return next((p.name for p in signature.parameters.values() if p.kind is kind), None)


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()
