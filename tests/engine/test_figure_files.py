"""The command line of a plot.py, from a store to the files: with figures of the tests' own."""

import base64
import json
import math
import re
import sys
from datetime import datetime

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import stored
from labjobs.results import figures, page, paper_tables, plotting, tables
from labjobs.results.metrics import NoResults
from toy import Settings


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with a sweep of twelve classifiers."""
    store = stored.fresh(tmp_path_factory.mktemp("store"))
    store.classifiers("sweep")
    store.keep_predictions()
    return store


@pytest.fixture
def draw(store, monkeypatch, capsys, tmp_path):
    """`plot.py` with flags and figures: its exit status, output and complaints."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)

    def draw(*flags, of_all=None, of_one=None, only=None, program="plot.py", **more):
        where = ("--experiment", "sweep", "--out", tmp_path)
        monkeypatch.setattr(sys, "argv", [program, *map(str, where + flags)])
        labels = {"lr": "learning rate"}
        status = plotting.main(Settings, of_all or {}, of_one or {}, only or {}, labels, **more)
        return status, *capsys.readouterr()

    return draw


def plain(jobs):
    """A figure of a line, whose caption says how many jobs there are."""
    fig, ax = figures.figure()
    ax.plot([1, 2])
    return fig, f"Of {len(jobs)} jobs."


def test_a_figure_and_a_table_of_one_name_are_not_written_into_one_folder(draw, tmp_path):
    said = draw(of_all={"both": plain}, printed={"both": paper_tables.results})
    assert said[0] == 2 and "a figure and a table are called both, and would be the same" in said[2]
    assert not any(tmp_path.glob("both*"))


def test_another_script_does_not_replace_the_figures_of_plot_py(draw, tmp_path, monkeypatch):
    assert draw(of_all={"one": plain})[0] == 0
    before = (tmp_path / "one.pdf").read_bytes()
    (tmp_path / "plot.py").touch()
    monkeypatch.setattr(plotting, "PROJECT", tmp_path)
    status, _, said = draw(of_all={"one": plain}, program="other.py")
    line = "one: its files are those of plot.py; give it another name in other.py\n"
    assert status == 1 and said.startswith(line), said
    assert (tmp_path / "one.pdf").read_bytes() == before


def missing(jobs):
    raise NoResults("nothing to draw; draw something")


def crowded(jobs):
    """A figure with seven faults."""
    fig, ax = figures.figure("column", 2.0)
    ax.set_title("tiny", fontsize=6)
    ax.text(0.5, 0.5, "one over", transform=ax.transAxes)
    ax.text(0.5, 0.5, "another", transform=ax.transAxes)
    fig.text(0.95, 0.01, "beyond the edge")
    fig.text(0.1, 0.5, "学")
    beyond = fig.add_axes((0.9, 0.6, 0.2, 0.2), xticks=[], yticks=[])
    beyond.set_title("outside", color="none")
    beyond.text(1, 0.8, "clipped", transform=fig.transFigure, ha="center", clip_on=True)
    return fig, ""


@pytest.mark.full
def test_every_format_has_the_same_bytes_again_and_says_where_it_comes_from(draw, tmp_path):
    flags = ("--format", "pdf,png,svg,tiff")
    figures_drawn = {"one": plain}
    assert draw(*flags, of_all=figures_drawn)[0] == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {*before} == {f"one.{kind}" for kind in ("pdf", "png", "svg", "tiff", "json", "tex")}
    assert draw(*flags, of_all=figures_drawn)[0] == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "one.json").rename(tmp_path / "moved.json")
    for path in (tmp_path / "moved.json", *tmp_path.glob("one.[pst][dnvi]*")):
        status, said, _ = draw("--provenance", path)
        assert status == 0
        about = {key: json.loads(value) for key, value in re.findall("(.+?): (.+)", said)}
        assert (about["commits"], about["venue"], len(about["jobs"])) == (["abc"], "icml", 12)
        assert about["shared"]["dataset"] == "digits" and about["shared"]["epochs"] == 20
        seeds, models = [0, 1, 2], ["convnet", "mlp"]
        assert about["varied"] == {"lr": [0.001, 0.01], "model": models, "seed": seeds}
        assert datetime.fromisoformat(about["newest"]).year > 2000


