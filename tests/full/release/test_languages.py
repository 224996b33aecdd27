"""The admin's pages speak the languages that are shipped, and all they say can be translated."""

import gettext
import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from threading import Thread

import django
import pytest
from django.utils import translation

from django_redislock import locks
from django_redislock.admin import ActiveLockAdmin
from django_redislock.manager import KINDS
from tests.messages import (
    LANGUAGES,
    PACKAGE,
    Message,
    catalog,
    compile_all,
    extract,
    messages,
)
from tests.pages import DASHBOARD, LIST, text_of, user_with
from tests.tools import stopped_holder, wait_until

in_each_language = pytest.mark.parametrize("language", LANGUAGES)

PLACEHOLDER = re.compile(r"%\((\w+)\)([sd])|\{(\w+)\}|(%%)")


def of_package(language: str) -> list[Message]:
    """What is translated, without the header."""
    return messages(catalog(PACKAGE, language))[1:]


# The catalogs


@pytest.fixture(scope="session")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, with catalogs that are up to date and compiled."""
    folder = tmp_path_factory.mktemp("languages") / "django_redislock"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.mo"))
    extract(folder)
    compile_all(folder)
    return folder


@in_each_language
def test_the_catalog_has_just_the_texts_that_there_are(extracted: Path, language: str) -> None:
    found = messages(catalog(extracted, language))
    assert found == messages(catalog(PACKAGE, language)), "make messages, and translate"


@in_each_language
def test_the_compiled_catalog_is_up_to_date(extracted: Path, language: str) -> None:
    fresh, shipped = (
        catalog(package, language).with_suffix(".mo").read_bytes()
        for package in (extracted, PACKAGE)
    )
    assert compiled(shipped) == compiled(fresh), "make messages"


def compiled(data: bytes) -> dict[object, str]:
    """All that it translates; the bytes differ with the version of gettext."""
    found = gettext.GNUTranslations(BytesIO(data))
    return found._catalog  # type: ignore[attr-defined]


@in_each_language
def test_everything_is_translated(language: str) -> None:
    plurals = 2 if language == "de" else 1
    for message in of_package(language):
        assert len(message.texts) == (plurals if message.plural else 1), message
        assert all(message.texts), message
        assert "fuzzy" not in message.flags, message


@in_each_language
def test_what_is_filled_in_is_the_same(language: str) -> None:
    for message in of_package(language):
        wanted = placeholders(message.plural or message.id)
        assert placeholders(message.texts[-1]) == wanted, message
        # A singular may say "one" instead.
        assert all(placeholders(text) <= wanted for text in message.texts), message


def placeholders(text: str) -> set[tuple[str, ...]]:
    return set(PLACEHOLDER.findall(text))


@in_each_language
def test_texts_end_as_theirs_do(language: str) -> None:
    ends = {".": ".。", ":": ":：", "…": "…", "?": "?？"}  # noqa: RUF001  full-width ones
    for message in of_package(language):
        wanted = ends.get(message.id[-1])
        for text in message.texts:
            assert wanted is None or text[-1] in wanted, message


def test_quotes_are_each_languages_own() -> None:
    for message in of_package("de"):
        assert not any({"”", '"', "'"} & set(text) for text in message.texts), message
    for message in of_package("zh_Hans"):
        assert not any(set("\"',;:?") & set(_bare(text)) for text in message.texts), message


def _bare(text: str) -> str:
    """Without what is filled in, and without the signs that the pattern of a search is made of."""
    return PLACEHOLDER.sub("", text).replace("? ", "")


# The pages


@pytest.fixture
def busy(redis_server, hold) -> Iterator[None]:
    """Locks in all states, with names that are of no language; then their past."""
    redis_server.flushdb()
    hold("1:1", metadata={"1": 2}).release()
    hold("1:1")
    locks.force_release("1:1")
    hold("1:1", timeout=60, metadata={"1": 2})
    assert not locks.lock("1:1").acquire(blocking=False)
    hold("2:2", auto_renewal=False)
    hold("3:3", at_least_for=60).release()
    pool = [locks.semaphore("4:4", 3, timeout=60) for _ in range(2)]
    assert all(each.acquire() for each in pool)
    waiting = Thread(target=lambda: locks.lock("1:1").acquire(blocking_timeout=60))
    waiting.start()
    wait_until(lambda: locks.get("1:1").waiters)
    yield
    for name in ("3:3", "4:4"):
        locks.force_release(name)
    while waiting.is_alive():
        locks.force_release("1:1")
        waiting.join(0.05)
    locks.force_release("1:1")


@pytest.fixture
def stale() -> Iterator[None]:
    """One lock whose holder is stopped."""
    with stopped_holder("5:5", timeout=12):
        yield


class Pages:
    """The pages as an operator goes through them."""

    def __init__(self, language: str) -> None:
        self.client = user_with("view_activelock", "release_activelock")
        self.client.defaults["HTTP_ACCEPT_LANGUAGE"] = language

    def get(self, path: str, **query: str) -> str:
        return text_of(self.client.get(path, query, follow=True))

    def one(self, name: str) -> str:
        return self.get(f"{LIST}{name}/change/")

    def post(self, **fields: object) -> str:
        return text_of(self.client.post(f"{LIST}release/", fields, follow=True))

    def lists(self) -> list[str]:
        return [
            self.get(LIST),
            self.get(LIST, q="nothing"),
            self.get(LIST, state="waiting", age="60", waiters="no"),
        ]

    def ones(self) -> list[str]:
        return [self.one(name) for name in ("1:1", "2:2", "3:3", "4:4", "5:5", "9:9")]

    def dashboards(self) -> list[str]:
        return [self.get(DASHBOARD, minutes=str(minutes)) for minutes in (5, 15)]

    def releases(self) -> list[str]:
        info = locks.get("2:2")
        seen = json.dumps([["2:2", info.fence_token, "", ""], ["1:1", 1, "", ""]])
        asked = self.post(seen=seen)
        done = self.post(seen=seen, confirmed="yes")
        return [asked, done, self.post(seen=seen), self.post(all="yes", told="9")]

    def all(self) -> dict[str, str]:
        parts = {
            "list": self.lists(),
            "lock": self.ones(),
            "dashboard": self.dashboards(),
            "release": self.releases(),
        }
        return {
            f"{part} {n}": page for part, pages in parts.items() for n, page in enumerate(pages)
        }


class Texts(HTMLParser):
    """What a reader sees or hears of a page: its text, and that of attributes."""

    SAID = ("aria-label", "title", "placeholder", "alt", "summary")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.lang = ""
        self._silent = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "html":
            self.lang = told["lang"] or ""
        self._silent += tag in ("script", "style")
        is_button = tag == "input" and told.get("type") in ("submit", "button")
        said = [told.get(name) for name in (*self.SAID, *(["value"] if is_button else []))]
        if told.get("id") == "redislock-refresh":
            said += [value for name, value in attrs if name.startswith("data-")]
        self.found += [text for text in said if text]

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._silent and data.strip():
            self.found.append(" ".join(data.split()))


HEADINGS = {
    "de": {
        "list 0": [
            "Aktive Sperren",
            "Zustand",
            "Inhaber",
            "Lease",
            "Wartende",
            "Spalten",
            "gehalten",
        ],
        "lock 0": ["Inhaber", "Warteschlange", "Zeitverlauf", "Die letzten Inhaber"],
        "lock 4": ["überfällig"],
        "dashboard 0": ["Dashboard der Sperren", "Jetzt überfällig", "In der letzten Stunde"],
        "release 0": ["Sperren freigeben", "Was eine erzwungene Freigabe nicht kann"],
        "release 1": ["Aktive Sperren"],
    },
    "zh_Hans": {
        "list 0": ["活动锁", "状态", "持有者", "租约", "等待者", "列", "持有"],
        "lock 0": ["持有者", "等待队列", "时间线", "最近的持有记录"],
        "lock 4": ["逾期"],
        "dashboard 0": ["锁仪表盘", "当前逾期", "过去一小时"],
        "release 0": ["释放锁", "强制释放做不到什么"],
        "release 1": ["活动锁"],
    },
}


@pytest.mark.parametrize("language", ["de", pytest.param("zh_Hans", marks=pytest.mark.slow)])
@pytest.mark.django_db
@pytest.mark.usefixtures("busy", "stale")
def test_the_pages_are_in_that_language(language: str, monkeypatch) -> None:
    monkeypatch.setattr(ActiveLockAdmin, "release_max", 2)
    pages = Pages(LANGUAGES[language]).all()
    english = [remnant for each in of_package(language) for remnant in remnants(each)]
    for name, page in pages.items():
        texts = Texts(page)
        assert texts.lang == LANGUAGES[language]
        assert set(HEADINGS[language].get(name, [])) <= set(texts.found), name
        left = [text for text in texts.found if any(each.fullmatch(text) for each in english)]
        assert not left, f"{name} has English in it"


def remnants(message: Message) -> Iterator[re.Pattern[str]]:
    """What would match its English text on a page, where it differs from the translation."""
    for text in filter(None, (message.id, message.plural)):
        words = PLACEHOLDER.split(text)[::5]
        if text not in message.texts and any(map(str.isalpha, "".join(words))):
            yield re.compile(".+".join(map(re.escape, words)))


# What has not been marked at all


@pytest.fixture
def marked(tmp_path: Path, settings) -> str:
    """A language in which each text, Django's as well, stands in brackets."""
    sources = [
        *Path(django.__file__).parent.glob("c*/**/locale/en/LC_MESSAGES/django.po"),
        catalog(PACKAGE, "de"),
    ]
    found = {each.key: each for source in sources for each in messages(source)[1:]}
    path = tmp_path / "locale" / "eo" / "LC_MESSAGES" / "django.po"
    path.parent.mkdir(parents=True)
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n'
    header += 'Plural-Forms: nplurals=2; plural=(n != 1);\\n"'
    of_pages = [each for each in found.values() if "\n" not in each.id]
    path.write_text("\n\n".join([header, *map(bracketed, of_pages)]))
    compile_all(tmp_path)
    settings.LOCALE_PATHS = [tmp_path / "locale"]
    return "eo"


