"""A pytest plugin that puts the pictures of the pages where the docs have them.

``make screenshots`` writes them there. Without it the same tests take them and throw them away.
"""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots", type=Path, metavar="FOLDER", help="keep the pictures of the pages there"
    )