@pytest.mark.parametrize("name", ["x.pdf", "x.svg", "x.tex"])
def test_a_foreign_file_does_not_say_where_it_comes_from(draw, tmp_path, name):
    (tmp_path / name).write_text("%PDF")
    (tmp_path / "x.json").write_text("[]")
    status, _, said = draw("--provenance", tmp_path / name)
    assert (status, said.count("\n")) == (2, 1)
    assert "has no provenance information" in said


def test_what_would_not_print_right_is_named_and_not_written(draw, tmp_path):
    status, _, said = draw(of_all={"crowded": crowded})
    *faults, last = said.splitlines()
    assert status == 1
    assert faults[0].startswith(f"crowded: its font lacks {chr(23398)}; write other LABELS")
    assert faults[1] == 'crowded: "tiny" in the axes "tiny" is 6 pt, under 8'
    assert re.match(r'crowded: "clipped" .+ is cut by \d+.\d pt at the page.s edge', faults[2])
    assert re.match(r'crowded: "beyond the edge" is cut by \d+', faults[3])
    assert re.match(r'crowded: "one over" .+ and "another" .+ overlap$', faults[-2])
    assert faults[-1] == 'crowded: the axes "outside" reach beyond the page\'s edge'
    assert last == "crowded: not written; --unchecked writes it anyway"
    assert not list(tmp_path.iterdir())
    assert draw("--unchecked", of_all={"crowded": crowded})[0] == 0
    assert (tmp_path / "crowded.pdf").exists()


def test_a_pdf_has_its_size_and_truetype_fonts_whatever_is_set(draw, tmp_path):
    def careless(jobs):
        mpl.rcParams.update({"pdf.fonttype": 3, "savefig.bbox": "tight"})
        return plain(jobs)

    assert draw(of_all={"one": careless})[0] == 0
    data = (tmp_path / "one.pdf").read_bytes()
    assert b"/MediaBox [ 0 0 234 145.08 ]" in data  # 3.25 in, and 0.62 times that
    assert b"/FontFile2" in data and b"/Type3" not in data


def test_text_that_tex_sets_is_refused(draw):
    def by_tex(jobs):
        fig, _ = figures.figure()
        fig.text(0.5, 0.5, "loss", usetex=True)
        return fig, ""

    status, _, said = draw(of_all={"one": by_tex})
    assert status == 1
    assert said.startswith("one: its text is set by TeX, without TrueType fonts; leave text.usetex")


def test_what_is_left_out_for_one_reason_is_one_line(draw):
    drawn = {"one": missing, "two": missing, "three": plain}
    status, out, said = draw(of_all=drawn)
    assert (status, said) == (0, "left out one, two: nothing to draw; draw something\n")
    assert "three.pdf" in out
    assert draw(of_all={"one": missing})[0] == 1


def test_only_the_jobs_asked_for_are_drawn(draw, tmp_path):
    draw(of_all={"one": plain}, only={"model": "mlp", "lr": [0.01]})
    about = r"\caption{Of 3 jobs. Dataset digits, model mlp."
    about += " 3 jobs tried; all finished."
    about += " Left out: 9 jobs with other values of model and learning rate.}"
    assert about in (tmp_path / "one.tex").read_text()
    assert len(json.loads((tmp_path / "one.json").read_text())["jobs"]) == 3
    status, _, said = draw(of_all={"one": plain}, only={"modle": "mlp"})
    assert status == 2
    assert said == "plot.py: ONLY in plot.py: the jobs have no setting modle; did you mean model?\n"


def test_the_chosen_job_else_the_best(draw, store, tmp_path):
    def about(job):
        fig, _ = figures.figure()
        return fig, job.attrs["about"]

    assert draw(of_one={"one": about})[0] == 0
    best, words = re.fullmatch(
        r"\\caption\{job (.+), the best of 12 by validation accuracy \((.+)\) Dataset digits, .+\}",
        (tmp_path / "one.tex").read_text().splitlines()[1].replace("\\_", "_"),
    ).groups()
    run = max(
        store.client.search_runs([store.client.get_experiment_by_name("sweep").experiment_id]),
        key=lambda run: run.data.metrics["best_val_accuracy"],
    )
    params = run.data.params
    assert best == run.data.tags["job_id"]
    assert words == f"{params['model']}, learning rate {params['lr']}, seed {params['seed']}"
    other = best.replace(f"seed={params['seed']}", f"seed={(int(params['seed']) + 1) % 3}")
    assert draw("--job", other, of_one={"one": about})[0] == 0
    assert json.loads((tmp_path / "one.json").read_text())["jobs"] == [other]
    status, _, said = draw("--job", "nosuch", of_one={"one": about})
    assert (status, said) == (2, "plot.py: --job nosuch: no finished job has this id\n")


