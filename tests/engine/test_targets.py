"""What a courier brings to the store and to Parquet files, and that neither delays the other."""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
from labjobs.files import write_record
from labjobs.job.journal import Journal
from labjobs.tracking import courier
from labjobs.tracking.costs import Meter
from labjobs.tracking.courier import Delivery, delivered
from labjobs.tracking.mlflow_store import Line, Run
from labjobs.tracking.parquet import ParquetFiles

JOB = "0123456789ab"


class Kept(Run):
    """A run in memory, in a store that is unavailable for the first attempts."""

    away = 0
    made: ClassVar["list[Kept]"] = []

    def __init__(self, folder: Path, about: dict[str, Any], journal: str) -> None:
        super().__init__(folder, about, journal)
        self.said, self.opened, self.status = dict[int, Line](), 0, ""
        Kept.made.append(self)

    def open(self) -> None:
        self.opened += 1
        self.id = "kept"

    def beat(self) -> None:
        pass

    def log(self, lines: Sequence[Line], mended: bool = False) -> None:
        self.said |= {line["line"]: line for line in lines if "line" in line}
        if self.opened <= self.away:
            raise OSError("away")

    def add(self, folder: Path, names: Iterable[str]) -> None:
        pass

    def end(self, status: str) -> None:
        self.status = status


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
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is in memory; and a courier ends itself by an alarm, which a test should not."""
    monkeypatch.setattr("labjobs.tracking.courier.signal.setitimer", lambda *_: None)
    monkeypatch.setattr(courier, "INTERVAL", 0.01)
    monkeypatch.setattr(courier, "Run", Kept)
    monkeypatch.setattr("labjobs.tracking.parquet.project_id", lambda: "0123456789abcdef")
    monkeypatch.setattr(Kept, "away", 0)


def carry(folder: Path, next_waits: bool = False) -> Kept:
    """Deliver a journal; returns its run as it is then."""
    meter = Meter(folder, os.getpid())
    courier.carry(folder, lambda seconds: True, lambda: next_waits, meter)
    return Kept.made[-1]


def test_a_store_that_is_away_gets_all_later_and_does_not_delay_the_tables(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARQUET_FOLDER", str(tmp_path / "tables"))
    monkeypatch.setattr(Kept, "away", 3)
    run = carry(folder)
    assert run.opened == 4 and run.status == "FINISHED"
    steps = [line["step"] for line in run.said.values() if "metrics" in line]
    assert steps == [1, 2, 3, 4, 5]
    assert capsys.readouterr().err.count("away") == 1  # once, not each time
    assert delivered(folder, Delivery) and delivered(folder, ParquetFiles)


def test_tables_that_are_away_do_not_delay_the_store(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tables").touch()
    monkeypatch.setenv("PARQUET_FOLDER", str(tmp_path / "tables"))
    assert carry(folder, next_waits=True).status == "FINISHED"
    assert delivered(folder, Delivery) and not delivered(folder, ParquetFiles)


def test_what_is_there_is_not_sent_to_the_next_courier_s_run_again(folder: Path) -> None:
    first, second = carry(folder), carry(folder)
    assert len(first.said) == 7 and second.said == {}


def test_a_job_goes_on_to_the_next_courier_while_the_store_is_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kept, "away", 3)
    carry(folder, next_waits=True)
    assert not delivered(folder, Delivery)


# Parquet files


def test_a_parquet_table_has_each_point_once_though_its_folder_was_away(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tmp_path / "tables"
    monkeypatch.setenv("PARQUET_FOLDER", str(tables))
    written = ParquetFiles(folder)
    written.send(over=False)
    journal = Journal(folder, "auto")
    journal.metrics(6, {"loss": math.nan, "lr": math.inf})
    journal.close("FINISHED")
    tables.rename(tmp_path / "elsewhere")
    tables.touch()
    for _ in range(2):
        with pytest.raises(OSError, match="Not a directory"):
            written.send(over=True)
    tables.unlink()
    (tmp_path / "elsewhere").rename(tables)
    written.send(over=True)
    (project,) = tables.iterdir()
    rows = pd.read_parquet(project / "metrics").sort_values(["name", "step"])
    assert rows.step.tolist() == [1, 2, 3, 4, 5, 6, 6]
    assert rows.value[:5].tolist() == [1 / step for step in range(1, 6)]
    assert math.isnan(rows.value.iloc[5]) and rows.value.iloc[6] == math.inf
    assert pd.read_parquet(project / "jobs").status.tolist() == ["FINISHED"]
    assert delivered(folder, ParquetFiles)
