"""The GPUs of a job that needs several: all are held, or none."""

import pytest
from labjobs.sweeps.gpus import Gpu, Slot, places


@pytest.fixture
def slots(tmp_path):
    """Five pretend GPUs with their locks."""
    made = [Slot(f"GPU-{name}", str(tmp_path / name), 1) for name in "abcde"]
    for slot in made:
        for number in (0, 1):
            (tmp_path / f"{slot.lock}.{number}").touch()
    return made


def test_a_job_has_as_many_gpus_as_it_needs(slots):
    first, second = places(slots, 1, 2)
    assert first.take() and second.take()
    assert first.env == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert second.env == {"CUDA_VISIBLE_DEVICES": "GPU-c,GPU-d"}
    assert len(first.files) == 4
    assert not Gpu(slots[1], shared=False).take()
    assert Gpu(slots[4], shared=False).take()


def test_none_is_held_while_one_is_in_use(slots):
    other = Gpu(slots[1], shared=False)
    assert other.take()
    first, _ = places(slots, 1, 2)
    assert not first.take() and first.why == "is in use by a job of another sweep"
    assert Gpu(slots[0], shared=False).take()
    assert first.files == []


def test_the_cpu_is_one_place_for_any_number_of_processes():
    found = places([Slot("cpu", "-", 1), Slot("cpu", "-", 2)], 1, 2)
    assert [place.env for place in found] == [{}, {}]
    assert all(place.take() for place in found)
