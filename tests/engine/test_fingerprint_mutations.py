"""Random changes of the template's code: none that changes a result may go unnoticed."""

import random

from mutations import Mutations, mutant

COUNT = 10


def test_no_change_of_a_result_goes_unnoticed(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: None)
    mutations, chance = Mutations(tmp_path, "mlp"), random.Random(0)
    mutants = [mutant(chance) for _ in range(COUNT)]
    unnoticed = [m for m in mutants if not mutations.is_noticed(*m[:2])]
    assert 0 < len(unnoticed) < COUNT
    missed = [what for name, source, what in unnoticed if mutations.changes_result(name, source)]
    assert missed == []
