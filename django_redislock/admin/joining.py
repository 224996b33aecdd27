"""Texts that are made of several, as each language joins them: not all have spaces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from django.utils.translation import gettext as _
from django.utils.translation import pgettext


def sentences(texts: Iterable[str]) -> str:
    """Return whole sentences as one text."""
    return reduce(_followed_by, texts, "")


def _followed_by(text: str, sentence: str) -> str:
    if not (text and sentence):
        return text or sentence
    # Translators: two whole sentences, one after the other.
    return _("%(sentence)s %(next)s") % {"sentence": text, "next": sentence}


def listed(words: Iterable[str]) -> str:
    """Return words, or counts of things, one after the other."""
    return pgettext("between words of a list", ", ").join(words)
