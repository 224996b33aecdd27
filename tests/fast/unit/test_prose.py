"""The check of the project's English finds phrases that are hard to read, and nothing else."""

import pytest

from tests.prose import Text, catalog_texts, check, page_texts, python_texts, template_texts

HARD = "Who waits is let in."


@pytest.mark.parametrize(
    ("text", "is_hard"),
    [
        (HARD, True),
        ("The lock comes free.", True),
        ("Where the name is longer, it is cut.", True),
        ("Who holds the lock?", False),
        ("There is no server. See which locks are held, as the table shows.", False),
        ("Call `release_for_whoever()` or read [the page](for-ever.md).", False),
    ],
)
def test_phrases_that_are_hard_to_read_are_found(text, is_hard):
    assert bool(check([Text(1, text)])) is is_hard


def test_many_long_sentences_are_found():
    long = f"The holder {'really ' * 30}waits."
    assert not check([Text(1, long)])
    assert len(check([Text(1, long), Text(2, long)])) == 2


@pytest.mark.parametrize(
    ("reader", "source", "line"),
    [
        (page_texts, f"# Page\n\n```python\n# {HARD}\n```\n<!--\n{HARD}\n-->\n\n{HARD}\n", 10),
        (page_texts, f"| a |\n|---|\n| {HARD} |\n", 3),
        (python_texts, f'def f():\n    """Text.\n\n    {HARD}\n    """\n', 4),
        (python_texts, f'x = 1\nraise ValueError(f"{{x}} {HARD} {HARD}")\n', 2),
        (python_texts, "x = 1\n# Who waits\n# is let in.\n", 2),
        (template_texts, f'<p>\n{{% translate "{HARD}" %}}</p>', 2),
        (catalog_texts, f'\nmsgid "{HARD}"\nmsgstr "{HARD}"\n', 2),
    ],
)
def test_prose_is_read_with_its_line(reader, source, line):
    assert {hit.line for hit in check(reader(source))} == {line}