def bracketed(message: Message) -> str:
    context = [f"msgctxt {quoted(message.context)}"] if message.context else []
    if message.plural is None:
        texts = [f"msgid {quoted(message.id)}", f"msgstr {quoted(f'⟦{message.id}⟧')}"]
    else:
        texts = [
            f"msgid {quoted(message.id)}",
            f"msgid_plural {quoted(message.plural)}",
            f"msgstr[0] {quoted(f'⟦{message.id}⟧')}",
            f"msgstr[1] {quoted(f'⟦{message.plural}⟧')}",
        ]
    return "\n".join([*context, *texts])


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


IN_BRACKETS = re.compile(r"⟦[^⟦⟧]*⟧")


def bare(page: str) -> str:
    """What of a page is in no brackets."""
    text = "\n".join(Texts(page).found)
    while (less := IN_BRACKETS.sub("", text)) != text:
        text = less
    return text


DATA = re.compile(
    r"\d+[smhd]\b"
    rf"|\b(?:{'|'.join(KINDS)}|default|django_redis|nothing|MainThread|Thread)\b"
    r"|view_activelock-release_activelock"
    r"|^Search$",  # Django's own, and not marked there
    re.MULTILINE,
)
"""What is of no language: durations, kinds, aliases, threads, users, what was searched for."""


@pytest.mark.django_db
@pytest.mark.usefixtures("busy", "stale")
def test_every_text_can_be_translated(marked: str, monkeypatch) -> None:
    monkeypatch.setattr(ActiveLockAdmin, "release_max", 2)
    host = locks.get("2:2").holder.host
    left = {
        f"{name}: {line}"
        for name, page in Pages(marked).all().items()
        for line in DATA.sub("", bare(page).replace(host, "")).split("\n")
        if re.search(r"[^\W\d_]{2}", line)
    }
    assert not left


@in_each_language
@pytest.mark.django_db
def test_that_the_locks_are_away_is_told_in_that_language(language: str, settings) -> None:
    away = settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {"default": away}

    page = Pages(LANGUAGES[language]).get(LIST)

    title = {"de": "Sperren sind nicht erreichbar", "zh_Hans": "锁暂不可用"}
    assert title[language] in Texts(page).found


@in_each_language
def test_what_djangos_admin_says_is_left_to_it(language: str) -> None:
    with translation.override(LANGUAGES[language]):
        text = translation.gettext("Select this object for an action - {}")
    assert text != "Select this object for an action - {}"
    assert text not in {each for message in of_package(language) for each in message.texts}
