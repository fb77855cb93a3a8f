"""Random damage to a job's files: none is taken silently, none ends in a traceback."""

import os
import random

import pytest
from record_mutations import RECORDS, Damages

COUNT = 240


@pytest.fixture(scope="module")
def damages(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        return Damages(tmp_path_factory.mktemp("damages"))


@pytest.mark.parametrize("record", RECORDS)
def test_no_damage_is_taken_silently_or_ends_in_a_traceback(damages, record, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
    chance = random.Random(record)
    came = [damages.try_one(record, chance) for _ in range(COUNT // len(RECORDS))]
    assert [each.about for each in came if each.word in ("silent", "traceback")] == []
