"""A release that would be wrong is refused, by the words that say why."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..tools import ROOT
from .__main__ import Release, run
from .tree import HEADING, Tree

ENTRY = "## [{version}] - 2026-01-02\n\n### Fixed\n\n- Something.\n"


class Checkout(Tree):
    """A repository of one commit, with this tree's files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.git("init", "--quiet")
        for name, value in (("name", "Test"), ("email", "test@example.org")):
            self.git("config", f"user.{name}", value)

    def change(self, file: str, edit: Callable[[str], str]) -> None:
        path = self.root / file
        path.write_text(edit(path.read_text()))

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "--message", "As it is")

    def refused(self, step: str) -> list[str]:
        return list(getattr(Release(self.root, isolated=False), step)())


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """What is committed here or is about to be, with a changelog that has its version."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip(f"This is no git checkout: {listed.stderr}")
    for name in filter(None, listed.stdout.split("\0")):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, target)
    checkout = Checkout(tmp_path)
    entry = ENTRY.format(version=checkout.version)
    checkout.change("CHANGELOG.md", lambda text: f"{text}\n{entry}")
    checkout.commit()
    return checkout


@pytest.mark.slow
def test_a_tree_that_is_ready_is_built_and_has_all(checkout: Checkout) -> None:
    release = Release(checkout.root, isolated=False)
    for step in release.steps[:-1]:
        assert list(step()) == [], step.__doc__
    assert sorted(each.suffix for each in release.artefacts.folder.iterdir()) == [".gz", ".whl"]
    assert f"git tag --annotate v{checkout.version}" in "\n".join(release.left())
    assert checkout.refused("uncommitted") == []  # dist/ is nobody's business


@pytest.mark.slow
def test_it_ends_with_the_first_step_that_finds_something(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.root.joinpath("notes").touch()
    assert run(Release(checkout.root)) == 1
    told = capsys.readouterr().out
    assert told == "Everything is committed ... no\n  not as committed: ?? notes\n"
    assert not checkout.root.joinpath("dist").exists()


@pytest.mark.slow
def test_a_rehearsal_asks_for_no_version_and_nothing_else_less(checkout: Checkout) -> None:
    steps = Release(checkout.root).steps
    rehearsed = Release(checkout.root, rehearse=True).steps
    left_out = {each.__name__ for each in steps} - {each.__name__ for each in rehearsed}
    assert left_out == {"misnamed"}


def test_a_changed_file_is_refused(checkout: Checkout) -> None:
    checkout.change("django_redislock/keys.py", "{}\n".format)
    assert checkout.refused("uncommitted") == ["not as committed:  M django_redislock/keys.py"]


def test_a_version_without_a_heading_in_the_changelog_is_refused(checkout: Checkout) -> None:
    checkout.change("CHANGELOG.md", lambda text: text.replace(f"[{checkout.version}]", "[0.0.1]"))
    [problem] = checkout.refused("misnamed")
    assert problem.startswith(f"CHANGELOG.md has no heading ## [{checkout.version}] - 20")


@pytest.mark.parametrize("day", ["", " - soon", " - 2026-02-30"])
def test_a_heading_without_a_day_is_refused(checkout: Checkout, day: str) -> None:
    checkout.change("CHANGELOG.md", lambda text: text.replace(" - 2026-01-02", day))
    [problem] = checkout.refused("misnamed")
    assert "does not say on which day" in problem


def test_a_heading_without_a_word_below_is_refused(checkout: Checkout) -> None:
    checkout.change("CHANGELOG.md", lambda text: text.replace("\n\n### Fixed\n\n- Something.", ""))
    [problem] = checkout.refused("misnamed")
    assert "says nothing of what" in problem


@pytest.mark.parametrize("version", ["0.1.0+local", "0.2.dev1", "01.0", "soon"])
def test_a_version_that_no_index_takes_is_refused(checkout: Checkout, version: str) -> None:
    now = f'__version__ = "{checkout.version}"'
    checkout.change(
        "django_redislock/__init__.py",
        lambda text: text.replace(now, f'__version__ = "{version}"'),
    )
    checkout.change("CHANGELOG.md", lambda text: text + ENTRY.format(version=version))
    [problem] = checkout.refused("misnamed")
    assert problem.startswith(f"{version} is no version")


def test_a_tag_of_another_version_is_refused(checkout: Checkout) -> None:
    checkout.git("tag", "v9.9.9")
    [problem] = checkout.refused("misnamed")
    assert problem.startswith("this commit is tagged v9.9.9")


def test_a_version_that_is_out_is_refused(checkout: Checkout) -> None:
    checkout.git("tag", checkout.tag)
    assert checkout.refused("misnamed") == []
    checkout.commit()
    [problem] = checkout.refused("misnamed")
    assert problem.startswith(f"{checkout.tag} is another commit's tag")


@pytest.mark.slow
def test_a_file_that_is_left_out_is_told_by_name(checkout: Checkout) -> None:
    wheel = '[tool.hatch.build.targets.wheel]\nexclude = ["acquire.lua"]\n'
    checkout.change("pyproject.toml", lambda text: text.replace(wheel.split("\n")[0], wheel[:-1]))
    checkout.commit()
    assert checkout.refused("unbuildable") == []
    assert checkout.refused("differing") == [
        "the wheel lacks django_redislock/lua/acquire.lua",
    ]


@pytest.mark.slow
def test_a_file_of_nobody_is_told_by_name(checkout: Checkout) -> None:
    """One that git ignores, and the build does not."""
    checkout.change(".gitignore", "{}*.secret\n".format)
    checkout.change("pyproject.toml", '{}\n[tool.hatch.build]\nartifacts = ["*.secret"]\n'.format)
    checkout.commit()
    checkout.root.joinpath("django_redislock", "my.secret").touch()
    assert checkout.refused("uncommitted") == []
    assert checkout.refused("unbuildable") == []
    assert checkout.refused("differing") == [
        "the wheel has django_redislock/my.secret, which is not committed",
        "the sdist has django_redislock/my.secret, which is not committed",
    ]


@pytest.mark.slow
def test_a_link_that_leads_to_nothing_on_an_index_is_told(checkout: Checkout) -> None:
    checkout.change("README.md", '{}\n<a href="docs/index.md">more</a>\n'.format)
    checkout.commit()
    assert checkout.refused("unbuildable") == []
    assert checkout.refused("unfit") == [
        "README.md as an index has it leads to nothing: docs/index.md"
    ]


def test_a_build_that_fails_is_told_in_its_own_words(checkout: Checkout) -> None:
    checkout.change("pyproject.toml", lambda text: text.replace('"Typing :: Typed"', '"Typed"'))
    [problem] = checkout.refused("unbuildable")
    assert "Unknown classifier" in problem


def test_the_changelog_has_the_form_that_it_names() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]"
    assert len(headings) == len(HEADING.findall(text))
    sorts = {line for line in text.splitlines() if line.startswith("### ")}
    known = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    assert sorts <= {f"### {each}" for each in known}
