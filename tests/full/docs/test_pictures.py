"""The pictures have both colour schemes, and the names of the states."""

from pathlib import Path

import pytest
from django.utils.translation import override

from django_redislock.lock_state import STATES
from tests.tools import ROOT

IMAGES = ROOT / "docs" / "images"


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_has_a_dark_scheme(path: Path) -> None:
    assert "@media (prefers-color-scheme: dark)" in path.read_text()


def test_states_have_the_names_of_the_admin_and_the_terminal() -> None:
    text = (IMAGES / "on-call.svg").read_text()
    with override("en"):  # another test may have changed the language
        missing = [state for state in STATES.values() if f">{state.label}<" not in text]
    assert missing == []
