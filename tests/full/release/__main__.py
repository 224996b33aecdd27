"""``python -m tests.full.release [--rehearse]``: exit status 0 if it can be released, else 1."""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.tools import ROOT

from .artefacts import Artefacts, differing, unfit, unlike
from .installing import uninstallable
from .tree import Tree, misnamed, uncommitted


class Release:
    def __init__(self, root: Path, *, rehearse: bool = False, isolated: bool = True) -> None:
        self.tree = Tree(root)
        self.rehearse = rehearse
        self.isolated = isolated
        self.artefacts = Artefacts(root / "dist")

    def uncommitted(self) -> Iterator[str]:
        """Everything is committed"""
        return uncommitted(self.tree)

    def misnamed(self) -> Iterator[str]:
        """Version, changelog and tag are the same"""
        return misnamed(self.tree)

    def unbuildable(self) -> Iterator[str]:
        """An sdist is built, and of it a wheel"""
        shutil.rmtree(self.artefacts.folder, ignore_errors=True)
        try:
            Artefacts.built(self.tree.root, self.artefacts.folder, isolated=self.isolated)
        except RuntimeError as error:
            yield str(error)

    def differing(self) -> Iterator[str]:
        """They have what is committed, and nothing else"""
        yield from differing(self.artefacts, self.tree.root, self.tree.files())
        yield from unlike(self.artefacts, self.tree.root)

    def unfit(self) -> Iterator[str]:
        """An index takes the metadata, and shows the README"""
        return unfit(self.artefacts, self.tree.version)

    def uninstallable(self) -> Iterator[str]:
        """In a new environment a new project with it checks clean"""
        return uninstallable(self.artefacts.wheel, self.tree.version)

    @property
    def steps(self) -> tuple[Callable[[], Iterator[str]], ...]:
        named = () if self.rehearse else (self.misnamed,)
        return (
            self.uncommitted,
            *named,
            self.unbuildable,
            self.differing,
            self.unfit,
            self.uninstallable,
        )

    def left(self) -> Iterator[str]:
        """What only a person can do."""
        tag = self.tree.tag
        if any(".example/" in url for url in self.artefacts.metadata.project_urls.values()):
            yield "replace the placeholder addresses of [project.urls] in pyproject.toml"
        yield "see that make test, slow, coverage and faults, and tox, are green on this commit"
        if tag not in self.tree.tags():
            yield f"git tag --annotate {tag} --message {tag}"
        yield f"git push origin {tag}"
        names = " ".join(f"dist/{each.name}" for each in sorted(self.artefacts.folder.iterdir()))
        yield f"twine upload {names}"
        yield "freeze this commit for the next release: see tests/faults/previous/__init__.py"


def run(release: Release) -> int:
    """The steps, up to the first with a problem."""
    for step in release.steps:
        print(f"{step.__doc__} ... ", end="", flush=True)
        problems = list(step())
        print("no" if problems else "yes")
        for problem in problems:
            print(f"  {problem}")
        if problems:
            return 1
    if not release.rehearse:
        print(f"\n{release.tree.version} can be released. What is left for you:")
        for each in release.left():
            print(f"  {each}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="any commit will do: nothing is asked of version, changelog and tag",
    )
    sys.exit(run(Release(ROOT, rehearse=parser.parse_args().rehearse)))
