"""axe-core, which finds what keeps people from using a page. npm fetches it; it ships nowhere."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.programs import find

from .browser import Tab

HERE = Path(__file__).parent
SOURCE = HERE / "node_modules" / "axe-core" / "axe.min.js"

OF_DJANGO = {
    # A label that is an image with an alternative text, which the rule does not count.
    "label-title-only": "#searchbar",
    # Django 5.2 tells the links of its breadcrumbs from the signs between them by colour alone.
    "link-in-text-block": "div.breadcrumbs > a",
}
"""What Django's own templates break: a rule, and the selector of the elements."""

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
    """What axe-core takes for serious or critical on the page: the rule, where, and why."""
    tab.script(source())
    return tab.driver.execute_async_script(RUN, OF_DJANGO)
