"""Images, texts, tables, files and outputs that a loop logs: plain files, named in the journal."""

import csv

import numpy as np
import pandas as pd
import pytest
import torch
from labjobs.errors import SettingsError
from labjobs.results import tables
from labjobs.results.metrics import NoResults
from matplotlib.figure import Figure
from PIL import Image
from toy import Loop


def figure():
    made = Figure(figsize=(2, 1), dpi=50)
    made.subplots().plot([0, 1])
    return made


class Logging(Loop):
    """Logs something of each kind at each evaluation."""

    def __init__(self, image=None, name="grid"):
        super().__init__()
        self.image, self.name = image, name

    def evaluate(self, model, job, *others):
        if job.step % 14 == 0:
            job.log_image(self.name, self.image if self.image is not None else torch.rand(3, 4, 5))
            job.log_text("sample", "two lines\nof “text”")
            job.log_table("worst", [{"example": 3, "loss": 0.5}, {"example": 7, "note": "a, b"}])
            job.log_file(self.file)
            job.log_figure("curve", figure())
        return super().evaluate(model, job, *others)


def test_each_kind_is_a_plain_file_named_with_its_step(toy, tmp_path):
    loop = Logging()
    loop.file = tmp_path / "weights.bin"
    loop.file.write_bytes(b"\x00\x01")
    done = toy.done(loop=loop)
    names = {
        "grid-00000014.png",
        "sample-00000014.txt",
        "worst-00000014.csv",
        "weights-00000014.bin",
        "curve-00000014.png",
    }
    folder = done.folder / "logged"
    assert {file.name for file in folder.iterdir()} == names
    told = [name for line in done.journal() for name in line.get("files", ())]
    assert {f"logged/{name}" for name in names} <= set(told)
    assert Image.open(folder / "grid-00000014.png").size == (5, 4)
    assert Image.open(folder / "curve-00000014.png").size == (100, 50)
    assert (folder / "sample-00000014.txt").read_text() == "two lines\nof “text”"
    with (folder / "worst-00000014.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"example": "3", "loss": "0.5", "note": ""},
        {"example": "7", "loss": "", "note": "a, b"},
    ]
    assert (folder / "weights-00000014.bin").read_bytes() == b"\x00\x01"


@pytest.mark.parametrize(
    ("image", "mode"),
    [
        (torch.full((4, 5), 0.5), "L"),
        (torch.full((3, 4, 5), 0.5, dtype=torch.bfloat16), "RGB"),
        (torch.full((4, 5, 3), 128, dtype=torch.uint8), "RGB"),
        (np.full((4, 5, 4), 0.5, dtype=np.float32), "RGBA"),
        (torch.full((3, 4, 5), 0.5, requires_grad=True), "RGB"),
    ],
)
def test_images_of_any_layout(toy, tmp_path, image, mode):
    loop = Logging(image)
    loop.file = tmp_path / "file.txt"
    loop.file.write_text("")
    done = toy.done(loop=loop, epochs=2)
    (file,) = (done.folder / "logged").glob("grid*.png")
    with Image.open(file) as drawn:
        assert (drawn.mode, drawn.size) == (mode, (5, 4))
        assert np.abs(np.asarray(drawn).astype(int) - 128).max() <= 1


def test_pixels_that_are_cut_off_are_named(toy, tmp_path):
    loop = Logging(2 * torch.rand(3, 4, 5) - 1)
    loop.file = tmp_path / "file.txt"
    loop.file.write_text("")
    log = (toy.done(loop=loop).folder / "log.txt").read_text()
    assert "image grid: has pixels outside 0 to 1, which are clipped" in log


@pytest.mark.parametrize(
    ("image", "name", "said"),
    [
        (torch.zeros(5), "grid", "image 'grid': has the shape (5,), not (H, W), (C, H, W) or (N"),
        (None, "../grid", "'../grid' is not a valid file name"),
        (None, "", "'' is not a valid file name"),
    ],
)
def test_what_cannot_be_logged_is_refused_in_one_line(toy, tmp_path, image, name, said):
    loop = Logging(image, name)
    loop.file = tmp_path / "file.txt"
    done = toy.run(loop=loop)
    assert done.status == 1
    assert f"failed: {said}" in done.said


class Tables(Loop):
    """Logs tables of two names at each evaluation."""

    def evaluate(self, model, job, *others):
        job.log_table("worst", [{"name": "None", "value": job.step}, {"name": "nan, b"}])
        job.log_table("worst-2", [{"value": -1}])
        return super().evaluate(model, job, *others)


def row_of(done):
    about = {"job_id": "a", "run_id": "", "job_folder": str(done.folder), "lr": 0.1}
    return pd.DataFrame([about | {"diverged": False}])


def test_tables_that_cannot_be_read_are_said_in_one_line(toy):
    done = toy.run(loop=Tables(), epochs=1)
    jobs = row_of(done)
    with pytest.raises(NoResults, match=r"^the job a has logged no table best; see job\.log_"):
        tables.logged(jobs, "best")
    with pytest.raises(SettingsError, match="the jobs have no setting model; known: job_id"):
        tables.logged(jobs, "worst", settings=["model"])
    (done.folder / "logged" / "worst-00000007.csv").write_bytes(b"\xff")
    with pytest.raises(NoResults, match=r"^the table worst of the job a cannot be read \(.+\)$"):
        tables.logged(jobs, "worst")


def test_tables_are_read_back_with_their_steps(toy):
    jobs = row_of(toy.run(loop=Tables(), epochs=2))
    found = tables.logged(jobs, "worst", settings=["lr"])
    assert [*found] == ["job_id", "lr", "step", "name", "value"]
    by_step = found.groupby("step")
    assert {7, 14} <= {*by_step.groups}
    for step, rows in by_step:
        assert rows["name"].tolist() == ["None", "nan, b"]
        assert rows["value"].iloc[0] == step and np.isnan(rows["value"].iloc[1])
    assert {*found["job_id"]} == {"a"} and {*found["lr"]} == {0.1}
    assert {*tables.logged(jobs, "worst-2")["value"]} == {-1}
