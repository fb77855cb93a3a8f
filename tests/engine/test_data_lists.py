"""Lists of what jobs have read, with random damage: none is believed, and none ends in a trace."""

import fcntl
import os
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from byte_damage import MUTATIONS
from labjobs import layout
from labjobs.files import PROJECT, write_record
from labjobs.job import data_evidence
from labjobs.job.data_evidence import Places

COUNT = 60


def attempt(root: Path, job: str, contents: str) -> Path:
    """An attempt that has read a file for each letter, and has ended."""
    folder, places = root / "runs" / job / "01234567", places_of(root)
    folder.mkdir(parents=True)
    notes = data_evidence.Reads(folder / layout.DATA, places)
    (root / "data").mkdir(exist_ok=True)
    for name in contents:
        path = root / "data" / name
        path.write_text(name)
        notes.note(str(path), data_evidence.READ)
    digest, *_ = data_evidence.keep(folder, places, "")
    write_record(folder / "outcome.json", {"id": job, "data": digest})
    data_evidence.forget(folder)
    return folder


def places_of(root: Path) -> Places:
    return Places(root / "data", root / "runs")


def list_of(attempt: Path) -> Path:
    return attempt.parents[1] / ".data" / f"{data_evidence.digest(attempt)}.jsonl"


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_change_is_noticed_or_not_being_able_to_is_said(tmp_path, seed):
    chance = random.Random(seed)
    one, other = attempt(tmp_path, "0" * 12, "abc"), attempt(tmp_path, "1" * 12, "abcd")
    assert data_evidence.compare(one, places_of(tmp_path)) == ("", "")
    whole = list_of(one).read_bytes()
    damage = chance.choice(MUTATIONS)
    list_of(one).write_bytes(damage(bytearray(whole), chance, list_of(other).read_bytes()))
    (tmp_path / "data/b").write_text("another")
    forget()
    changed, unknown = data_evidence.compare(one, places_of(tmp_path))
    assert changed == "data/b changed" or (not changed and "is missing or damaged" in unknown)


def forget() -> None:
    """What a process remembers of lists is not for the next one."""
    data_evidence._listed.cache_clear()
    data_evidence._compare.cache_clear()


def test_a_damaged_line_of_a_killed_job_is_said(tmp_path):
    folder = attempt(tmp_path, "0" * 12, "abc")
    notes = folder / layout.DATA
    notes.write_bytes(list_of(folder).read_bytes())
    assert not data_evidence.damaged(notes)
    notes.write_bytes(notes.read_bytes()[:-5])  # killed while it wrote
    assert not data_evidence.damaged(notes) and len([*data_evidence._lines(notes)]) == 2
    notes.write_bytes(notes.read_bytes().replace(b"data/a", b"data/e"))
    assert data_evidence.damaged(notes)


def test_the_folders_themselves_are_no_files(tmp_path):
    """Libraries make folders that are there; so do students: `data_root.mkdir(exist_ok=True)`."""
    places = Places(tmp_path / "data", tmp_path / "runs")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "data")
    for folder in (places.data_root, PROJECT, link):
        assert places.name(str(folder)) == ""
    assert places.name(f"{link}/a") == places.name(f"{places.data_root}/a") == "data/a"


def test_what_has_the_same_stamp_is_the_same_file():
    """Images and old file systems have whole seconds, and the times of what they were made of."""
    same = {"st_dev": 1, "st_ino": 2, "st_mtime_ns": 3_000_000_004, "st_ctime_ns": 5_000_000_006}
    for field in same:
        one, other = SimpleNamespace(**same), SimpleNamespace(**same | {field: 7_000_000_008})
        assert data_evidence._stamp(one) and data_evidence._stamp(one) != data_evidence._stamp(
            other
        )
    for untrusted in (5_000_000_000, time.time_ns()):
        assert not data_evidence._stamp(SimpleNamespace(**same | {"st_ctime_ns": untrusted}))


@pytest.mark.parametrize(
    ("name", "is_data"),
    [("mlflow.db", 0), ("mlflow.db-wal", 0), ("mlflow.db.csv", 1), ("runs.csv", 1), (".git/a", 0)],
)
def test_what_is_data_in_the_project(tmp_path, name, is_data):
    assert bool(places_of(tmp_path).name(f"{PROJECT}/{name}")) == is_data


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_folder_that_is_listed_by_its_descriptor_is_known(tmp_path, monkeypatch, system):
    """Without /proc, on macOS, whose fcntl stands in here: shutil.rmtree lists folders so."""
    folder = os.open(tmp_path, os.O_RDONLY)
    if system == "darwin":
        told = {(folder, 50, 1024): os.fsencode(tmp_path).ljust(1024, b"\0")}
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(os, "readlink", None)
        monkeypatch.setattr(fcntl, "F_GETPATH", 50, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", lambda file, what, to: told[file, what, len(to)])
    assert [*data_evidence._uses("os.scandir", (folder,))] == [(f"{tmp_path}/", data_evidence.READ)]
    os.close(folder)
