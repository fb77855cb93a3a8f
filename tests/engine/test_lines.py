"""The lines of a journal as text: sealed, numbered, and read while they are being written."""

import json
from io import BytesIO
from pathlib import Path

import pytest
from labjobs import files, layout
from labjobs.job import journal
from labjobs.job.journal import Damaged, Reader

SEED = journal.seed_of("abc")


def line(number: int, seed: int = SEED, **said: object) -> bytes:
    return journal.encoded(number, json.dumps(said), seed)


START = line(1, start={"journal": "abc"})


def test_a_line_of_another_journal_or_with_another_byte_says_nothing() -> None:
    written = line(3, step=12)
    assert journal.decoded(written, journal.seed_of("abd")) == {}
    for place in range(len(written)):
        damaged = written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :]
        assert journal.decoded(damaged, SEED) == {}
    for text in (b"", b"\n", written[:-1], written + b"\n", written * 2):
        assert journal.decoded(text, SEED) == {}


def test_how_a_journal_starts() -> None:
    assert journal.start_in(START) == {"journal": "abc"}
    assert journal.start_in(START.replace(b"abc", b"abd")) == {}
    assert journal.start_in(line(1, journal.seed_of("x"), start={"journal": "abc"})) == {}
    others = (b"", b"[]", b"3", b'{"start": 3}', b'{"start": {}}', b"[" * 10**5, b"\xff")
    for text in (*others, line(1, start={"journal": 3}), line(2, step=1)):
        assert journal.start_in(text) == {}


def test_a_reader_takes_whole_lines_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / layout.JOURNAL
    second, third = line(2, step=1), line(3, step=2)
    with path.open("wb", buffering=0) as out, path.open("rb") as file:
        reader = Reader(file)
        assert (reader.read(), reader.line, reader.start) == ([], 0, {})
        out.write(START + second[:5])
        assert [each["line"] for each in reader.read()] == [1]
        assert (reader.line, reader.start) == (1, {"journal": "abc"})
        assert reader.read() == []
        out.write(second[5:] + third)
        assert [each["step"] for each in reader.read()] == [1, 2]
        assert (reader.line, reader.read()) == (3, [])


RIGHT = [START, line(2, step=1), line(3, step=9)]


def read(path: Path, *written: bytes) -> list[int]:
    """Return the numbers of the lines that a reader takes."""
    path.write_bytes(b"".join(written))
    with path.open("rb") as file:
        return [each["line"] for each in Reader(file).read()]


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ([line(1, step=1)], 1),
        ([line(2, step=1)], 1),
        ([START, line(3, step=1)], 2),
        ([START, line(1, step=1)], 2),
        ([START, START], 2),
        ([*RIGHT, line(3, step=9)], 4),
        ([START, b"\n"], 2),
        ([START, b'{"line": 2, "step": 1}\n'], 2),
        ([START, line(2, journal.seed_of("abd"), step=1)], 2),
    ],
)
def test_a_reader_stops_at_a_line_that_is_not_right(
    tmp_path: Path, written: list[bytes], at: int
) -> None:
    said = f"^{layout.JOURNAL} is damaged at line {at}; --force starts the job over$"
    with pytest.raises(Damaged, match=said):
        read(tmp_path / "a", *written)


def test_a_record_is_that_of_its_job(tmp_path: Path) -> None:
    folder = tmp_path / "0123456789ab" / "attempt"
    folder.mkdir(parents=True)
    assert journal.record_of(folder, "settings.json") == {}
    for job, found in (("0123456789ab", True), ("0123456789ac", False)):
        files.write_record(folder / "settings.json", {"id": job, "settings": {}})
        assert bool(journal.record_of(folder, "settings.json")) == found


def test_how_many_lines_there_must_be_is_the_most_that_is_known_of_this_journal(
    tmp_path: Path,
) -> None:
    reader = Reader(BytesIO(START + line(2, tags={})))
    reader.read()
    journal.check(tmp_path, reader)
    for name, of, lines in (("outcome", "abc", 2), ("sent", "abc", 2), ("outcome", "abd", 3)):
        files.write_record(tmp_path / f"{name}.json", {"journal": of, "lines": lines})
        journal.check(tmp_path, reader)
    for name in ("outcome", "sent"):
        files.write_record(tmp_path / f"{name}.json", {"journal": "abc", "lines": 3})
        with pytest.raises(Damaged, match=r"the end of metrics.jsonl is lost"):
            journal.check(tmp_path, reader)
        (tmp_path / f"{name}.json").unlink()
