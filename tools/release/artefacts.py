"""Build the sdist and the wheel, and check their contents."""

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Set
from functools import cached_property
from pathlib import Path

from packaging.metadata import Metadata
from readme_renderer import markdown

NOT_DISTRIBUTED = (".ci/",)
"""Files of the repository that the sdist leaves out."""

DIST_INFO = "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"

ADDRESS = re.compile(r'(?:href|src|srcset)="([^"]*)"')
ELSEWHERE = ("https://", "http://", "mailto:", "#")


class Artefacts:
    """The sdist and the wheel in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def built(cls, root: Path, folder: Path, *, isolated: bool = True) -> "Artefacts":
        """Build an sdist from a checkout, and a wheel from the sdist."""
        here = [] if isolated else ["--no-isolation"]
        _run("-m", "build", "--outdir", str(folder), *here, str(root))
        return cls(folder)

    @property
    def sdist(self) -> Path:
        [path] = self.folder.glob("*.tar.gz")
        return path

    @property
    def wheel(self) -> Path:
        [path] = self.folder.glob("*.whl")
        return path

    def in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if not name.endswith("/")}

    def in_sdist(self) -> set[str]:
        """The files of the sdist, without the top folder."""
        with tarfile.open(self.sdist) as archive:
            return {each.name.partition("/")[2] for each in archive if each.isfile()}

    @cached_property
    def metadata(self) -> Metadata:
        """The wheel's metadata. Raises `ExceptionGroup` if an index would refuse it."""
        with zipfile.ZipFile(self.wheel) as archive:
            return Metadata.from_email(archive.read(f"{self.dist_info}/METADATA"), validate=True)

    @property
    def dist_info(self) -> str:
        return "-".join([*self.wheel.name.split("-")[:2]]) + ".dist-info"


def differing(artefacts: Artefacts, files: Set[str]) -> Iterator[str]:
    """Yield the differences between their files and the tree."""
    package = {each for each in files if each.startswith("django_redislock/")}
    metadata = {f"{artefacts.dist_info}/{each}" for each in DIST_INFO}
    yield from _difference("the wheel", artefacts.in_wheel(), package | metadata)
    ours = {each for each in files if not each.startswith(NOT_DISTRIBUTED)}
    yield from _difference("the sdist", artefacts.in_sdist(), ours | {"PKG-INFO"})


def _difference(what: str, there: Set[str], expected: Set[str]) -> Iterator[str]:
    for each in sorted(expected - there):
        yield f"{what} lacks {each}"
    for each in sorted(there - expected):
        yield f"{what} has {each}, which is not committed"


def unlike(artefacts: Artefacts, root: Path) -> Iterator[str]:
    """Yield a problem if the wheels of the sdist and of the tree differ in any byte."""
    with tempfile.TemporaryDirectory() as folder:
        _run("-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=root)
        if Artefacts(Path(folder)).wheel.read_bytes() != artefacts.wheel.read_bytes():
            yield "the wheel of the sdist differs from the wheel of the tree"


def unfit(artefacts: Artefacts, version: str) -> Iterator[str]:
    """Yield metadata that an index would refuse or render incorrectly."""
    try:
        metadata = artefacts.metadata
    except ExceptionGroup as error:
        for each in error.exceptions:
            yield f"the metadata are wrong: {each}"
        return
    if str(metadata.version) != version:
        yield f"the metadata say version {metadata.version}, the package {version}"
    html = markdown.render(metadata.description or "")
    if not html:
        yield "README.md can't be shown by an index"
    for address in ADDRESS.findall(html or ""):
        if not address.startswith(ELSEWHERE):
            yield f"README.md as an index has it leads to nothing: {address}"


def _run(*arguments: str, cwd: Path | None = None) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout)
