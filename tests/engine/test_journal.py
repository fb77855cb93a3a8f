"""The journal: nothing that was written is lost or written twice, and damaged lines are noticed."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from labjobs import files, layout
from labjobs.job import journal
from labjobs.job.journal import Damaged, Reader, count


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
    with (tmp_path / layout.JOURNAL).open("a") as file:
        file.write('{"time": 1, "st')
    again = journal.Journal(tmp_path, 1)
    again.metrics(2, {"a": 2.0})
    again.flush()
    assert [line["step"] for line in lines(tmp_path) if "step" in line] == [1, 2]


@pytest.fixture
def written(tmp_path):
    """A journal's file with a start, ten points and an image."""
    (tmp_path / "logged").mkdir()
    (tmp_path / "logged" / "face-000004.png").touch()
    made = journal.Journal(tmp_path, 5)
    for step in range(1, 11):
        made.metrics(step, {"a": step / 3}, at=1000 + step)
    made.flush()
    files.write_record(
        tmp_path / "settings.json", {"id": tmp_path.parent.name, "journal": made.start}
    )
    return tmp_path / layout.JOURNAL


def points(path: Path) -> list[int]:
    return [int(line["step"]) for line in lines(path.parent) if "step" in line]


def test_a_reader_refuses_a_damaged_line_with_its_place(written):
    written.write_bytes(written.read_bytes().replace(b'"step": 4', b'"step": 5'))
    with written.open("rb") as file, pytest.raises(Damaged, match=r"damaged at line 5; .* mends"):
        Reader(file).read()


def test_a_damaged_line_is_cut_out_kept_and_said(written):
    whole = written.read_bytes()
    bad = whole.splitlines(keepends=True)[4].replace(b'"step": 4', b'"step": 5')
    written.write_bytes(whole.replace(whole.splitlines(keepends=True)[4], bad))
    again = journal.Journal(written.parent, 1)
    said = f"{layout.JOURNAL} was damaged and has lost 1 of its 11 lines"
    assert again.damage.startswith(said)
    assert (written.parent / "metrics.damaged").read_bytes() == bad
    assert points(written) == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert lines(written.parent)[4] == {
        "line": 5,
        "lost": 1,
        "crc": lines(written.parent)[4]["crc"],
    }
    assert lines(written.parent)[-2]["tags"]["damaged"] == again.damage
    assert lines(written.parent)[-1]["files"] == ["logged/face-000004.png"]
    assert count(written) == 14
    assert not journal.Journal(written.parent, 1).damage


def without_first(whole: list[bytes]) -> list[bytes]:
    return [b"\0" * len(whole[0]) + b"\n", *whole[1:]]


@pytest.mark.parametrize(
    "change",
    [
        without_first,
        lambda whole: whole[1:],
        lambda whole: [*whole[:3], whole[4], whole[3], *whole[5:]],
        lambda whole: [*whole[:5], *whole[3:]],
        lambda whole: [*whole[:5], b"\xff\0garbage\n", *whole[5:]],
        lambda whole: [*whole[:5], b"\n", *whole[5:]],
        lambda whole: whole[::-1],
    ],
    ids=["no first", "first gone", "swapped", "twice", "garbage", "empty line", "backwards"],
)
def test_what_costs_nothing_is_put_right(written, change):
    before = lines(written.parent)
    written.write_bytes(b"".join(change(written.read_bytes().splitlines(keepends=True))))
    again = journal.Journal(written.parent, 1)
    assert again.damage.startswith(f"{layout.JOURNAL} was damaged and has lost nothing")
    assert lines(written.parent)[:11] == before
    assert again.log_every == 5
    assert not journal.Journal(written.parent, 1).damage


def test_a_journal_that_is_gone_or_empty_is_begun_again_under_its_id(written):
    start = lines(written.parent)[0]["start"]
    for content in (b"", b'{"half'):
        written.write_bytes(content)
        assert journal.Journal(written.parent, 1).start == start


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
