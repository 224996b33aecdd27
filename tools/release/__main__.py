"""``python -m tools.release [--rehearse]``: exit status 0 if the commit can be released."""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tests.tools import ROOT

from .artefacts import Artefacts, differing, unfit, unlike
from .installing import uninstallable
from .tree import Tree, misnamed, uncommitted


def steps(
    tree: Tree, artefacts: Artefacts, *, rehearse: bool
) -> Iterator[tuple[str, Callable[[], Iterable[str]]]]:
    """Yield each requirement with a function that returns the problems."""
    version = tree.version
    yield "Everything is committed", partial(uncommitted, tree)
    if not rehearse:
        yield "Version, changelog and tag agree", partial(misnamed, tree)
    yield "The sdist and the wheel are built", partial(_build_problems, tree, artefacts)
    title = "They have the committed files and no others"
    yield title, lambda: differing(artefacts, tree.files())
    yield "The sdist builds the same wheel", partial(unlike, artefacts, tree.root)
    title = "An index accepts the metadata and renders the README"
    yield title, partial(unfit, artefacts, version)
    title = "The wheel works in a new project in an empty environment"
    yield title, lambda: uninstallable(artefacts.wheel, version)


def _build_problems(tree: Tree, artefacts: Artefacts) -> Iterator[str]:
    shutil.rmtree(artefacts.folder, ignore_errors=True)
    try:
        Artefacts.built(tree.root, artefacts.folder)
    except RuntimeError as error:
        yield str(error)


def manual_steps(tree: Tree, artefacts: Artefacts) -> Iterator[str]:
    tag = tree.tag
    if any(".example/" in url for url in artefacts.metadata.project_urls.values()):
        yield "replace the placeholder addresses of [project.urls] in pyproject.toml"
    yield "check that make test-all, coverage and faults, and tox pass on this commit"
    if tag not in tree.tags():
        yield f"git tag --annotate {tag} --message {tag}"
    yield f"git push origin {tag}"
    names = " ".join(f"dist/{each.name}" for each in sorted(artefacts.folder.iterdir()))
    yield f"twine upload {names}"


def main(*, rehearse: bool) -> int:
    """Run the steps up to the first with a problem."""
    tree, artefacts = Tree(ROOT), Artefacts(ROOT / "dist")
    for title, find_problems in steps(tree, artefacts, rehearse=rehearse):
        print(f"{title} ... ", end="", flush=True)
        problems = list(find_problems())
        print("no" if problems else "yes")
        for problem in problems:
            print(f"  {problem}")
        if problems:
            return 1
    if not rehearse:
        print(f"\n{tree.version} can be released. Left to do:")
        for each in manual_steps(tree, artefacts):
            print(f"  {each}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument(
        "--rehearse", action="store_true", help="do not check version, changelog and tag"
    )
    sys.exit(main(rehearse=parser.parse_args().rehearse))
