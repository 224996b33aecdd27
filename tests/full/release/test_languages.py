"""The translations are complete and compiled, and every text of the admin can be translated."""

import gettext
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from threading import Thread

import pytest
from django.test import Client
from django.utils.translation import trans_real

from django_redislock import locks
from django_redislock.admin import ActiveLockAdmin
from django_redislock.manager import KINDS
from tests.messages import LANGUAGES, PACKAGE, catalog, compile_all, extract
from tests.pages import DASHBOARD, LIST, postpone, text_of, user_with
from tests.tools import wait_until

in_each_language = pytest.mark.parametrize("language", LANGUAGES)


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with catalogs that were extracted and compiled just now."""
    folder = tmp_path_factory.mktemp("languages") / "django_redislock"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.mo"))
    extract(folder)
    compile_all(folder)
    return folder


@in_each_language
def test_the_catalog_is_complete_and_keeps_placeholders(extracted: Path, language: str) -> None:
    done = subprocess.run(
        ["msgfmt", "--check", "--statistics", "-o", os.devnull, catalog(extracted, language)],
        env=os.environ | {"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ translated messages\.", done.stderr.splitlines()[-1]), done.stderr


@in_each_language
def test_the_compiled_catalog_is_up_to_date(extracted: Path, language: str) -> None:
    fresh, shipped = (
        gettext.GNUTranslations(BytesIO(catalog(each, language).with_suffix(".mo").read_bytes()))
        for each in (extracted, PACKAGE)
    )
    # The bytes of the files depend on the version of gettext, but these dictionaries do not.
    assert vars(shipped)["_catalog"] == vars(fresh)["_catalog"], "run make messages"


class Texts(HTMLParser):
    """The texts of a page that a reader sees or hears, including those of attributes."""

    ATTRIBUTES = ("aria-label", "title", "placeholder", "alt", "summary")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_code = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._in_code = tag in ("script", "style")
        texts = [values.get(name) for name in self.ATTRIBUTES]
        if tag == "input" and values.get("type") in ("submit", "button"):
            texts.append(values.get("value"))
        if values.get("id") == "redislock-refresh":  # the texts of list.js
            texts += [value for name, value in attrs if name.startswith("data-")]
        self.found += filter(None, texts)

    def handle_endtag(self, tag: str) -> None:
        self._in_code = False

    def handle_data(self, data: str) -> None:
        if not self._in_code and data.strip():
            self.found.append(" ".join(data.split()))


class Bracketed(gettext.NullTranslations):
    """Translates each text to itself in brackets."""

    def gettext(self, message: str) -> str:
        return f"⟦{message.rpartition(trans_real.CONTEXT_SEPARATOR)[2]}⟧"

    def ngettext(self, singular: str, plural: str, number: int) -> str:
        return self.gettext(singular if number == 1 else plural)

    def to_language(self) -> str:
        return "eo"


@pytest.fixture
def busy(redis_server, hold) -> Iterator[None]:
    """Locks in all states. No text in them is of a language."""
    redis_server.flushdb()
    hold("1:1")
    locks.force_release("1:1")
    hold("1:1", timeout=60, metadata={"1": 2})
    assert not locks.lock("1:1").acquire(blocking=False)
    hold("2:2", auto_renewal=False)
    hold("3:3", at_least_for=60).release()
    assert all(locks.semaphore("4:4", 3, timeout=60).acquire() for _ in range(2))
    hold("5:5", timeout=60)
    postpone(redis_server, "5:5", seconds=40)
    waiter = Thread(target=lambda: locks.lock("1:1").acquire(blocking_timeout=60))
    waiter.start()
    wait_until(lambda: locks.get("1:1").waiters)
    yield
    while waiter.is_alive():
        locks.force_release("1:1")
        waiter.join(0.05)
    for name in ("1:1", "3:3", "4:4"):
        locks.force_release(name)


def pages(client: Client) -> dict[str, str]:
    def get(path: str, **query: str) -> str:
        return text_of(client.get(path, query, follow=True))

    def post(**fields: object) -> str:
        return text_of(client.post(f"{LIST}release/", fields, follow=True))

    names = ["1:1", "2:2", "3:3", "4:4", "5:5", "9:9"]
    seen = json.dumps([["2:2", locks.get("2:2").fence_token, "", ""], ["1:1", 1, "", ""]])
    return {
        "list": get(LIST),
        "empty": get(LIST, q="9"),
        "filter": get(LIST, state="waiting"),
        **{name: get(f"{LIST}{name}/change/") for name in names},
        "dashboard": get(DASHBOARD, minutes="5"),
        "confirm": post(seen=seen),
        "released": post(seen=seen, confirmed="yes"),
        "nothing": post(seen=seen),
        "all": post(all="yes", told="9"),
    }


IN_BRACKETS = re.compile(r"⟦[^⟦⟧]*⟧")

UNTRANSLATED = re.compile(
    r"\d+[smhd]\b"
    rf"|\b(?:{'|'.join(KINDS)}|default|django_redis|MainThread|Thread)\b"
    r"|view_activelock-release_activelock"
    r"|^Search$",  # Django does not mark it
    re.MULTILINE,
)
"""Durations, kinds, aliases, threads and users are the same in each language."""


@pytest.mark.django_db
@pytest.mark.usefixtures("busy")
def test_every_text_can_be_translated(monkeypatch) -> None:
    monkeypatch.setattr(ActiveLockAdmin, "release_max", 2)
    monkeypatch.setitem(trans_real._translations, "eo", Bracketed())
    client = user_with("view_activelock", "release_activelock")
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "eo"
    host = locks.get("2:2").holder.host
    left = [
        f"{name}: {line}"
        for name, page in pages(client).items()
        for line in UNTRANSLATED.sub("", without_brackets(page).replace(host, "")).split("\n")
        if re.search(r"[^\W\d_]{2}", line)
    ]
    assert not left


def without_brackets(page: str) -> str:
    text = "\n".join(Texts(page).found)
    while (shorter := IN_BRACKETS.sub("", text)) != text:
        text = shorter
    return text
