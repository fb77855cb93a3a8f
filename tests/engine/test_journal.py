"""The journal: nothing that was written is lost or written twice, and damaged lines are noticed."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from labjobs import files, layout
from labjobs.job import journal
from labjobs.job.journal import Damaged


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / layout.JOURNAL).read_text().splitlines()]


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


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A journal's file with a start and ten points."""
    made = journal.Journal(tmp_path, 5)
    for step in range(1, 11):
        made.metrics(step, {"a": step / 3}, at=1000 + step)
    made.flush()
    files.write_record(
        tmp_path / "settings.json", {"id": tmp_path.parent.name, "journal": made.start}
    )
    return tmp_path / layout.JOURNAL


def test_results_come_last_also_if_training_has_logged_their_names(tmp_path):
    written = journal.Journal(tmp_path, 1)
    written.metrics(4, {"later": 0.1, "as_late": 0.1, "same": 0.3})
    written.metrics(9, {"later": 0.2})
    written.metrics(9, {"val_loss": 0.2})
    results = {"later": 0.3, "as_late": 0.3, "same": 0.3, "new": 0.3, "val_loss": 0.1}
    written.results(4, results, end=9)
    written.flush()
    for made in (written, journal.Journal(tmp_path, 1)):  # as after a kill
        made.results(4, results, end=9)
        made.flush()
    found = [(line["step"], line["metrics"]) for line in lines(tmp_path) if "step" in line]
    assert found[3:] == [(4, {"new": 0.3}), (10, {"later": 0.3, "as_late": 0.3})]


def test_lines_of_another_journal_are_not_taken(written, tmp_path):
    (tmp_path / "other").mkdir()
    other = journal.Journal(tmp_path / "other", 1)
    for step in range(1, 11):
        other.metrics(step, {"a": 0.0}, at=1000 + step)
    other.flush()
    written.write_bytes((tmp_path / "other" / layout.JOURNAL).read_bytes())
    with pytest.raises(Damaged, match="beginning"):
        journal.Journal(written.parent, 1)


def test_a_checkpoint_knows_of_an_end_that_is_gone(written):
    """Also after others have written as many lines as are gone."""
    marks = []
    for cut in (11, 8):
        written.write_bytes(b"".join(written.read_bytes().splitlines(keepends=True)[:cut]))
        marks.append(journal.Journal(written.parent, 1).mark)
    for _ in range(10):
        again = journal.Journal(written.parent, 1)
        again.check_reaches((0, 0))
        again.check_reaches(marks[1])
        with pytest.raises(Damaged, match=r"the end of metrics.jsonl is lost; --force"):
            again.check_reaches(marks[0])


def test_a_checkpoint_without_a_journal_is_refused(tmp_path):
    (tmp_path / "last.pt").touch()
    with pytest.raises(Damaged, match="beginning"):
        journal.Journal(tmp_path, 1)


def test_records_are_sealed(tmp_path):
    path = tmp_path / "outcome.json"
    files.write_record(path, {"status": "finished", "said": "é"})
    whole = path.read_bytes()
    assert json.loads(whole)["status"] == "finished"
    assert files.read_record(path)["said"] == "é"
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert files.read_record(path) == {}
    for content in (b"", b"{}", b"[]", b"3", b"\xff", b"\0" * 100, whole[:-1], whole * 2):
        path.write_bytes(content)
        assert files.read_record(path) == {}
