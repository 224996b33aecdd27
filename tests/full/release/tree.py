"""What is committed, and whether it says the same version everywhere."""

import re
import subprocess
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from packaging.version import InvalidVersion, Version

VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
HEADING = re.compile(r"^## \[(?P<version>.+?)\](?: - (?P<date>\S+))?$", re.MULTILINE)


class Tree:
    """A checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def version(self) -> str:
        found = VERSION.search((self.root / "django_redislock" / "__init__.py").read_text())
        assert found, "django_redislock/__init__.py says no version"
        return found[1]

    @property
    def tag(self) -> str:
        return f"v{self.version}"

    def files(self) -> set[str]:
        return {each for each in self.git("ls-files", "-z").split("\0") if each}

    def tags(self) -> list[str]:
        """Those of versions, of this commit."""
        return self.git("tag", "--points-at", "HEAD", "--list", "v[0-9]*").split()

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True
        )
        return done.stdout


def uncommitted(tree: Tree) -> Iterator[str]:
    for line in tree.git("status", "--porcelain").splitlines():
        yield f"not as committed: {line}"


def misnamed(tree: Tree) -> Iterator[str]:
    """Version, changelog and tag say the same."""
    yield from _of_version(tree.version)
    yield from _of_changelog((tree.root / "CHANGELOG.md").read_text(), tree.version)
    yield from _of_tags(tree)


def _of_version(text: str) -> Iterator[str]:
    try:
        version = Version(text)
    except InvalidVersion:
        yield f"{text} is no version"
        return
    if version.local or version.is_devrelease or str(version) != text:
        yield f"{text} is no version to release: an index takes such as 1.2.3 or 1.2.3rc1"


def _of_changelog(text: str, version: str) -> Iterator[str]:
    headings = {found["version"]: found for found in HEADING.finditer(text)}
    found = headings.get(version)
    if found is None:
        yield f"CHANGELOG.md has no heading ## [{version}] - {date.today():%Y-%m-%d}"  # noqa: DTZ011
        return
    if not _is_date(found["date"]):
        yield f"CHANGELOG.md does not say on which day {version} comes: {found[0]}"
    if not re.match(r"\s+### \w+\n\n- ", text[found.end() :]):
        yield f"CHANGELOG.md says nothing of what {version} brings"


def _is_date(text: str | None) -> bool:
    try:
        return bool(date.fromisoformat(text or ""))
    except ValueError:
        return False


def _of_tags(tree: Tree) -> Iterator[str]:
    here = tree.tags()
    for tag in here:
        if tag != tree.tag:
            yield f"this commit is tagged {tag}, and its version is {tree.version}"
    if tree.tag not in here and tree.git("tag", "--list", tree.tag):
        yield f"{tree.tag} is another commit's tag: {tree.version} is out already"
