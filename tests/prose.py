"""A check of the project's English: ``python -m tests.prose [--all] [PATH ...]``.

It reads the prose of pages, docstrings, comments, messages, templates and translations. It reports
phrases that are hard to read, each with a plain alternative. Without arguments it checks the paths
in ``[tool.prose]`` of ``pyproject.toml``, and fails if it finds a phrase there. Add a path to that
list as soon as the file or folder is clean. ``--all`` checks the whole project.

Code, inline code, the targets of links and generated tables are not checked.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
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

MAX_WORDS = 25
"""The longest sentence, in words."""

MAX_LONG_SENTENCES = 0.05
"""The share of the sentences of a file that can be longer, if the file has more than one."""


class Rule(NamedTuple):
    pattern: re.Pattern[str]
    advice: str


def rule(pattern: str, advice: str) -> Rule:
    return Rule(re.compile(pattern, re.MULTILINE), advice)


_START = r"(?:^|(?<=[.;:!?] ))"
_STATEMENT = r"[^?.]*(?:\.|$)"

RULES = (
    rule(
        _START + r"(?:Who|Whoever|Whose|Whom|Whatever) " + _STATEMENT,
        "begin with a concrete subject: the holder, a waiter, the worker, you",
    ),
    rule(_START + r"(?:What|Where) [^?.]*\.", "begin with a concrete subject, or with 'If'"),
    rule(
        r"\b(?:by|for|of|to|from|than|with|but|behind|before|after) who(?:m|ever)?\b",
        "name the person or process: the holder, a waiter, the caller",
    ),
    rule(r"\bwho(?:m)?ever\b", "any process, any user"),
    rule(
        r"\b(?:is|are|was|were|be|been|being) told\b|\btold (?:of|so|by|as|apart|once)\b"
        r"|\btells? (?:of|so|it|whether)\b",
        "show, log, report, raise, notify, return",
    ),
    rule(r"\bfor ever\b", "indefinitely, without a limit"),
    rule(r"\banew\b", "again"),
    rule(r"\blately\b", "recently"),
    rule(r"\blikewise\b", "also, the same applies"),
    rule(r"\bmeanwhile\b", "say when: before, until, while"),
    rule(r"\bin (?:its|their|his|the) stead\b", "on behalf of, instead"),
    rule(r"\b(?:all the same|for all that)\b", "anyway"),
    rule(r"\b(?:as ever|hence|thereby|therein|whence|amiss)\b", "plain words"),
    rule(r"\bmend(?:s|ed|ing)?\b", "fix"),
    rule(r"\breckon(?:s|ed|ing)?\b", "calculate, count"),
    rule(r"\b(?:stand|stands|stood|standing) still\b", "is paused"),
    rule(r"\b(?:come|comes|came|coming) free\b", "is released"),
    rule(r"\blets? in\b", "grant, admit, acquire"),
    rule(r"\b(?:give|gives|gave|giving) way\b", "is replaced, is skipped"),
    rule(r"\b(?:goes|went|going) on\b", "continue, keep running"),
    rule(r"\b(?:run|runs|ran|running) (?:down|out)\b|\blease (?:is|was) over\b", "expire"),
    rule(r"\b(?:give|gives|gave|given|giving) back\b", "release, return"),
    rule(r"\b(?:cool|cools|cooled|cooling) down\b|\bstays? taken\b", "is in cooldown"),
    rule(r"\b(?:its|their|whose) turns?\b|\btheir place in\b", "grant, handover, queue lock"),
    rule(r"\bboth colours\b|\btwins?\b", "sync and async versions"),
    rule(r"\bbeside\b", "next to, in addition to, alongside"),
    rule(r"\b(?:inside|outside) of\b", "inside, outside"),
    rule(r"\bbut (?:for|that)\b", "except"),
    rule(r"\b(?:that|those|the one|the ones|the like) of\b", "repeat the noun"),
    rule(r"(?<![Tt]here )\b(?:is|are|was|were) (?:none|nobody|nothing)\b", "a positive statement"),
    rule(r"(?<![Tt]here )\b(?:is|are|was|were) no [a-z]", "is not a, has no, cannot"),
    rule(r"; where (?:a|an|the|that|it|this|one|no|some|several|both|two|they)\b", "if, when"),
    rule(r", as (?:it|this|that|they|there|who|what|nobody|nothing|some|one)\b", "because"),
    rule(
        r"\b(?:is|are|was|were) to (?:be|have|say|do|go|take|come|run|end|know|let|keep|hold)\b",
        "must, should, will",
    ),
    rule(r"\bso (?:long|many|much)\b(?! (?:as|that|of)\b)", "that long, that many"),
    rule(r"\bmakes? no request of\b|\basks? (?:nothing )?of\b", "send a request to"),
)

WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
SENTENCE_END = re.compile(r"(?<=[.!?:]) +(?=[A-Z`*\"'(])")
CODE = re.compile(r"``[^`]*``|`[^`]*`|<code>.*?</code>")
NOT_PROSE = re.compile(r"https?://\S+|%\(\w+\)[sd]|%[sdr]|\{[^}]*\}|<[^>]+>")
LINK_TARGET = re.compile(r"\]\([^)]*\)")
GENERATED_BEGIN = re.compile(r"<!-- [\w-]+: written by")
GENERATED_END = re.compile(r"<!-- [\w-]+: end")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FENCE = re.compile(r"\s*(?:```|~~~)")
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
    yield from _paragraphs(1, "\n".join(_without_code(source)))


def _without_code(source: str) -> Iterator[str]:
    is_code = is_generated = False
    for line in COMMENT.sub(_blank_lines, source).split("\n"):
        if FENCE.match(line):
            is_code = not is_code
        if GENERATED_BEGIN.match(line):
            is_generated = True
        elif GENERATED_END.match(line):
            is_generated = False
        hidden = is_code or is_generated or FENCE.match(line) or line.startswith(":::")
        yield "" if hidden else line


def _blank_lines(match: re.Match[str]) -> str:
    is_mark = GENERATED_BEGIN.match(match[0]) or GENERATED_END.match(match[0])
    return match[0] if is_mark else "\n" * match[0].count("\n")


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


READERS = {
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
        for pattern, advice in RULES:
            hits += [Hit(line, match[0][:60], advice) for match in pattern.finditer(text)]
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
            raise SystemExit(f"tests.prose: {name} does not exist")
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.suffix in READERS and not GENERATED & set(each.parts):
                yield each


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description=__doc__)
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
