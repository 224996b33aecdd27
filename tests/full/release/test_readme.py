"""A package index renders README.md with its picture, its code and links that work there."""

import html
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from readme_renderer import markdown

from tests.tools import ROOT

from .artefacts import ADDRESS


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """The metadata as the build backend writes them into the wheel."""
    command = [sys.executable, "-m", "hatchling", "metadata"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def page(metadata: dict[str, Any]) -> str:
    page = markdown.render(metadata["readme"]["text"])
    assert page, "README.md cannot be rendered"
    return page


def test_it_has_a_picture_and_links_to_the_addresses_of_the_project(
    metadata: dict[str, Any], page: str
) -> None:
    urls, readme = metadata["urls"], (ROOT / "README.md").read_text()
    addresses = {each for each in ADDRESS.findall(page) if not each.startswith("#")}
    assert "<img " in page
    assert {urls["Documentation"], urls["Changelog"], urls["Issues"]} <= addresses
    # pyproject.toml has the addresses in two tables: what one makes absolute is below the other.
    made = {each for each in addresses if each not in readme}
    assert {each for each in made if not each.startswith(tuple(urls.values()))} == set()


def test_it_has_all_headings_and_all_code_of_the_file(page: str) -> None:
    readme = (ROOT / "README.md").read_text()
    visible = re.sub(r"<!--.*?-->", "", readme, flags=re.DOTALL)
    blocks = re.findall(r"^```\w+\n(.*?)^```$", visible, re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", re.sub("```.*?```", "", visible, flags=re.DOTALL), re.M)
    text = html.unescape(re.sub("<[^>]*>", "", page))
    assert any("CACHES = " in block for block in blocks)
    assert "Quickstart" in headings
    assert [each for each in [*blocks, *headings] if each.strip() not in text] == []
    assert "invisible-code-block" not in text
