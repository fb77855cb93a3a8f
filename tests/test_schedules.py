"""The engine on GPUs that are not there and run late: a few of the orders of schedules.py."""

import pytest
from gpu_faults import FAULTS
from gpus import needs_stand_in
from schedules import PROJECT, run, tries

pytestmark = [needs_stand_in, pytest.mark.full]


def test_the_order_in_which_a_gpu_works_changes_nothing(pytestconfig):
    count = int(pytestconfig.getoption("--schedules"))
    said = run(PROJECT, 0, count)
    assert [each for each in said if not each["same"]] == []
    assert len(said) == count and max(each["ahead"] for each in said) > 100


FOUND = [fault for fault in FAULTS if not fault.elsewhere]
FIRST = {fault.rules: fault for fault in reversed(FOUND) if fault.rules in "14579"}.values()
EACH = [
    pytest.param(fault, id=fault.name, marks=() if fault in FIRST else pytest.mark.alike)
    for fault in FOUND
]


@pytest.mark.parametrize("fault", EACH)
def test_a_fault_is_found(fault):
    assert tries(fault, most=60)
