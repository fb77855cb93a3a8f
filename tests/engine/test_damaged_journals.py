"""A job whose journal is damaged: it is refused, and --force starts it over with the same bits."""

import signal
from collections.abc import Callable

import pytest
from attempts import At
from labjobs import layout

STOP = 5
"""The step of the checkpoint."""

Change = Callable[[list[bytes]], list[bytes]]


def flipped(whole: list[bytes]) -> list[bytes]:
    return [line.replace(b'"step": 3,', b'"step": 2,', 1) for line in whole]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flipped, "metrics.jsonl is damaged at line "),
        (lambda whole: whole[:4], "the end of metrics.jsonl is lost"),
        (lambda whole: [], "the beginning of metrics.jsonl is lost"),
    ],
    ids=["flipped", "cut", "empty"],
)
@pytest.mark.parametrize("outcome", [True, False])
def test_a_damaged_journal_is_refused_and_force_starts_over(
    toy, damage: Change, said: str, outcome: bool
):
    """Whether the number of lines is in outcome.json, or in the checkpoint alone."""
    whole = toy.run("whole")
    left = toy.run("parts", stop=At("step", STOP))
    assert left.status == 128 + signal.SIGTERM, left.log
    if not outcome:
        (left.folder / layout.OUTCOME).unlink()
    path = left.folder / layout.JOURNAL
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    for _ in range(2):
        refused = toy.run("parts")
        assert refused.status == 1
        assert f"failed: {said}" in refused.said and "--force starts the job over" in refused.said
    again = toy.done("parts", runtime={"force": True})
    assert again.content() == whole.content()


def test_half_a_line_is_cut_off(toy):
    """As a killed job leaves it."""
    whole = toy.run("whole")
    left = toy.run("parts", stop=At("step", STOP))
    (left.folder / layout.OUTCOME).unlink()
    with (left.folder / layout.JOURNAL).open("ab") as file:
        file.write(b'{"line": 99, "st')
    again = toy.run("parts")
    assert again.content() == whole.content()
