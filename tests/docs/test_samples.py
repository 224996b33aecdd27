"""Each code sample of the pages, by page and line."""

import pytest

from ..servers import Missing
from . import languages
from .samples import samples


def parameter(sample):
    # One process runs a page, for its samples share what they define.
    return pytest.param(
        sample.page, sample, id=sample.id, marks=pytest.mark.xdist_group(f"docs-{sample.page}")
    )


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's
@pytest.mark.parametrize(
    ("page", "sample"), [*map(parameter, samples())], indirect=["page"], scope="session"
)
def test_sample(page, sample):
    __tracebackhide__ = True
    if not page.skip:
        try:
            languages.run(page, sample)
        except Missing as missing:
            page.skip = str(missing)
    if page.skip:
        pytest.skip(page.skip)
