"""What a test asks for that needs a make; under CI nothing is skipped."""

import pytest

from .makes import Missing, binary


def needs(make: str) -> None:
    try:
        binary(make)
    except Missing as missing:
        pytest.skip(str(missing))
