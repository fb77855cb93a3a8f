"""Targets of a courier: what each receives, and that none of them delays the others."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from labjobs.files import write_record
from labjobs.job.journal import Journal
from labjobs.tracking import courier
from labjobs.tracking.courier import Delivery, delivered
from labjobs.tracking.mlflow_store import Line, ParquetFiles, Target

JOB = "0123456789ab"


class Kept(Target):
    """A target in memory, which is unavailable for the first attempts."""

    NAME, NOTED_IN = "memory", "sent-kept.json"
    away = 0

    def __init__(self, folder: Path, about: dict[str, Any], journal: str) -> None:
        self.about, self.said = about, dict[int, Line]()
        self.opened, self.status = 0, ""

    @staticmethod
    def place() -> str:
        return "here"

    @staticmethod
    def check() -> None:
        pass

    @staticmethod
    def reason(error: BaseException) -> str:
        return str(error)

    def open(self) -> None:
        self.opened += 1
        self.id = "kept"

    def log(self, lines: Sequence[Line]) -> None:
        self.said |= {line["line"]: line for line in lines}
        if self.opened <= self.away:
            raise OSError("away")

    def end(self, status: str) -> None:
        self.status = status


class Away(Kept):
    """A target that is unavailable for the first three attempts."""

    NOTED_IN, away = "sent-away.json", 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An attempt's folder with a whole journal of five steps."""
    folder = tmp_path / JOB / "attempt"
    folder.mkdir(parents=True)
    journal = Journal(folder, "auto")
    about = {"id": JOB, "owner": "o", "code": "c", "journal": journal.start}
    about |= {"name": "mlp", "script": "run", "settings": {"lr": 0.1}}
    write_record(folder / "settings.json", about)
    for step in range(1, 6):
        journal.metrics(step, {"loss": 1 / step})
    journal.close("FINISHED")
    return folder


@pytest.fixture(autouse=True)
def no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A courier ends itself by an alarm; a test should not."""
    monkeypatch.setattr("labjobs.tracking.courier.signal.setitimer", lambda *_: None)
    monkeypatch.setattr(courier, "INTERVAL", 0.01)


def carry(folder: Path, *kinds: type[Kept]) -> Iterator[Kept]:
    """Deliver a journal to targets; yields them as they are then."""
    deliveries = [Delivery(folder, kind) for kind in kinds]
    courier.carry(deliveries, lambda seconds: True, lambda: False)
    for each in deliveries:
        assert isinstance(each._target, Kept)
        yield each._target


def test_one_that_is_away_gets_all_later_and_holds_up_no_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away, kept = carry(folder, Away, Kept)
    assert (kept.opened, away.opened) == (1, 4)
    for each in (away, kept):
        steps = [line["step"] for line in each.said.values() if "metrics" in line]
        assert steps == [1, 2, 3, 4, 5] and each.status == "FINISHED"
    assert capsys.readouterr().err == "away\n"  # once, not each time
    assert delivered(folder, Away) and delivered(folder, Kept)


def test_what_is_there_is_not_sent_to_the_next_courier_s_copy_again(folder: Path) -> None:
    (first,) = carry(folder, Kept)
    (second,) = carry(folder, Kept)
    assert len(first.said) == 7 and second.said == {}


def test_another_target_s_note_does_not_count(folder: Path) -> None:
    (kept,) = carry(folder, Kept)
    assert not delivered(folder, Away)
    (away,) = carry(folder, Away)
    assert kept.said == away.said


def test_a_job_goes_on_to_the_next_courier_while_a_target_is_away(folder: Path) -> None:
    delivery = Delivery(folder, Away)
    courier.carry([delivery], lambda seconds: True, lambda: True)
    assert not delivered(folder, Away)


# Parquet files


def test_a_parquet_table_has_each_point_once_though_its_folder_was_away(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tmp_path / "tables"
    monkeypatch.setenv("PARQUET_FOLDER", str(tables))
    monkeypatch.setattr("labjobs.tracking.mlflow_store.project_id", lambda: "0123456789abcdef")
    delivery = Delivery(folder, ParquetFiles)
    delivery.send()
    journal = Journal(folder, "auto")
    journal.metrics(6, {"loss": math.nan, "lr": math.inf})
    journal.close("FINISHED")
    delivery.read()
    tables.rename(tmp_path / "elsewhere")
    tables.touch()
    for _ in range(2):
        with pytest.raises(OSError, match="Not a directory"):
            delivery.send()
    tables.unlink()
    (tmp_path / "elsewhere").rename(tables)
    delivery.send()
    delivery.end(delivery.status)
    (project,) = tables.iterdir()
    rows = pd.read_parquet(project / "metrics").sort_values(["name", "step"])
    assert rows.step.tolist() == [1, 2, 3, 4, 5, 6, 6]
    assert rows.value[:5].tolist() == [1 / step for step in range(1, 6)]
    assert math.isnan(rows.value.iloc[5]) and rows.value.iloc[6] == math.inf
    assert pd.read_parquet(project / "jobs").status.tolist() == ["FINISHED"]
    assert delivered(folder, ParquetFiles)
