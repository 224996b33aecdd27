"""The files that pages link to or show exist. The build of the documentation checks the rest."""

import re
from urllib.parse import unquote

import pytest

from tests.tools import ROOT

from .samples import pages

LINK = re.compile(r'(?:src|srcset|href)="([^"]+)"|\]\(([\w./#-]+)\)')


@pytest.mark.parametrize("page", pages())
def test_linked_files_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    links = {"".join(found).partition("#")[0] for found in LINK.findall(text)}
    files = [unquote(link) for link in links if not re.match(r"\w+:", link)]
    assert [each for each in files if not (ROOT / page).parent.joinpath(each).exists()] == []
