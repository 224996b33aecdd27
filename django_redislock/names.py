"""Lock names: validation, patterns, and templates that use the arguments of a call."""

import hashlib
import math
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Model

from .text import any_of
from .validators import short_repr as short_repr

MAX_NAME_BYTES = 512
"""The maximum length of a name in UTF-8."""

_DIGEST_CHARACTERS = 32
_SHORTENED = re.compile(rf":[0-9a-f]{{{_DIGEST_CHARACTERS}}}")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPES = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(0x20), ord("\\"), *range(0x7F, 0xA0), *range(0xD800, 0xE000))
}
_CHUNK_CHARACTERS = 50_000
"""How much of a text is encoded at once. Other threads run in between."""

is_short_name = re.compile(
    f"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{{1,{MAX_NAME_BYTES // 4}}}"
).fullmatch
"""Return whether a str is valid, and so short that it need not be encoded to know its bytes."""

_INDEX = re.compile(r"\[[^\]]*\]")
_ADDRESS = re.compile(" at 0x[0-9A-Fa-f]+>")
_formatter = string.Formatter()


def check_names(names: object) -> list[str]:
    """Return several lock names after `check_name()` of each."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"names must be an iterable of lock names, got {short_repr(names)}")
    return [check_name(name, "each name in names") for name in names]


def check_name(name: object, argument: str = "name", max_bytes: float = MAX_NAME_BYTES) -> str:
    """Return a lock name as a plain str.

    A name has 1 to 512 bytes in UTF-8 and no control characters.

    Args:
        name: The name.
        argument: The argument's name, for the message of an exception.
        max_bytes: The maximum length in UTF-8. A template of a name can be longer.

    Raises:
        TypeError: The name is not a str.
        ValueError: The name is empty or too long, or has control characters.
    """
    if not isinstance(name, str):
        kind = type(name).__name__
        raise TypeError(f"{argument} must be a str, not {short_repr(name)} ({kind})")
    if not name:
        raise ValueError(f"{argument} must not be empty, got {name!r}")
    # First, because to search or encode a very long text would stop the other threads.
    if len(name) > max_bytes:
        raise ValueError(
            f"{argument} must be at most {max_bytes} bytes in UTF-8, "
            f"got {len(name)} characters: {short_repr(name)}"
        )
    if found := _UNPRINTABLE.search(name):
        raise ValueError(
            f"{argument} must not contain control characters, got {found.group()!r}"
            f" in {short_repr(name)}"
        )
    text = str.__str__(name)
    size = len(text.encode())
    if size > max_bytes:
        raise ValueError(
            f"{argument} must be at most {max_bytes} bytes in UTF-8, "
            f"got {size}: {short_repr(text)}"
        )
    return text


def could_match(pattern: str) -> bool:
    """Return whether any valid name can match a pattern. Raises `TypeError` if it is not a str."""
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a str, got {short_repr(pattern)}")
    literal_characters = len(pattern) - pattern.count("*")
    return literal_characters <= MAX_NAME_BYTES and not _UNPRINTABLE.search(pattern)


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return a function that returns whether a name matches `pattern`.

    Args:
        pattern: ``*`` matches any characters, ``?`` matches one character. None matches every
            name.
    """
    if pattern is None:
        return lambda name: True
    match = any_of((pattern,)).match if could_match(pattern) else None
    return lambda name: match is not None and match(name) is not None


def search_pattern(text: str) -> str | None:
    """Return the pattern that a user searches for: a pattern, or a part of a name.

    An empty text searches for nothing, so the result is None, which matches every name.
    """
    part = text.strip()
    if "*" in part or "?" in part:
        return part
    return f"*{part}*" if part else None


def fit_name(text: str) -> str:
    """Make a name of any text that is not empty.

    Control characters and backslashes become backslash escapes. A text that is too long keeps its
    beginning and ends with ``:`` and a digest of the whole text. A text that looks like
    such a name is shortened too, so that it cannot be the name of another text.
    """
    if is_short_name(text) and "\\" not in text:
        return text  # nearly always, so the rest is not tried
    # A longer text is cut anyway, so the time to escape it does not grow with it.
    printable = text[:MAX_NAME_BYTES].translate(_ESCAPES)
    encoded = printable.encode()
    # A shortened name can lack up to 3 bytes, if a character was cut.
    looks_shortened = len(encoded) > MAX_NAME_BYTES - 4 and _SHORTENED.fullmatch(
        printable[-_DIGEST_CHARACTERS - 1 :]
    )
    fits = len(text) <= MAX_NAME_BYTES and len(encoded) <= MAX_NAME_BYTES
    if fits and not looks_shortened:
        return printable
    beginning = encoded[: MAX_NAME_BYTES - _DIGEST_CHARACTERS - 1].decode(errors="ignore")
    return f"{beginning}:{digest_of(text)}"


def digest_of(text: str) -> str:
    """Return a digest of a text of any length, also of one with lone surrogates."""
    digest = hashlib.sha256()
    for start in range(0, len(text), _CHUNK_CHARACTERS):
        chunk = text[start : start + _CHUNK_CHARACTERS]
        digest.update(chunk.encode(errors="surrogatepass"))
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