def test_predictions_that_are_not_of_classes_are_left_out(draw, store, tmp_path):
    def kept(job):
        found = tables.predictions(job.assign(job_folder=str(tmp_path)))
        return plain(found.classes)

    def said():
        return draw(of_one={"one": kept})[2]

    file = tmp_path / "predictions.npz"
    for content in (None, b"", b"PK", b"no archive"):
        if content is not None:
            file.write_bytes(content)
        assert said().startswith("left out one: no predicted classes of the job ")
        assert said().count("\n") == 1
    np.savez(file, label=np.zeros(3), predicted=np.zeros(3))
    assert "does not have a class from 0 to 999 for each example" in said()
    for number in (5000, -1):
        np.savez(file, label=np.full(3, number), predicted=np.zeros(3, int))
        assert "does not have a class from 0 to 999" in said()
    for kind in (bool, int):
        np.savez(file, label=np.zeros(3, kind), predicted=np.ones(3, kind))
        assert said() == ""
    (tmp_path / "settings.json").write_text('{"spec": {"classes": ["cat", "dog"]}}')
    place = [{"job_id": "x", "run_id": "", "job_folder": str(tmp_path)}]
    assert tables.predictions(pd.DataFrame(place)).classes == ["cat", "dog"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--venue", "neurip"), "--venue neurip: not known; did you mean neurips?"),
        (("--format", "pdf,jpg"), "--format pdf,jpg: unknown format 'jpg'; did you mean"),
        (("--fromat", "pdf"), "--fromat: no such flag; did you mean --format?"),
        (("--page", "--format", "pdf"), "--page: browsers show png or svg; name one in --format"),
        (("ranking",), "'ranking' is not a flag; see --help"),
        (("--format", ""), "--format : unknown format ''; known: pdf, png, svg, tiff"),
        (("--experiment", "nosuch"), "no experiment 'nosuch' in the tracking store; it has "),
    ],
)
def test_what_cannot_be_is_said_in_one_line(draw, tmp_path, flags, said):
    status, out, error = draw(*flags, of_all={"one": plain})
    assert (status, out) == (1 if flags[0] == "--experiment" else 2, "")
    assert error.startswith(f"plot.py: {said}") and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_curve_on_a_page_has_the_points_that_can_be_drawn(tmp_path):
    points = [(1, math.inf), (2, 0.5), (3, math.nan), (4, 0.25)]
    jobs = page.Jobs(["job_id"], [["a"], ["b"]], "val_loss", {"a": points, "b": points[:1]})
    page.write(tmp_path / "page.html", "t", "", [], jobs)
    data = re.search(r'id="data">(.*?)</script>', (tmp_path / "page.html").read_text(), re.DOTALL)
    assert json.loads(data[1])["curves"] == {"a": [[2, 0.5], [4, 0.25]]}


def test_a_page_has_the_figures_with_captions_and_all_jobs(draw, store, tmp_path):
    def hostile(jobs):
        return plain(jobs)[0], "A caption that ends a </script> & an element."

    status, said, _ = draw("--page", of_all={"one": hostile})
    page = (tmp_path / "page.html").read_text("utf-8")
    assert (status, said.splitlines()[-1]) == (0, str(tmp_path / "page.html"))
    assert "A caption that ends a &lt;/script&gt; &amp; an element." in page
    (image,) = re.findall('data:image/png;base64,([^"]+)', page)
    assert base64.b64decode(image) == (tmp_path / "one.png").read_bytes()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    jobs = tables.jobs("sweep", Settings).set_index("job_id")
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
    assert {row["job_id"]: row["best_val_loss"] for row in rows} == dict(jobs["best_val_loss"])
    assert {*data["columns"]} >= {"state", "lr", "seed"} and "batch_size" not in data["columns"]
    curves = tables.curves(jobs.reset_index(), data["curve"]).groupby("job_id")
    assert {job: len(points) for job, points in data["curves"].items()} == dict(curves.size())
