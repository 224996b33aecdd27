"""A reader notices where a page is wrong, and leaves nothing running."""

import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import terminal
from .browser import Browser, Page
from .page import File, Open, Press, pattern, steps
from .reader import Reader


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with Reader(tmp_path, dict(os.environ, HISTFILE=os.devnull)) as reader:
        yield reader


@pytest.fixture
def impatient(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    read(reader, "```console\n$ true\n```")  # its shell may take a while to begin
    monkeypatch.setattr(terminal, "PATIENCE", 0.3)


def read(reader: Reader, page: str) -> None:
    for step in steps(textwrap.dedent(page)):
        reader.do(step)


def test_what_is_shown_is_seen(reader: Reader) -> None:
    read(
        reader,
        """\
        ```console
        $ echo one    column; echo two
        one column
        two
        $ cd /
        $ seq 20
        1
        ...
        1...
        20
        $ true
        ```
        """,
    )
    assert reader.terminal("First terminal").folder == Path("/")


@pytest.mark.parametrize("shown", ["two", "", "one\none", "...\ntwo", "on", "one ..."])
def test_what_is_not_seen_fails(reader: Reader, impatient: None, shown: str) -> None:
    with pytest.raises(AssertionError, match="not seen: 'echo"):
        read(reader, f"```console\n$ echo one\n{shown}\n```")


def test_a_command_that_does_not_end_fails(reader: Reader, impatient: None) -> None:
    with pytest.raises(AssertionError, match="not seen"):
        read(reader, "```console\n$ cat\n```")


def test_what_goes_on_is_seen_later_in_its_own_terminal(reader: Reader) -> None:
    read(
        reader,
        """\
        ```{code-block} console
        :caption: Second terminal

        $ touch log; tail -f log
        ...
        ```
        ```console
        $ echo go on >log
        ```
        ```{code-block} console
        :caption: Second terminal

        go on
        ^C
        $ echo done
        done
        ```
        """,
    )


def test_python_is_typed_into_too(reader: Reader) -> None:
    read(reader, "```console\n$ python3 -q\n>>> 6 * 7\n42\n>>> exit()\n$ echo done\ndone\n```")


def test_a_listing_is_a_file(reader: Reader, tmp_path: Path) -> None:
    read(
        reader,
        """\
        ```console
        $ mkdir app; cd app
        ```
        ```{code-block} python
        :caption: a.py

        a = 1
        ```
        ```{code-block} python
        :caption: a.py, at its end

        b = 2
        ```
        """,
    )
    assert (tmp_path / "app" / "a.py").read_text() == "a = 1\nb = 2\n"


def test_what_is_not_there_cannot_be_added_to(reader: Reader) -> None:
    with pytest.raises(AssertionError):
        reader.do(File("a.py", "a = 1\n", added=True))


@pytest.mark.parametrize("listing", ["python\n", "{code-block} text\n:caption: Somewhere\n", "\n"])
def test_a_listing_of_no_known_use_fails(listing: str) -> None:
    with pytest.raises(ValueError, match="What is to be done with it"):
        list(steps(f"```{listing}a = 1\n```"))


def test_a_link_to_ones_own_machine_is_opened_and_bold_is_pressed() -> None:
    page = "Open <http://127.0.0.1:1/x>, say `me` and `pw`, and press **Go on**. <http://a.org>"
    assert list(steps(page)) == [Open("http://127.0.0.1:1/x", ("me", "pw")), Press("Go on")]


@pytest.mark.parametrize(
    ("shown", "seen"),
    [("a ... d", "a b c d"), ("...d", "d"), ("a\n...\nd", "a\nd"), ("a\n ...\nd", "a\nb\nc\nd")],
)
def test_dots_stand_for_words_on_a_line_and_for_lines(shown: str, seen: str) -> None:
    assert re.fullmatch(pattern(shown), seen)
    assert not re.fullmatch(pattern(shown), seen + "e")


def test_what_is_on_a_page_is_found_by_the_words_on_it() -> None:
    page = Page(
        "<script>no</script><a href='/list'>Active <b>locks</b></a> shop.<wbr>tasks"
        "<form method=post action='/go'><input type=hidden name=a value=1><input name=q type=text>"
        "<input type=submit name=b value='Go on'></form>"
    )
    assert page.words == "Active locks shop.tasks"
    assert page.links == {"Active locks": "/list"}
    form, pressed = page.buttons["Go on"]
    assert (form.action, form.fields, form.asked, pressed) == (
        "/go",
        {"a": "1"},
        ["q"],
        {"b": "Go on"},
    )


def test_what_is_not_on_the_page_cannot_be_pressed() -> None:
    with pytest.raises(AssertionError, match="no 'Go on' on"):
        Browser().press("Go on")


def test_dots_among_words_stand_for_no_lines() -> None:
    assert not re.fullmatch(pattern("a ... d"), "a b\nc d")


def test_nothing_outlives_a_reader(tmp_path: Path) -> None:
    with Reader(tmp_path, dict(os.environ, HISTFILE=os.devnull)) as reader:
        read(
            reader,
            "```console\n$ (trap '' HUP TERM; sleep 600; true) &\n...\n$ sleep 600\n...\n```",
        )
        running = reader.terminal("First terminal").processes()
        assert {each.name() for each in running} >= {"sleep"}
    assert not [each for each in running if each.is_running() and each.status() != "zombie"]
