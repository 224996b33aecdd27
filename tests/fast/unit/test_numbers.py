"""Numbers in the records of locks."""

import pytest

from django_redislock.engine.parsing import number


@pytest.mark.parametrize("text", ["-1", "9" * 30, "one"])
def test_a_number_that_no_script_writes_is_refused(text):
    with pytest.raises(ValueError, match=r"not a valid number|invalid literal"):
        number(text)
