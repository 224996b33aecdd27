"""A pytest plugin that writes screenshots into the folder of the docs.

``make screenshots`` uses it. Without the plugin, the tests discard the screenshots.
"""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots", type=Path, metavar="FOLDER", help="keep the pictures of the pages there"
    )
