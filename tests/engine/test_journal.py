"""The journal: nothing that was written is lost, and nothing is written twice."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine.job import journal


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / journal.FILE).read_text().splitlines()]


def test_threads_that_write_at_once_lose_nothing(tmp_path):
    """Such as evaluation in the background, which logs images."""
    written = journal.Journal(tmp_path, 1)

    def write(thread: int) -> None:
        for number in range(500):
            written.files([f"{thread}-{number}"])
            written.flush()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    found = [line["files"][0] for line in lines(tmp_path)[1:]]
    assert sorted(found) == sorted(f"{t}-{n}" for t in range(4) for n in range(500))


def test_steps_of_a_metric_only_rise(tmp_path):
    """What is done again after a kill is in the journal already."""
    first = journal.Journal(tmp_path, 1)
    first.metrics(5, {"a": 1.0})
    first.flush()
    again = journal.Journal(tmp_path, 1)
    for step in (4, 5, 6):
        again.metrics(step, {"a": 2.0, "b": 3.0})
    again.flush()
    points = [(line["step"], line["metrics"]) for line in lines(tmp_path) if "step" in line]
    assert points[1:] == [(4, {"b": 3.0}), (5, {"b": 3.0}), (6, {"a": 2.0, "b": 3.0})]


def test_half_a_line_is_cut_off(tmp_path):
    first = journal.Journal(tmp_path, 1)
    first.metrics(1, {"a": 1.0})
    first.flush()
    with (tmp_path / journal.FILE).open("a") as file:
        file.write('{"time": 1, "st')
    again = journal.Journal(tmp_path, 1)
    again.metrics(2, {"a": 2.0})
    again.flush()
    assert [line["step"] for line in lines(tmp_path) if "step" in line] == [1, 2]


def test_a_damaged_line_is_said_with_its_place(tmp_path):
    written = journal.Journal(tmp_path, 1)
    written.metrics(1, {"a": 1.0})
    written.flush()
    whole = (tmp_path / journal.FILE).read_bytes()
    (tmp_path / journal.FILE).write_bytes(whole.replace(b'"step"', b"'step'"))
    place = whole.index(b"\n") + 1
    with pytest.raises(ValueError, match=f"^{journal.FILE} is damaged at byte {place}$"):
        journal.Journal(tmp_path, 1)
