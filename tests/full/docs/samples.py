"""Extract the code samples of a page, in order."""

import re
from dataclasses import dataclass
from textwrap import dedent

from tests.tools import ROOT

SAMPLE = re.compile(
    r"^ *```(?:\{code-block\} )?(?P<language>\w+)\n"
    r"(?P<options>(?::[^\n]*\n)*\n*)(?P<text>.*?)^ *```$"
    r"|^<!-- invisible-code-block: (?P<hidden>\w+)\n(?P<code>.*?)-->",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Sample:
    page: str
    line: int
    """The line of the opening fence. The code begins on the next line."""

    language: str
    text: str
    is_hidden: bool = False
    """Whether only the tests see it."""

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the paths of all pages, relative to `ROOT`."""
    found = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    names = [path.relative_to(ROOT).as_posix() for path in found if path.exists()]
    return [name for name in names if not name.startswith("docs/_build/")]


def samples_of(page: str) -> list[Sample]:
    text = (ROOT / page).read_text()
    found = []
    for each in SAMPLE.finditer(text):
        line = text.count("\n", 0, each.start()) + 1
        if each["hidden"]:
            found.append(Sample(page, line, each["hidden"], each["code"], True))
        else:
            line += each["options"].count("\n")
            found.append(Sample(page, line, each["language"], dedent(each["text"])))
    return found
