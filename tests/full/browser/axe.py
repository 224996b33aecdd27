"""Check the accessibility of a page with axe-core, which npm downloads for the tests."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.programs import find

from .browser import Tab

HERE = Path(__file__).parent
SOURCE = HERE / "node_modules" / "axe-core" / "axe.min.js"

OF_DJANGO = {
    # A label that is an image with an alternative text. The rule ignores such a text.
    "label-title-only": "#searchbar",
    # In Django 5.2, only the colour distinguishes the links in breadcrumbs from the separators.
    "link-in-text-block": "div.breadcrumbs > a",
}
"""Rules that Django's own templates break, each with the selector of the elements."""

RUN = """
const [ofDjango, done] = arguments;
const isOurs = (rule, element) => !(rule in ofDjango && element.matches(ofDjango[rule]));
const serious = ({violations}) => violations
    .filter(({impact}) => ['serious', 'critical'].includes(impact))
    .flatMap(({id, nodes}) => nodes
        .filter(({element}) => isOurs(id, element))
        .map(({html, failureSummary}) => `${id}: ${html}\\n${failureSummary}`));
// Without preload: it puts the page's style sheets into the page, which the policy forbids.
const options = {resultTypes: ['violations'], elementRef: true, preload: false};
axe.run(options).then(serious).then(done, (error) => done([String(error)]));
"""


@cache
def source() -> str:
    if not SOURCE.exists():
        _install()
    return SOURCE.read_text()


def _install() -> None:
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(HERE)]
    done = subprocess.run(
        [find("npm"), "ci", *options], capture_output=True, text=True, timeout=90, check=False
    )
    if done.returncode:
        pytest.skip(f"npm could not fetch axe-core: {done.stderr}")


def serious_violations(tab: Tab) -> list[str]:
    """Return the serious and critical problems: the rule, the element and the reason."""
    tab.script(source())
    return tab.driver.execute_async_script(RUN, OF_DJANGO)
