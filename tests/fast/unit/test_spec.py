"""The models in `spec/` name places in the code, and their planted faults have places in them."""

from pathlib import Path

import pytest

from tests.tools import ROOT
from tools.spec import FAULTS, SCRIPTS, SEARCHES, Fault, Step, copy_models, step_table, steps


@pytest.mark.parametrize("step", list(steps()), ids=str)
def test_a_step_describes_a_place_that_exists(step: Step) -> None:
    source = (SCRIPTS / step.script).read_text()
    assert source.count(step.text) == 1, f"{step.script} must have this text once: {step.text}"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda each: each.name)
def test_a_planted_fault_has_its_place(fault: Fault, tmp_path: Path) -> None:
    copy_models(tmp_path, fault)
    assert fault.property in SEARCHES[fault.search].properties


def test_the_page_has_all_steps_and_faults() -> None:
    page = (ROOT / "docs/project/specification.md").read_text()
    assert [row for row in step_table() if row not in page] == []
    assert [each.breaks for each in FAULTS.values() if f"| {each.breaks} |" not in page] == []
    assert [each.covers for each in SEARCHES.values() if f"| {each.covers} |" not in page] == []
