"""A package index renders README.md with its picture, its code and links that work there."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pytest
from readme_renderer import markdown

from tests.tools import ROOT


class Page(HTMLParser):
    """The links, pictures and code of a rendered page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.pictures: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag == "a":
            self.links.add(values.get("href") or "")
        if tag in ("img", "source"):
            self.pictures.add(values.get("src") or values.get("srcset") or "")

    @property
    def addresses(self) -> set[str]:
        """All of them, except for the anchors of the page itself."""
        return {each for each in self.links | self.pictures if not each.startswith("#")}

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """The metadata as the build backend writes them into the wheel."""
    command = [sys.executable, "-m", "hatchling", "metadata"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def page(metadata: dict[str, Any]) -> Page:
    html = markdown.render(metadata["readme"]["text"])
    assert html, "README.md cannot be rendered"
    return Page(html)


def test_it_has_a_picture_and_no_relative_address(page: Page) -> None:
    assert page.pictures
    assert {each for each in page.addresses if not re.match("https://[^/]", each)} == set()


def test_it_links_to_the_addresses_of_the_project(metadata: dict[str, Any], page: Page) -> None:
    urls = metadata["urls"]
    assert {urls["Documentation"], urls["Changelog"], urls["Issues"]} <= page.links
    # pyproject.toml has the addresses in two tables: what one makes absolute is below the other.
    readme = (ROOT / "README.md").read_text()
    made = {each for each in page.addresses if each not in readme}
    assert {each for each in made if not each.startswith(tuple(urls.values()))} == set()


def test_it_has_all_headings_and_all_code_of_the_file(page: Page) -> None:
    readme = (ROOT / "README.md").read_text()
    visible = re.sub(r"<!--.*?-->", "", readme, flags=re.DOTALL)
    blocks = re.findall(r"^```\w+\n(.*?)^```$", visible, re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", re.sub("```.*?```", "", visible, flags=re.DOTALL), re.M)
    assert any("CACHES = " in block for block in blocks)
    assert "Quickstart" in headings
    assert [each for each in [*blocks, *headings] if each.strip() not in page.text] == []
    assert "invisible-code-block" not in page.text
