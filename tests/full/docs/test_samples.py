"""Each code sample of the pages, by page and line."""

import pytest

from .samples import Sample, samples


def parameter(sample: Sample):
    # One process reads a page, for its samples share what they define.
    return pytest.param(sample, id=sample.id, marks=pytest.mark.xdist_group(sample.page))


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's
@pytest.mark.parametrize("sample", [parameter(sample) for sample in samples()])
def test_sample(reader, sample):
    __tracebackhide__ = True
    reader.read(sample)
