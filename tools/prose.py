"""A check of the project's English: ``python -m tools.prose [--all] [PATH ...]``.

It reports phrases that are hard to read, each with a plain alternative. Without arguments it
checks the paths in ``[tool.prose]`` of ``pyproject.toml``. ``--all`` checks the whole project.

Code, inline code, the targets of links and generated tables are not checked.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

WHOLE_PROJECT = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs",
    "django_redislock",
)
GENERATED = {"_build", "migrations", "__pycache__"}

MAX_WORDS = 25  # in a sentence
MAX_LONG_SENTENCES = 0.05
"""The share of the sentences of a file that can be longer, if the file has more than one."""

_START = r"(?:^|(?<=[.;:!?] ))"

RULES = {
    rf"{_START}(?:Who|Whoever|Whose|Whom|Whatever) [^?.]*(?:\.|$)": "name the holder or a waiter",
    rf"{_START}(?:What|Where) [^?.]*\.": "begin with a concrete subject, or with 'If'",
    r"\b(?:by|for|of|to|from|than|with|but|behind|before|after) who(?:m|ever)?\b": "name it",
    r"\b(?:is|are|was|were|be|been|being) told\b|\btold (?:of|so|by|as|apart|once)\b"
    r"|\btells? (?:of|so|it|whether)\b": "show, log, report, raise, notify, return",
    r"\b(?:stand|stands|stood|standing) still\b": "is paused",
    r"\b(?:come|comes|came|coming) free\b": "is released",
    r"\blets? in\b": "grant, admit, acquire",
    r"\b(?:give|gives|gave|giving) way\b": "is replaced, is skipped",
    r"\b(?:goes|went|going) on\b": "continue, keep running",
    r"\b(?:run|runs|ran|running) (?:down|out)\b|\blease (?:is|was) over\b": "expire",
    r"\b(?:give|gives|gave|given|giving) back\b": "release, return",
    r"\b(?:cool|cools|cooled|cooling) down\b|\bstays? taken\b": "is in cooldown",
    r"\b(?:its|their|whose) turns?\b|\btheir place in\b": "grant, handover, queue lock",
    r"\bboth colours\b|\btwins?\b": "sync and async versions",
    r"\bbut (?:for|that)\b": "except",
    r"\b(?:that|those|the one|the ones|the like) of\b": "repeat the noun",
    r"(?<![Tt]here )\b(?:is|are|was|were) (?:none|nobody|nothing)\b": "a positive statement",
    r"(?<![Tt]here )\b(?:is|are|was|were) no [a-z]": "is not a, has no, cannot",
    r"; where (?:a|an|the|that|it|this|one|no|some|several|both|two|they)\b": "if, when",
    r", as (?:it|this|that|they|there|who|what|nobody|nothing|some|one)\b": "because",
    r"\b(?:is|are|was|were) to (?:be|have|say|do|go|take|come|run|end|know|let)\b"
    r"|\b(?:is|are|was|were) to (?:keep|hold)\b": "must, should, will",
    r"\bso (?:long|many|much)\b(?! (?:as|that|of)\b)": "that long, that many",
    r"\bmakes? no request of\b|\basks? (?:nothing )?of\b": "send a request to",
    r"\b(?:for ever|anew|lately|likewise|meanwhile|in (?:its|their|his|the) stead|all the same"
    r"|for all that|as ever|hence|thereby|therein|whence|amiss|mend(?:s|ed|ing)?|whom?ever"
    r"|reckon(?:s|ed|ing)?|beside|(?:inside|outside) of)\b": "a plain word",
}
"""Patterns, each with advice."""

WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
SENTENCE_END = re.compile(r"(?<=[.!?:]) +(?=[A-Z`*\"'(])")
CODE = re.compile(r"``[^`]*``|`[^`]*`|<code>.*?</code>")
NOT_PROSE = re.compile(r"https?://\S+|%\(\w+\)[sd]|%[sdr]|\{[^}]*\}|<[^>]+>")
LINK_TARGET = re.compile(r"\]\([^)]*\)")
HIDDEN = re.compile(
    r"<!-- [\w-]+: written by.*?<!-- [\w-]+: end|<!--.*?-->|^:::.*?$"
    r"|^ *(```|~~~).*?^ *\1.*?$",
    re.DOTALL | re.MULTILINE,
)
"""In a page: generated tables, comments, directives and blocks of code."""
TEMPLATE_TEXT = re.compile(
    r"\{%\s*trans(?:late)?\s+\"([^\"]*)\"|blocktrans(?:late)?\b[^%]*%\}(.*?)\{%", re.DOTALL
)
DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|pragma|fmt:)|#!")


class Text(NamedTuple):
    line: int
    text: str


class Hit(NamedTuple):
    line: int
    phrase: str
    advice: str


# Find the prose of a file


def python_texts(source: str) -> Iterator[Text]:
    """Yield docstrings, messages (string literals with at least four words) and comments."""
    nodes = list(ast.walk(ast.parse(source)))
    formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for each in formatted for part in each.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            text = "".join(map(_literal, node.values))
        elif isinstance(node, ast.Constant) and id(node) not in parts:
            text = _literal(node)
        else:
            continue
        if _is_prose(text):
            yield from _paragraphs(node.lineno, text)
    yield from _comments(source)


def _literal(part: ast.expr) -> str:
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "X"


def _is_prose(text: str) -> bool:
    return len(text.split()) > 3 and len(WORD.findall(text)) > 3


def _comments(source: str) -> Iterator[Text]:
    """Yield each block of comments as one text."""
    block, last = Text(0, ""), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or DIRECTIVE.match(token.string):
            continue
        line, text = token.start[0], token.string.lstrip("# ")
        if line == last + 1 and token.line.lstrip().startswith("#"):
            block = Text(block.line, f"{block.text} {text}")
        else:
            yield block
            block = Text(line, text)
        last = line
    yield block


def page_texts(source: str) -> Iterator[Text]:
    return _paragraphs(1, HIDDEN.sub(lambda match: "\n" * match[0].count("\n"), source))


def _paragraphs(first: int, source: str) -> Iterator[Text]:
    """Yield paragraphs, list items, and the cells of tables."""
    block = Text(first, "")
    for number, line in enumerate(source.split("\n"), first):
        begins = re.match(r"\s*(?:[-*#>|]|\d+\. |>>>|[\w*, ]+:$)", line)
        if begins or not line.strip():
            yield block
            block = Text(number, "")
        if line.lstrip().startswith("|"):
            yield from (Text(number, cell) for cell in line.split("|"))
        elif line.strip() and not line.lstrip().startswith(">>>"):
            text = line.strip().lstrip("-*#> ") if begins else line.strip()
            block = Text(block.line if block.text else number, f"{block.text} {text}".strip())
    yield block


def lua_texts(source: str) -> Iterator[Text]:
    lines = [line.partition("--")[2].lstrip("- ") for line in source.split("\n")]
    yield from _paragraphs(1, "\n".join("" if line.startswith(">") else line for line in lines))


def template_texts(source: str) -> Iterator[Text]:
    for match in TEMPLATE_TEXT.finditer(source):
        yield Text(source.count("\n", 0, match.start()) + 1, match[1] or match[2] or "")


def catalog_texts(source: str) -> Iterator[Text]:
    """Yield the English texts of a catalog, not the translations."""
    for match in re.finditer(r'^msgid(?:_plural)? ((?:".*"\n)+)', source, re.MULTILINE):
        text = "".join(ast.literal_eval(line) for line in match[1].splitlines())
        yield Text(source.count("\n", 0, match.start()) + 1, text)


READERS: dict[str, Callable[[str], Iterator[Text]]] = {
    ".py": python_texts,
    ".md": page_texts,
    ".lua": lua_texts,
    ".html": template_texts,
    ".po": catalog_texts,
}

# Check it


def plain(text: str) -> str:
    text = LINK_TARGET.sub("]", CODE.sub("CODE", text))
    return " ".join(NOT_PROSE.sub("X", text).split())


def check(texts: Iterable[Text]) -> list[Hit]:
    hits, long, sentences = [], [], 0
    for line, raw in texts:
        text = plain(raw)
        for pattern, advice in RULES.items():
            found = re.finditer(pattern, text, re.MULTILINE)
            hits += [Hit(line, match[0][:60], advice) for match in found]
        for sentence in SENTENCE_END.split(text):
            words = len(WORD.findall(sentence))
            sentences += words > 3
            if words > MAX_WORDS:
                advice = f"{words} words: split the sentence after at most {MAX_WORDS}"
                long.append(Hit(line, f"{sentence[:50]}...", advice))
    if len(long) > max(1, sentences * MAX_LONG_SENTENCES):
        hits += long
    return sorted(hits)


def files(paths: Iterable[str]) -> Iterator[Path]:
    for name in paths:
        path = ROOT / name
        if not path.exists():
            raise SystemExit(f"tools.prose: {name} does not exist")
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.suffix in READERS and not GENERATED & set(each.parts):
                yield each


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=__doc__)
    parser.add_argument("--all", action="store_true", help="Check the whole project.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="Check these paths instead.")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    clean = project["tool"]["prose"]["clean"]
    paths = options.paths or (WHOLE_PROJECT if options.all else clean)
    count = 0
    for path in files(paths):
        for line, phrase, advice in check(READERS[path.suffix](path.read_text())):
            print(f"{path.relative_to(ROOT)}:{line}: {phrase!r} -> {advice}")
            count += 1
    if count:
        print(f"{count} phrases are hard to read.")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())
