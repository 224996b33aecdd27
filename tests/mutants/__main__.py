"""``python -m tests.mutants [NAME ...]``: exit status 0 if each fault is found, else 1."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.tools import ROOT

FAULTS = Path(__file__).with_name("mutants.toml")
COPIED = ("django_redislock", "testproject", "tests", "docs", "README.md", "pyproject.toml")
IGNORED = shutil.ignore_patterns("__pycache__", "node_modules")

PASSED = 0  # exit status of pytest


@dataclass(frozen=True)
class Fault:
    """A change of one place in the package that breaks it."""

    name: str
    breaks: str
    file: str
    """Relative to the package."""
    good: str
    bad: str
    tests: list[str]
    """The test modules that find it, relative to tests/fast."""
    needs: str = ""
    """A module without which neither the code nor its tests run."""

    def plant(self, root: Path) -> None:
        """Change the package in `root`."""
        path = root / "django_redislock" / self.file
        source = path.read_text()
        count = source.count(self.good)
        if count != 1:
            sys.exit(f"{self.name}: {self.file} has the text to replace {count} times, not once")
        path.write_text(source.replace(self.good, self.bad))


def faults(names: list[str]) -> list[Fault]:
    """Return the faults of these names, or all without names."""
    known = {
        name: Fault(name, **facts) for name, facts in tomllib.loads(FAULTS.read_text()).items()
    }
    if unknown := set(names) - set(known):
        sys.exit(f"unknown faults: {', '.join(sorted(unknown))}")
    return [known[name] for name in names or known]


@contextmanager
def copy_of_package() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=IGNORED)
            else:
                shutil.copy(ROOT / name, root)
        yield root


def run_tests(root: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the fast tests on the package in `root`, up to the first failure."""
    paths = [f"tests/fast/{each}" for each in tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "--dist", "loadgroup"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", *paths],
        cwd=root,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


def first_failure(output: str) -> str:
    """Return the name of the first test that failed."""
    failed = [
        line for line in output.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))
    ]
    return failed[0].partition(" ")[2].partition(" - ")[0] if failed else ""


def is_found(fault: Fault) -> bool:
    with copy_of_package() as root:
        fault.plant(root)
        done = run_tests(root, fault.tests)
    found = first_failure(done.stdout)
    if done.returncode != PASSED and not found:
        print(done.stdout, done.stderr)
    verdict = f"found by {found}" if found else "NOT FOUND"
    print(f"{fault.name}: {verdict}", flush=True)
    return bool(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults (default: all of them)")
    options = parser.parse_args()
    planted = [
        fault for fault in faults(options.names) if not fault.needs or find_spec(fault.needs)
    ]
    with copy_of_package() as root:
        done = run_tests(root, sorted({each for fault in planted for each in fault.tests}))
    if done.returncode != PASSED:
        print(done.stdout)
        sys.exit("the tests fail without a fault")
    missed = [fault.name for fault in planted if not is_found(fault)]
    print(f"{len(planted) - len(missed)} of {len(planted)} planted faults were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
