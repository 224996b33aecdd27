"""The committed files, and whether version, changelog and tag agree."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


class Tree:
    """A git checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def version(self) -> str:
        found = VERSION.search((self.root / "django_redislock" / "__init__.py").read_text())
        assert found, "django_redislock/__init__.py has no version"
        return found[1]

    @property
    def tag(self) -> str:
        return f"v{self.version}"

    def files(self, *options: str) -> set[str]:
        return {each for each in self.git("ls-files", "-z", *options).split("\0") if each}

    def tags(self) -> list[str]:
        """The version tags of this commit."""
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
    """Yield differences between version, changelog and tag."""
    if not _is_release(tree.version):
        yield f"{tree.version} is not a version that an index accepts, such as 1.2.3 or 1.2.3rc1"
    entry = rf"^## \[{re.escape(tree.version)}\] - \d{{4}}-\d\d-\d\d\n+### \w+\n\n- "
    if not re.search(entry, (tree.root / "CHANGELOG.md").read_text(), re.MULTILINE):
        yield f"CHANGELOG.md has no entry with a date and changes for {tree.version}"
    here = tree.tags()
    for tag in here:
        if tag != tree.tag:
            yield f"this commit is tagged {tag}, but its version is {tree.version}"
    if tree.tag not in here and tree.git("tag", "--list", tree.tag):
        yield f"{tree.tag} is the tag of another commit: {tree.version} is released already"


def _is_release(text: str) -> bool:
    try:
        version = Version(text)
    except InvalidVersion:
        return False
    return str(version) == text and not version.local and not version.is_devrelease
