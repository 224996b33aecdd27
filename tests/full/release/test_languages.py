"""The translations are complete and compiled, and every text of the admin can be translated."""

import gettext
import os
import re
import shutil
import subprocess
from io import BytesIO
from pathlib import Path

import pytest

from tools.messages import LANGUAGES, PACKAGE, catalog, compile_all, extract

in_each_language = pytest.mark.parametrize("language", LANGUAGES)


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with newly extracted and compiled catalogs."""
    folder = tmp_path_factory.mktemp("languages") / "django_redislock"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.mo"))
    extract(folder)
    compile_all(folder)
    return folder


@in_each_language
def test_the_catalog_is_complete_and_keeps_placeholders(extracted: Path, language: str) -> None:
    done = subprocess.run(
        ["msgfmt", "--check", "--statistics", "-o", os.devnull, catalog(extracted, language)],
        env=os.environ | {"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ translated messages\.", done.stderr.splitlines()[-1]), done.stderr


@in_each_language
def test_the_compiled_catalog_is_up_to_date(extracted: Path, language: str) -> None:
    fresh, shipped = (
        gettext.GNUTranslations(BytesIO(catalog(each, language).with_suffix(".mo").read_bytes()))
        for each in (extracted, PACKAGE)
    )
    # The bytes of the files depend on the version of gettext, but these dictionaries do not.
    assert vars(shipped)["_catalog"] == vars(fresh)["_catalog"], "run make messages"