class Arguments:
    """Names the arguments of the calls of a function.

    Args:
        signature: The signature of the function.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._names = tuple(signature.parameters)
        kinds = {each.kind for each in signature.parameters.values()}
        self._can_zip = kinds <= {Parameter.POSITIONAL_OR_KEYWORD}

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, with the defaults filled in.

        Raises:
            TypeError: The arguments do not fit the signature.
        """
        if self._can_zip and not kwargs and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))  # ten times as fast
        bound = self._signature.bind(*args, **kwargs)
        if len(bound.arguments) < len(self._names):
            bound.apply_defaults()
        return bound.arguments


class Template:
    """A name with fields that get their values from the arguments of a call.

    Fields have the syntax of `str.format`, with the names of the parameters:
    ``"report:{account_id}"``, ``"user:{user.pk}"``. A model is named by its label and its primary
    key, because its text may change. A text with a memory address is refused, because each call
    would get a name of its own.

    Args:
        text: The template.
        signature: The signature of the function that is called.
        argument: The argument's name, for the message of an exception.

    Raises:
        ImproperlyConfigured: The template is invalid, or has a field that is not a parameter.
    """

    def __init__(self, text: str, signature: Signature, argument: str = "name") -> None:
        self._text = check_name(text, argument, max_bytes=math.inf)
        self._label = f"{argument}={short_repr(text)}"
        self._signature = signature
        self._arguments = Arguments(signature)
        self._var_keyword = next(
            (p.name for p in signature.parameters.values() if p.kind is Parameter.VAR_KEYWORD),
            None,
        )
        try:
            self._parts = [*_formatter.parse(self._text)]
        except ValueError as error:
            raise ImproperlyConfigured(
                f"{self._label} is not a valid template: {error}"
            ) from error
        fields = [(field, spec or "") for _, field, spec, _ in self._parts if field is not None]
        self._fields = [self._check_field(*each) for each in fields]
        self._fixed = None if self._fields else check_name(self._text.format(), argument)

    @property
    def has_fields(self) -> bool:
        """Whether the name depends on the arguments of the call."""
        return bool(self._fields)

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the valid name for a call.

        Raises:
            TypeError: The template has fields, and the arguments do not fit the signature.
            ValueError: An argument is missing or does not support the field, or the name would be
                empty.
        """
        if self._fixed:
            return self._fixed
        values = self._arguments.of_call(args, kwargs)
        if self._var_keyword:
            values = {**values.get(self._var_keyword, {}), **values}
        for name in self._fields:
            if name not in values:
                raise ValueError(f"{self._label} needs {name!r}, which this call does not have")
        try:
            text = self._filled(values)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{self._label} cannot be filled from this call: {error}") from error
        return fit_name(text) or check_name("", f"{self._label} as filled")

    def _filled(self, values: Mapping[str, Any]) -> str:
        texts = []
        for literal, field, spec, conversion in self._parts:
            texts.append(literal)
            if field is not None:
                value = self._value_of(field, values)
                texts.append(_text_of(field, value, conversion, spec or ""))
        return "".join(texts)

    def _value_of(self, field: str, values: Mapping[str, Any]) -> Any:
        return _formatter.get_field(field, (), values)[0]

    def _check_field(self, field: str, spec: str) -> str:
        name, *attributes = _INDEX.sub("", field).split(".")
        if not name or name.isdigit():
            reason = "a field must have a name"
        elif any(attribute.startswith("_") for attribute in attributes):
            reason = "attributes that begin with '_' are not allowed"
        elif name not in self._signature.parameters and not self._var_keyword:
            reason = "the function does not have this parameter"
        elif "{" in spec:  # the caller could choose a width that exhausts the memory
            reason = "a format must not contain a field"
        else:
            return name
        known = ", ".join(self._signature.parameters) or "none"
        raise ImproperlyConfigured(
            f"{self._label} has the field {{{field}}}: {reason}"
            f" (the function's parameters: {known})"
        )


def identity_of(model: Model) -> tuple[str, Any]:
    """Return the label and the primary key of a model. They are the same for its proxy models.

    Raises:
        ValueError: The model is not saved.
    """
    if model.pk is None or model._state.adding:
        raise ValueError(f"this {model._meta.label} is not saved. Save it first.")
    # A proxy model has the same rows.
    concrete = model._meta.concrete_model or type(model)
    return concrete._meta.label_lower, model.pk


def _text_of(field: str, value: Any, conversion: str | None, spec: str) -> str:
    """Return the text of the value of a field."""
    if isinstance(value, Model) and not conversion:
        label, pk = identity_of(value)
        return format(f"{label}:{pk}", spec)
    text = format(_formatter.convert_field(value, conversion), spec)
    if not isinstance(value, str) and _ADDRESS.search(text):
        kind = type(value)
        raise ValueError(
            f"the text of {{{field}}}, a {kind.__module__}.{kind.__qualname__}, has a memory "
            f"address: {short_repr(text)}. Use one of its attributes, such as a primary key."
        )
    return text
