"""What `python plot.py` of a new project draws of jobs of many kinds, and what its captions say."""

import json
import math
import re
import runpy
import shlex
import sys
import time
import zlib
from itertools import product
from pathlib import Path

import numpy as np
import odd_grids
import pandas as pd
import pytest
import recomputed
import stored
from faults import some
from labjobs import layout
from labjobs.files import record
from labjobs.job import identity
from labjobs.results import figure_files, plotting, searches, tables
from labjobs.settings import CONFIRMING
from labjobs.sweeps import search
from repository import REPOSITORY
from stored import CLASSIFIER
from test_recipes import blocks

PLOT = REPOSITORY / "{{cookiecutter.project_slug}}" / "plot.py"
ALL = (
    *("learning-curves", "metric-vs-setting", "metric-map", "ranking", "differences"),
    *("time-to-target", "throughput", "cost-accuracy", "confusion"),
)
KINDS = "pdf", "png"
DPI = 300
DEVICES = {"device": "CPU"}, {"device": "H100"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = stored.fresh(tmp_path_factory.mktemp("store"))
    store.classifiers("sweep")
    store.keep_predictions()
    return store


class Drawn:
    """What a command has drawn: its exit status, complaints, sizes of files, and captions."""

    def __init__(self, status, out, said, folder):
        self.status, self.said, self.folder = status, said, folder
        lines = re.findall(r"^(.+)  ([\d.]+) x ([\d.]+) in$", out, re.MULTILINE)
        self.tables = re.findall(r"^.+/(.+)\.tex  [\d.]+ in wide$", out, re.MULTILINE)
        assert len(lines) + len(self.tables) == len(out.splitlines())
        self.files = [(Path(path), float(width), float(height)) for path, width, height in lines]
        self.names = [path.stem for path, _, _ in self.files if path.suffix == ".pdf"]

    def caption(self, name):
        text = (self.folder / f"{name}.tex").read_text().split("\\caption{")[1].rsplit("}\n", 2)[0]
        for latex, plain in (("--", "\N{EN DASH}"), (r"$\geq$", "≥"), (r"$\leq$", "≤"), ("\\", "")):
            text = text.replace(latex, plain)
        return text


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, by name."""
    found, save = {}, figure_files.save

    def keep(figure, stem, *args):
        found[stem.name] = figure
        return save(figure, stem, *args)

    monkeypatch.setattr(figure_files, "save", keep)
    return found


@pytest.fixture
def edit(monkeypatch, tmp_path):
    """Change the student's files: by name, a text and what takes its place."""

    def edit(**changes):
        for name, (old, new) in changes.items():
            text = (PLOT.parent / f"{name}.py").read_text()
            assert old in text
            (tmp_path / f"{name}.py").write_text(text.replace(old, new))
        monkeypatch.syspath_prepend(PLOT.parent)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "settings", raising=False)
        monkeypatch.setattr(sys.modules[__name__], "PLOT", tmp_path / "plot.py")

    return edit


@pytest.fixture
def plot(monkeypatch, capsys):
    """`python plot.py`, in this process: its exit status, what it printed, and its complaints."""

    def plot(*words):
        monkeypatch.setattr(sys, "argv", ["plot.py", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(PLOT), run_name="__main__")
        return end.value.code, *capsys.readouterr()

    return plot


@pytest.fixture
def draw(plot, store, monkeypatch, tmp_path):
    """`python plot.py` as PDF; of its figures and tables `only` some, if these
    are named, since each takes a second."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    whole, read = plotting.main, identity.read
    # The jobs stored here declare their metrics; the project's METRICS, of today, are others.
    monkeypatch.setattr(identity, "read", lambda script: read(script)._replace(metrics={}))

    def draw(experiment, *flags, only=(), formats=("--format", "pdf")):
        def some_of(drawings):
            return {name: draw for name, draw in drawings.items() if not only or name in only}

        def main(kind, of_all, of_one, *others, of_tasks):
            *others, printed = others
            assert {*only} <= {*of_all, *of_one, *of_tasks, *printed}
            kept = some_of(of_all), some_of(of_one), *others, some_of(printed)
            searched = some_of(searches.FIGURES)
            return whole(kind, *kept, of_tasks=some_of(of_tasks), of_searches=searched)

        monkeypatch.setattr(plotting, "main", main)
        words = ("--experiment", experiment, "--out", tmp_path, *formats, *flags)
        return Drawn(*plot(*words), tmp_path)

    return draw


def assert_prints_right(path, width, height):
    """Page or pixels as printed; in a PDF TrueType fonts only and no text under 8 pt."""
    data = path.read_bytes()
    if path.suffix == ".png":
        pixels = [int.from_bytes(data[i : i + 4]) for i in (16, 20)]
        assert pixels == [round(width * DPI), round(height * DPI)]
        return
    (page,) = re.findall(rb"/MediaBox \[([^]]+)\]", data)
    assert [float(side) for side in page.split()] == pytest.approx([0, 0, 72 * width, 72 * height])
    assert b"/Type3" not in data
    assert b"/FontFile2" in data
    streams = [zlib.decompress(s) for s in re.findall(rb"stream\r?\n(x.+?)endstream", data, re.S)]
    sizes = [float(size) for s in streams for size in re.findall(rb"/F\S+ ([\d.]+) Tf", s)]
    assert min(sizes) >= 8


def test_the_default_sweep(draw):
    drawn = draw("sweep", formats=())
    assert (drawn.status, drawn.said) == (0, "")
    assert (tuple(drawn.names), drawn.tables) == (ALL, ["main", "ablation", "cost"])
    assert {path.name for path, _, _ in drawn.files} == {f"{n}.{k}" for n in ALL for k in KINDS}
    for file in drawn.files:
        assert_prints_right(*file)
    assert drawn.caption("learning-curves").startswith(
        "Validation accuracy by optimizer step: mean of 3 seeds, 95% t interval; single jobs are "
        "faint."
    )
    assert drawn.caption("metric-map") == (
        "Validation accuracy of the weights kept: mean of 3 seeds; brighter is better. Dataset "
        "digits. 12 jobs tried; all finished."
    )
    assert "36 of 360 misclassified: job dataset=digits" in drawn.caption("confusion")
    assert "accuracy of ≥ 0.9" in drawn.caption("time-to-target")
    assert (drawn.folder / "main.md").read_text().startswith("| model, learning rate | test")
    assert drawn.caption("differences").startswith(
        "Test results compared with those of the baseline (convnet, learning rate 0.01), with 95%"
    )
    assert "from the first (convnet, learning rate 0.01) in test" in drawn.caption("ranking")


def height_of_axes(figure):
    """The fraction of a figure's height that its axes take, one below another."""
    axes = {round(ax.get_position().y0, 3): ax for ax in figure.axes if ax.get_subplotspec()}
    return sum(ax.get_position().height for ax in axes.values())


@pytest.mark.full
def test_axes_take_at_least_70_percent_of_the_height(draw, figures):
    draw("sweep")
    assert {*figures} == {*ALL}
    for name, figure in figures.items():
        assert height_of_axes(figure) >= 0.7, name
    assert figures["time-to-target"].axes[0].get_ylabel().split() == (
        ["fraction", "of", "jobs", "with", "validation", "accuracy", "≥", "0.9"]
    )


@pytest.mark.long
def test_series_stand_near_their_places(draw, store, figures):
    """No point seems to have another value, and the caption says that series are moved."""
    for lr in (16, 32, 64):
        for model in ("mlp", "convnet", "vit"):
            accuracies(store, "beside", [0.5, 0.7], model=model, lr=lr)
    said = " Series are moved sideways, so that none hides another."
    assert said in draw("beside").caption("metric-vs-setting")
    (ax,) = figures["metric-vs-setting"].axes
    places = [line.get_xdata() for line in ax.get_lines() if line.get_label()[0] != "_"]
    assert len(places) == 3
    quarter = 4  # of the distance between the two nearest values
    assert np.array(places) == pytest.approx(np.array([[16, 32, 64]] * 3), abs=quarter)
    for lr in (16, 32):
        accuracies(store, "alone", [0.5, 0.7], lr=lr)
    assert said not in draw("alone").caption("metric-vs-setting")


def test_speeds_of_devices_are_not_mixed_and_jobs_that_diverged_have_none(draw, store):
    for seed, device in enumerate(("A100", "H100", "A100", "H100")):
        how = {"monitor": "val_accuracy", "seed": seed, "tags": {"device": device}}
        store.job("speeds", {"val_accuracy": [0.5, 0.6]}, **how)
    store.job("speeds", {"val_accuracy": [0.1]}, status="FAILED", **how | {"tags": {}, "seed": 9})
    caption = draw("speeds", only=["throughput"]).caption("throughput")
    assert "in the last evaluation interval, on A100, H100, of both settings: mean of" in caption
    assert "diverged as the worst" not in caption


def test_an_empty_note_has_a_name(draw, store):
    for note in ("", "50% & more"):
        accuracies(store, "notes", [0.5, 0.7], note=note)
    table = (draw("notes", only=["main"]).folder / "main.md").read_text()
    rows = re.findall(r"^\| (note [(5].+?) \|", table, re.MULTILINE)
    assert rows == ["note (empty)", "note 50% & more"]


def test_a_ranking_goes_by_validation_and_says_so(draw, store):
    for lr, val, test in ((0.1, 0.8, 0.5), (0.2, 0.7, 0.9)):
        for seed in range(3):
            tests = {"test_accuracy": test + 0.01 * seed * lr}
            curves = {"val_accuracy": [val + 0.01 * lr * seed]}
            how = {"monitor": "val_accuracy", "lr": lr, "seed": seed}
            store.job("ranked", curves, tests=tests, **how)
    drawn = draw("ranked", only=["ranking", "differences", "confusion"])
    caption = drawn.caption("ranking")
    assert caption.startswith("Validation accuracy of both settings: mean of 3 seeds, 95% t")
    assert "Nothing is chosen by test results." in caption
    assert (
        "Better in test accuracy than the first (learning rate 0.1): learning rate 0.2 (p"
        in caption
    )
    assert drawn.caption("differences").startswith(
        "Test results compared with those of the baseline (learning rate 0.1), with"
    )
    assert "lr=0.1 " in drawn.caption("confusion")


def test_another_metric_is_shown_of_what_the_monitored_one_chooses(draw, store):
    for lr, loss, accuracy in ((0.1, 0.2, 0.8), (0.2, 0.4, 0.9)):
        for seed in range(3):
            curves = {"val_loss": [loss + 0.01 * seed], "val_accuracy": [accuracy + 0.01 * seed]}
            tests = {"test_accuracy": accuracy - 0.001 * seed * lr}
            how = {"monitor": "val_loss", "lr": lr, "seed": seed}
            store.job("another", curves, tests=tests, **how)
    drawn = draw("another", "--metric", "accuracy", only=["ranking", "differences"])
    start = "Validation accuracy of both settings by validation cross-entropy: mean"
    assert drawn.caption("ranking").startswith(start)
    assert "than the first (learning rate 0.1): learning rate 0.2" in drawn.caption("ranking")
    assert "the baseline (learning rate 0.1)" in drawn.caption("differences")


@pytest.mark.parametrize("what", ["order", "index", "data"])
def test_examples_are_paired_only_if_they_are_the_same(draw, store, tmp_path, what):
    """One rate is right where the other is, and a little more often: that is certain of the same
    examples, in any order, and not of as many others."""
    places, other = np.arange(400), what != "order"
    for lr, seed in product((0.1, 0.2), range(3)):
        folder = tmp_path / f"job-{lr}-{seed}"
        folder.mkdir()
        right = places % 20 < (15 if lr == 0.1 else 16)
        kept = {"index": places, "label": places % 3, "accuracy": right}
        if lr == 0.2 and what in kept:
            kept[what] = kept[what] + 1
        if what == "data":
            del kept["label"]
        order = np.random.default_rng(seed).permutation(places) if what == "order" else places
        kept = {name: array[order] for name, array in kept.items()}
        np.savez(folder / "predictions.npz", **kept)
        store.job(
            f"examples {what}",
            {"val_accuracy": [1 - lr]},
            tests={"test_accuracy": right.mean()},
            tags={"job_folder": str(folder), "data": str(lr if what == "data" else "")},
            **{"monitor": "val_accuracy", "lr": lr, "seed": seed},
        )
    caption = draw(f"examples {what}", only=["ranking"]).caption("ranking")
    assert "over 3 seeds and 400 test examples." in caption
    assert ("Better in test accuracy than the first (learning rate 0.1)" in caption) != other
    assert ("Cannot be told apart from the first (learning rate 0.1)" in caption) == other
    assert f"({'not all paired' if other else 'paired by repeat'};" in caption


def trials(store, experiment, words, result, stopped=(), more=None, **settings):
    """Store the trials of a line `search`, whose settings have these results; NaN has diverged."""
    for job, draw in search.jobs(shlex.split(words)):
        given = {flag[2:].replace("-", "_"): value for flag, value in search.flags(job).items()}
        how = {"optimizer": "adam", "momentum": "0.9", "dataset": "digits", **given, **settings}
        how |= {"monitor": "val_loss", "seed": 0}
        loss = result({name: float(value) for name, value in given.items() if name != "optimizer"})
        tags = {"search": json.dumps(draw | (more or {}))}
        if draw["index"] in stopped:
            tags["stopped"] = "at 2e"
            store.job(
                experiment, {"cpu_hours": [0.5]}, status="KILLED", mark=False, tags=tags, **how
            )
        elif math.isnan(loss):
            store.job(experiment, {}, status="FAILED", tags=tags, **how)
        else:
            store.job(experiment, {"val_loss": [3.0, loss]}, seconds=3600, tags=tags, **how)


CONDITION = "--optimizer 'choice sgd adam' --momentum 'uniform 0.5 0.99 if --optimizer=sgd'"


@pytest.mark.long
def test_a_search_has_figures_of_its_own(draw, store, figures):
    """Every trial is there, at its place, with what its settings and its result are."""
    words = f"40 seed=1 --lr 'log 1e-4 1e-1' {CONDITION} -- --width 8"
    trials(store, "search", words, lambda s: math.nan if s["lr"] < 2e-4 else -math.log10(s["lr"]))
    drawn = draw("search", formats=())
    assert drawn.status == 0
    assert [name for name in drawn.names if name.startswith("search-")] == SEARCHES
    were = "learning rate, momentum and optimizer were drawn by a search; see search-slices"
    assert f"left out metric-vs-setting, metric-map: {were}\n" in drawn.said
    for file in drawn.files:
        assert_prints_right(*file)
    table = pd.read_csv(drawn.folder / "jobs.csv")
    lost = int((table["state"] == "diverged").sum())
    crosses = f"of 40 trials; the best quarter is filled, crosses are {lost} trials that diverged."
    assert crosses in drawn.caption("search-slices")
    said = " The best quarter touches the end of the range of learning rate, 0.1: a wider one may"
    assert said in drawn.caption("search-slices")
    assert "Not above chance: optimizer, momentum." in drawn.caption("search-importance")
    by_setting = {ax.get_xlabel(): ax for ax in figures["search-slices"].axes}
    assert [*by_setting] == ["learning rate", "optimizer", "momentum"]
    assert by_setting["learning rate"].get_xscale() == "log"
    of_sgd = table["optimizer"] == "sgd"
    for name, ax in by_setting.items():
        cross, every, best = (np.column_stack(line.get_data()) for line in ax.lines)
        every = every[np.isfinite(every).all(axis=1)]
        own = of_sgd if name == "momentum" else of_sgd | ~of_sgd
        finished = table[own & (table["state"] == "finished")]
        assert len(every) == len(finished), name
        assert sorted(every[:, 1]) == pytest.approx(sorted(finished["best_val_loss"]))
        assert name == "momentum" or (len(cross), len(best)) == (lost, 10)
    labels = [label.get_text() for label in by_setting["optimizer"].get_xticklabels()]
    places = [labels[round(x)] for x in by_setting["optimizer"].lines[1].get_xdata()]
    assert places == [
        *table.set_index("lr").loc[by_setting["learning rate"].lines[1].get_xdata()]["optimizer"]
    ]
    by_trial, by_hours = figures["search-best"].axes
    best = table["best_val_loss"].min()
    assert by_trial.lines[-1].get_ydata()[-1] == by_hours.lines[-1].get_ydata()[-1] == best
    hours = 40 - lost + lost * 2 / 3600  # those that diverged took 2 s each
    assert by_hours.lines[-1].get_xdata()[-1] == pytest.approx(hours)
    median, better, worse = (line.get_ydata() for line in figures["search-expected"].axes[0].lines)
    results = np.sort(table["best_val_loss"].fillna(math.inf))
    assert median[[0, -1]] == pytest.approx([results[19], best])
    assert (worse[np.isfinite(worse)] >= median[np.isfinite(worse)]).all()
    assert (better[np.isfinite(better)] <= median[np.isfinite(better)]).all()


SEARCHES = [f"search-{kind}" for kind in ("slices", "expected", "best", "importance", "parallel")]


@pytest.mark.long
def test_trials_that_are_no_sample_have_no_band(draw, store, figures):
    words = "12 --lr 'log 1e-4 1e-1' -- --width {}"
    loss = lambda settings: settings["lr"]  # noqa: E731
    trials(store, "chosen", words.format(8), loss, stopped=range(3, 12), model="mlp")
    proposed = {"proposal": "tuned", "generation": 2}
    trials(store, "chosen", words.format(8), loss, more=proposed, model="convnet")
    drawn = draw("chosen")
    why = ("mlp: halving has stopped 9 of its trials", "its settings follow from earlier results")
    assert (
        f"left out search-expected: no search is a sample of its ranges ({why[0]}; " in drawn.said
    )
    assert "left out search-importance: importances need 8 trials that are a sample" in drawn.said
    assert all(each in drawn.caption("search-best") for each in why)
    assert "of 12 trials (mlp) and 12 trials (tuned, convnet)" in drawn.caption("search-slices")
    _, by_hours = figures["search-best"].axes
    ends = {line.get_label(): max(line.get_xdata(), default=0) for line in by_hours.lines}
    assert (ends["mlp"], ends["tuned, convnet"]) == pytest.approx((3 + 9 * 0.5, 12))
    until = "until 3 without improvement --at-most " + words.format(16)
    trials(store, "chosen", until, loss, model="mlp")
    trials(store, "chosen", words.format(32), loss, model="mlp")
    drawn = draw("chosen")
    assert "as expected from 12 trials (mlp, width 32)" in drawn.caption("search-expected")
    assert ": its results decided when it ended" in drawn.caption("search-expected")


def test_a_setting_that_applies_to_some_trials_divides_no_search(draw, store):
    """Nobody has varied it."""
    words = shlex.split(f"8 seed=1 --lr 'log 1e-4 1e-1' {CONDITION}")
    for number, (job, drawn) in enumerate(search.jobs(words)):
        given = {"momentum": None} | {f[2:]: value for f, value in search.flags(job).items()}
        given["nesterov"] = False if given["optimizer"] == "sgd" else None
        how = {"tags": {"search": json.dumps(drawn)}, "monitor": "val_loss", "seed": 0}
        store.job("divided", {"val_loss": [number + 1.0]}, **how, **given)
    jobs = tables.jobs("divided")
    assert jobs["optimizer"].nunique() == 2
    jobs.attrs["nested"] = ["momentum", "nesterov"]
    (found,) = searches.searches(jobs)
    assert len(found.trials) == 8


def test_a_search_without_results_is_left_out(draw, store):
    words = "9 --lr 'log 1e-4 1e-1' -- --width {}"
    trials(store, "few", words.format(8).replace("9", "1", 1), lambda settings: settings["lr"])
    drawn = draw("few")
    why = "fewer than two trials of a search have trained to their end (without those that "
    assert f"left out {', '.join(SEARCHES)}: {why}halving has stopped)" in drawn.said


@pytest.mark.long
def test_an_average_over_many_tasks(draw, store, edit, figures):
    """The figures of all tasks, with the recipe's in plot.py as a student has put it there."""
    for task, model, seed in product(range(5), ("mlp", "convnet"), range(3)):
        accuracy = 0.5 + 0.1 * task * (model == "convnet") + 0.001 * seed
        how = {"dataset": f"task {task}", "model": model, "seed": seed, "monitor": "val_accuracy"}
        lost = (task, model, seed) == (4, "mlp", 0)
        status = "FAILED" if lost else "FINISHED"
        tests = {"test_accuracy": accuracy}
        store.job("many", {"val_accuracy": [accuracy]}, tests=tests, status=status, **how)
    own = (
        "import numpy as np\nfrom scipy.stats import trim_mean\n"
        "from labjobs.results import groups, intervals, style\n"
    )
    (recipe,) = blocks("An average over many tasks")
    start = '\n\nif __name__ == "__main__":'
    edit(plot=(start, f"\n\n{own}{recipe}{start}"))
    drawn = draw("many", formats=())
    assert (drawn.status, drawn.names[-2:]) == (0, ["by-task", "over-tasks"])
    for file in drawn.files:
        assert_prints_right(*file)
    assert drawn.caption("by-task").startswith("Test accuracy on each task; open points are single")
    assert " Task 3: Test intervals are over 3 seeds. Task 4: Test" in drawn.caption("by-task")
    assert "Diverged, so left out of means: 1 of 3 jobs (mlp)" in drawn.caption("by-task")
    assert height_of_axes(figures["by-task"]) >= 0.7
    assert drawn.caption("over-tasks").startswith("Test accuracy on 5 tasks: (a) the fraction of")


@pytest.mark.full
def test_the_same_jobs_give_the_same_bytes_whatever_else_is_in_the_store(draw, store, tmp_path):
    before = {path.name: path.read_bytes() for path, _, _ in draw("sweep", formats=()).files}
    settings = {"dataset": "digits", "epochs": 20, "monitor": "val_accuracy", "note": ""}
    settings |= {"model": "mlp", "lr": 1e-3, "seed": 2}  # which has finished
    for status in ("FAILED", "KILLED", "FINISHED"):
        store.job("sweep", {"val_accuracy": [0.1]}, status=status, mark=False, **settings)
    store.client.delete_run(store.job("sweep", {"val_accuracy": [0.1]}, **settings))
    after = draw("sweep", formats=()).files
    assert {path.name: path.read_bytes() for path, _, _ in after} == before


def test_every_job_that_was_tried_is_counted(draw, store):
    how = {"monitor": "val_accuracy", "lr": 0.1}
    for seed in range(3):
        store.job("tried", {"val_accuracy": [0.5, 0.95]}, seed=seed, **how)
    store.job("tried", {"val_accuracy": [0.5]}, status="FAILED", seed=3, **how)
    store.job("tried", {"val_accuracy": [0.5]}, status="FAILED", mark=False, seed=4, **how)
    store.job("tried", {}, status="KILLED", mark=False, seed=0, monitor="val_accuracy", lr=0.2)
    beat = {"heartbeat": str(time.time())}
    store.job("tried", {}, status="RUNNING", mark=False, seed=5, tags=beat, **how)
    drawn = draw("tried")
    assert len(drawn.names) == 4
    said = " Of 7 jobs tried, 3 finished: 1 diverged, 1 failed, 1 paused or interrupted, 1 running."
    for name in drawn.names:
        assert drawn.caption(name).endswith(said), name


def test_figures_that_are_not_drawn_do_not_stay(draw, store):
    how = {"monitor": "val_accuracy", "seed": 0}
    for lr in (0.1, 0.2):
        store.job("once", {"val_accuracy": [0.5]}, lr=lr, **how)
    first = draw("once", formats=("--format", "pdf,svg"))
    assert "ranking" in first.names
    (first.folder / "ranking.json.txt").write_text("the student's")
    record = (first.folder / "ranking.json").read_text()
    for name, by in (("own", "plot.py"), ("of-another", "plot_more.py")):
        (first.folder / f"{name}.json").write_text(
            record.replace('"program": "plot.py"', f'"program": "{by}"')
        )
        (first.folder / f"{name}.tex").write_text("")
    store.job("then", {"val_accuracy": [0.5]}, lr=0.1, **how)
    drawn = draw("then")
    assert drawn.status == 0
    there = {path.name.split(".")[0] for path in drawn.folder.iterdir() if path.is_file()}
    others = {"results", "jobs", "ranking", "of-another"}
    assert there == {*drawn.names, *drawn.tables, *others}
    assert [path.name for path in drawn.folder.glob("ranking*")] == ["ranking.json.txt"]
    assert not [*drawn.folder.glob("*.svg")]
    assert (drawn.folder / "old" / "ranking.tex").exists()
    assert f"moved what was not written this time to {drawn.folder / 'old'}: " in drawn.said
    before = {*drawn.folder.rglob("*")}
    drawn = draw("nosuch")
    assert drawn.status == 1 and "moved" not in drawn.said
    assert {*drawn.folder.rglob("*")} == before


def accuracies(store, experiment, values, count=3, **how):
    """Store repeats with these validation results, one after another."""
    for seed in range(count):
        final = [value + 0.01 * seed for value in values]
        tests = {"test_accuracy": final[-1]}
        how |= {"monitor": "val_accuracy", "seed": seed}
        store.job(experiment, {"val_accuracy": final}, tests=tests, **how)


def test_differences_over_some_repeats_say_so(draw, store):
    for lr, count, value in ((0.1, 3, 0.9), (0.2, 6, 0.5), (0.3, 2, 0.4)):
        accuracies(store, "shared", [value], count, lr=lr)
    drawn = draw("shared", only=["differences", "ablation"])
    shared = " Differences are over the repeats that both have."
    assert " Test intervals are over 3 seeds." in drawn.caption("differences")
    assert shared in drawn.caption("differences")
    table = (drawn.folder / "ablation.md").read_text()
    assert shared in table and "| learning rate: 0.1 → 0.3 | \N{MINUS SIGN}0.500 |" in table
    records = pd.read_csv(drawn.folder / "ablation.csv")
    assert records["difference_repeats"].dropna().tolist() == [3]


@pytest.mark.full
def test_captions_say_where_means_end_and_what_is_not_compared(draw, store):
    for model, count in (("mlp", 3), ("vit", 3), ("convnet", 2)):
        accuracies(store, "early", [0.5, 0.6, 0.7], count, model=model)
    assert "Means end" not in draw("early", only=["learning-curves"]).caption("learning-curves")
    store.job("early", {"val_accuracy": [0.5, 0.6]}, model="mlp", monitor="val_accuracy", seed=9)
    drawn = draw("early", only=["learning-curves", "ranking", "differences"])
    assert " Means end where the first of their jobs ends." in drawn.caption("learning-curves")
    few = " Fewer than 3 repeats, so neither interval nor comparison: convnet."
    for name in ("ranking", "differences"):
        assert few in drawn.caption(name), name


@pytest.mark.long
def test_words_with_numbers_have_the_order_of_these(draw, store, figures):
    for warmup in ("10e", "2e", "500", "0"):
        accuracies(store, "spans", [0.5, 0.7 + 0.001 * len(warmup)], warmup=warmup)
    drawn = draw("spans")
    rows = re.findall(r"^\| (warmup \w+) ", (drawn.folder / "main.md").read_text(), re.MULTILINE)
    assert rows == ["warmup 0", "warmup 2e", "warmup 10e", "warmup 500"]
    (legend,) = figures["cost-accuracy"].legends
    assert [text.get_text() for text in legend.get_texts()] == rows


def test_the_best_job_is_called_by_what_varies_among_those_drawn(draw, store, edit):
    store.keep_predictions()
    for note, lr in (("old", 0.1), ("", 0.1), ("", 0.2)):
        accuracies(store, "older", [0.5, 0.7 + lr], note=note, lr=lr)
    edit(plot=("ONLY: dict[str, object] = {}", 'ONLY: dict[str, object] = {"note": ""}'))
    drawn = draw("older")
    told = drawn.caption("confusion")
    assert "the best of 6 by validation accuracy (learning rate 0.2, seed 2)" in told
    assert drawn.caption("ranking").endswith(" Left out: 3 jobs with another note.")


def test_a_setting_that_does_not_count_is_no_value(draw, store, edit, figures):
    for optimizer, momentum in (("adam", None), ("sgd", 0.5), ("sgd", 0.9)):
        own = {} if momentum is None else {"momentum": momentum}
        accuracies(store, "nested", [0.5, 0.7 - len(own) * 0.1], optimizer=optimizer, **own)
    momentum = 'momentum: float = setting(0.9, when={"optimizer": "sgd"})\n\n    lr: float'
    edit(plot=("", ""), settings=("lr: float", momentum))
    drawn = draw("nested", only=["learning-curves", "main", "ablation"])
    table = (drawn.folder / "main.md").read_text()
    rows = re.findall(r"^\| (adam|sgd)(.*?) \|", table, re.MULTILINE)
    assert rows == [("adam", ""), ("sgd", ", momentum 0.5"), ("sgd", ", momentum 0.9")]
    ablation = (drawn.folder / "ablation.md").read_text()
    assert "baseline (adam)" in ablation
    changes = re.findall(r"^\| optimizer: adam → (.*?) \|", ablation, re.MULTILINE)
    assert changes == ["sgd, momentum 0.5", "sgd, momentum 0.9"]
    (legend,) = figures["learning-curves"].legends
    lines = [text.get_text() for text in legend.get_texts()]
    assert lines == ["adam", "sgd, momentum 0.5", "sgd, momentum 0.9"]


def test_captions_name_devices_monitors_and_code_that_differ(draw, store):
    for lr, seed in ((0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)):
        store.job(
            "unlike",
            {"val_accuracy": [0.9 - lr], "val_loss": [1.0 + lr]},
            monitor="val_loss" if lr == 0.2 else "val_accuracy",
            tags={"device": "H100" if seed else "CPU", **({"code": "old"} if lr == 0.1 else {})},
            lr=lr,
            seed=seed,
        )
    assert draw("unlike").status == 1
    drawn = draw("unlike", "--any-code", only=["ranking", "confusion"])
    caption = drawn.caption("ranking")
    assert "The jobs ran on different kinds of devices: 2 on CPU, 2 on H100." in caption
    kept = "Jobs kept the weights that were best by different metrics: 2 by val"
    assert kept in caption
    assert "2 of the 4 jobs are from different code or data: all of " in caption
    told = drawn.caption("confusion")
    assert ("The job is from different code or data." in told) == ("lr=0.1" in told)
    assert "lr=0.1" in told


def test_captions_name_the_devices_of_the_jobs_that_were_chosen(draw, store):
    for lr in range(7):  # more than there are lines: the best is shown, and it ran on the CPU
        accuracies(store, "one CPU", [0.5, 0.99 - 0.01 * lr], 1, lr=lr, tags=DEVICES[lr > 0])
    caption = draw("one CPU", only=["time-to-target"]).caption("time-to-target")
    assert "by the time of training and evaluation on CPU. 1 of 1 jobs have reached it." in caption
    assert "The jobs ran on different kinds of devices: 1 on CPU, 6 on H100." in caption


def test_captions_count_what_was_audited_and_what_confirms(draw, store, tmp_path):
    for seed, status in ((0, "same"), (1, ""), (CONFIRMING, "different")):
        folder = tmp_path / f"job {seed}"
        folder.mkdir()
        if status:
            (folder / layout.AUDIT).write_bytes(record({"status": status}))
        how = {
            "monitor": "val_accuracy",
            "lr": 1,
            "seed": seed,
            "tags": {"job_folder": str(folder)},
        }
        store.job("audited", {"val_accuracy": [0.5]}, **how)
    drawn = draw("audited", only=["learning-curves", "main"])
    caption = drawn.caption("learning-curves")
    assert "Audited: 1 of 2 jobs; all of these gave the same bits again, up to" in caption
    said = "Not shown: 1 job with the seeds of confirm. 3 jobs tried; all finished."
    assert caption.endswith(said)
    about = json.loads((drawn.folder / "main.json").read_text())
    assert sorted(about["audited"].values()) == ["different", "same"]
    assert "Audited: 2 of 3 jobs; 1 of these gave" in (drawn.folder / "main.md").read_text()


@pytest.mark.parametrize("declared", some([{}, {"scale": "log"}], {}))
def test_a_regression(draw, store, declared):
    experiment = f"regression {declared}"
    store.regressions(experiment, **declared)
    only = [] if declared else ["learning-curves", "time-to-target", "confusion"]
    drawn = draw(experiment, only=only, formats=())
    assert drawn.status == 0
    assert tuple(drawn.names) == (ALL if declared else tuple(only))
    for file in drawn.files if declared else ():
        assert_prints_right(*file)
    mean = "geometric mean" if "scale" in declared else "mean"
    of_log = " of the logarithm" if "scale" in declared else ""
    assert drawn.caption("learning-curves").startswith(
        f"Validation mean absolute error by optimizer step: {mean} of 3 seeds, 95% t interval"
        f"{of_log}; single"
    )
    goal = "≤ 5e-6 mmHg" if "unit" in declared else "≤ 5 mmHg"
    assert goal in drawn.caption("time-to-target")
    best = json.loads((drawn.folder / "confusion.json").read_text())["jobs"]
    assert "lr=0.001 weight_decay=0.0" in best[0]


@pytest.mark.parametrize("validated", [True, False])
def test_a_gan_that_monitors_nothing(draw, store, validated):
    experiment = f"gan {validated}"
    store.gans(experiment, validated=validated)
    drawn = draw(experiment)
    assert drawn.status == 0
    part = "Validation" if validated else "Training"
    assert drawn.caption("learning-curves").startswith(f"{part} energy distance by optimizer step:")
    assert "time-to-target: no validation metric has a target; declare one" in drawn.said
    if not validated:
        why = "there are no validation results to choose by; hold out validation data"
        left_out = "metric-vs-setting, ranking, differences, cost-accuracy, confusion"
        assert f"left out {left_out}: {why}\n" in drawn.said
        assert drawn.names == ["learning-curves", "throughput"]


def test_one_job(draw, store):
    store.classifiers("one", models=["mlp"], lrs=[1e-3], seeds=1)
    drawn = draw("one")
    assert drawn.status == 0
    assert drawn.names == ["learning-curves", "time-to-target", "throughput", "confusion"]
    why = "no setting varies among the jobs"
    assert f"left out metric-map, ranking, differences, cost-accuracy: {why}" in drawn.said
    assert drawn.tables == ["main", "cost"]
    assert (drawn.folder / "main.md").read_text().count("all jobs") == 1
    assert "one seed" in drawn.caption("learning-curves")


@pytest.mark.full
def test_jobs_that_diverged_and_values_that_are_not_finite(draw, store):
    settings = {"monitor": "val_accuracy", "model": "mlp"}
    for seed in range(3):
        curves = {"val_accuracy": [0.5, 0.6, math.nan if seed == 2 else 0.7]}
        store.job("lost", curves, lr=0.1, seed=seed, **settings)
        store.job("lost", {"val_accuracy": [0.1]}, status="FAILED", lr=1.0, seed=seed, **settings)
    drawn = draw("lost")
    assert drawn.status == 0
    gone = "Diverged, so left out of means: 3 of 3 jobs (learning rate 1)"
    for name in ALL[:4]:
        if name in drawn.names:
            assert gone in drawn.caption(name), name
    assert "crosses jobs that diverged" in drawn.caption("metric-vs-setting")
    for model, seed in product(("mlp", "vit"), range(2)):
        curves = {"val_accuracy": [math.nan] * 3}
        store.job("nothing", curves, seed=seed, **settings | {"model": model})
    drawn = draw("nothing")
    assert "no finished job has a finite best_val_accuracy" in drawn.said
    assert drawn.names == ["throughput"]


def test_results_outside_the_declared_range_are_drawn_and_counted(draw, store, figures):
    for model, value in (("mlp", 90), ("vit", 0.9)):  # percent, and the fraction that is declared
        accuracies(store, "percent", [value / 2, value], model=model)
    drawn = draw("percent", only=["learning-curves", "ranking", "main"])
    said = "50.0% of all values are outside the range that METRICS declares."
    for name in ("learning-curves", "ranking"):
        assert said in drawn.caption(name), name
    assert figures["learning-curves"].axes[0].get_ylim()[1] > 90
    assert figures["ranking"].axes[0].get_xlim()[1] > 90
    assert "| **90.010 ± 0.025**† |" in (drawn.folder / "main.md").read_text()


def test_nothing_is_chosen_for_a_task_without_validation_results(draw, store):
    for dataset, rate, seed in product("ab", (1, 2), range(3)):
        how = {"dataset": dataset, "lr": rate, "seed": seed, "monitor": "none"}
        value = 0.4 + 0.1 * rate + 0.01 * seed**2 * rate
        curves, tests = {"train_accuracy": [value]}, {"test_accuracy": value}
        if dataset == "a":
            curves, tests = {"val_accuracy": [value]}, tests | {"best_val_accuracy": value}
        store.job("no validation", curves, tests=tests, **how)
    drawn = draw("no validation", only=["main", "by-task"])
    table = (drawn.folder / "main.md").read_text()
    assert " B: Nothing is marked, since there are no validation results." in table
    assert "b: no finished job has a finite best_val_accuracy" in drawn.said


def test_jobs_that_reached_a_target_and_diverged_then_have_reached_it(draw, store):
    for seed, status in ((0, "FINISHED"), (1, "FAILED"), (2, "FINISHED")):
        how = {"monitor": "val_accuracy", "seed": seed, "status": status}
        store.job("reached", {"val_accuracy": [0.5, 0.8 + 0.1 * (seed < 2)]}, **how)
    caption = draw("reached", only=["time-to-target"]).caption("time-to-target")
    assert " 2 of 3 jobs have reached it." in caption


def test_what_has_no_number_on_test_data_is_the_worst_there(draw, store):
    for model, lost in (("mlp", 0), ("vit", 1)):
        for seed in range(4):
            test = math.nan if seed < lost else 0.5 + 0.2 * lost + 0.01 * seed ** (2 + lost)
            how = {"monitor": "val_accuracy", "model": model, "seed": seed, "dataset": "a"}
            curves = {"val_accuracy": [0.6 + 0.2 * lost]}
            store.job("untested", curves, tests={"test_accuracy": test}, **how)
            none = {} if seed else {"test_accuracy": math.inf}
            store.job("untested", curves, tests=none, **how | {"dataset": "b"})
    drawn = draw("untested", only=["ranking", "differences", "by-task", "main"])
    lost = " No finite test accuracy, which counts as the worst: 1 of 4 jobs (vit)."
    assert lost in drawn.caption("ranking-a") and lost in drawn.caption("differences-a")
    assert "Cannot be told apart from the first (vit)" in drawn.caption("ranking-a")
    assert f"or 4 seeds.{lost} B: No job has a finite test accuracy." in drawn.caption("by-task")
    assert "| vit | **1/4 no result**† | 4/4 no result† |" in (drawn.folder / "main.md").read_text()


@pytest.mark.full
def test_captions_and_tables_say_what_pandas_finds(draw, edit, store, figures, request, tmp_path):
    """Each number, name and sentence, computed again from what was stored."""
    edit(plot=("", ""), settings=odd_grids.SETTINGS)
    for number in range(2, 2 + request.config.getoption("grids")):
        grid = odd_grids.grid(store, f"odd {number}", np.random.default_rng(number))
        drawn = draw(f"odd {number}", *grid.flags, "--out", tmp_path / str(number))
        if (grid.jobs["state"].isin(["finished", "unknown"])).any():
            assert drawn.status == 0 or "in wide, and the page has" in drawn.said
            assert recomputed.check(grid, tmp_path / str(number), figures) >= 5, number
        else:
            assert "diverged; see their log.txt" in drawn.said


def test_without_a_finished_job_one_line(draw, store, tmp_path):
    store.job("begun", {"val_accuracy": [0.1]}, status="FAILED", mark=False)
    store.job("all lost", {"val_accuracy": [0.1]}, status="FAILED")
    for experiment in ("begun", "all lost", "nosuch"):
        drawn = draw(experiment)
        assert (drawn.status, drawn.files, drawn.said.count("\n")) == (1, [], 1)


def test_two_directions_of_one_name_are_refused_in_one_line(draw, store):
    from labjobs.settings import Metric

    settings = {"monitor": "val_accuracy"}
    for seed, better in enumerate(("higher", "higher", "lower")):
        metrics = CLASSIFIER | {"accuracy": Metric(better=better)}
        store.job("two", {"val_accuracy": [0.5]}, metrics, seed=seed, **settings)
    drawn = draw("two")
    assert (drawn.status, drawn.files) == (1, [])
    assert drawn.said.startswith("plot.py: lower accuracy is better in 1 of the jobs, higher in 2;")
    assert drawn.said.count("\n") == 1


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (r"$\\eta_0$ in %", ""),
        (r"$\\bm{\\eta}$", "plot.py: LABELS in plot.py: matplotlib cannot set $\\bm{\\eta}$ ("),
    ],
)
def test_mathematics_in_labels(draw, edit, label, said):
    """The same in a figure and its caption; what cannot be set is named, and nothing drawn."""
    edit(plot=('"learning rate"', f'"{label}"'))
    drawn = draw("sweep", only=["metric-vs-setting", "ranking"])
    assert drawn.said.startswith(said) and drawn.said.count("\n") <= 1
    if not said:
        text = (drawn.folder / "ranking.tex").read_text()
        assert r"mlp, $\eta_0$ in \% 0.001" in text


def test_a_paper_is_compared_with_the_results(draw, plot, tmp_path):
    drawn = draw("sweep", only=["ranking", "main", "ablation", "cost"])
    known = re.search(r"(0\.\d+) ± ", (drawn.folder / "main.md").read_text())[1]
    text = rf"""
    \usepackage[margin=1.25in]{{geometry}}
    \begin{{document}}
    With {known}, or {100 * float(known):.1f}\%, it is better than 0.12345. % and than 0.54321
    It is 0.1357 in all runs of 20.0000 epochs, $54.2468_{{0.0135}}$, ${known}\pm0.0777$ and 7.77x.
    Version 1.2.3 has {known.removeprefix("0")}, .98764, 7.77e-3, 45.67M, 0.123s and 1{{,}}234.5.
    \includegraphics{{ranking.pdf}} \hspace{{0.98765in}}
    \includegraphics[width=1.5in]{{x/ranking.pdf}}
    \includegraphics[width=6.5in]{{ranking}} \includegraphics[width=\textwidth]{{metric-map}}
    \resizebox{{2in}}{{!}}{{\includegraphics{{ranking}}}}
    \end{{document}}
    """
    paper = tmp_path / "paper.txt"
    paper.write_text(text)
    status, out, _ = plot("--audit", paper, "--out", tmp_path)
    said = out.splitlines()
    assert status == 1
    wrong = [
        ("4", "0.12345"),
        *(("5", n) for n in ("0.1357", "20.0000", "54.2468", "0.0135", "0.0777", "7.77")),
        *(("6", number) for number in (".98764", "7.77e-3", "45.67", "0.123", "1,234.5")),
    ]
    numbers, scaled = said[: len(wrong)], said[len(wrong) :]
    assert numbers == [f"{paper}:{line}: no result is {number}" for line, number in wrong]
    assert [line.partition("; ")[0] for line in scaled] == [
        f"{paper}:8: x/ranking.pdf is included at 46%, with text of 4.2 pt",
        f"{paper}:9: ranking is included at 200%, with text of 18.0 pt",
        f"{paper}:10: ranking is included with \\resizebox, which may rescale its text",
    ]
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "one.tex").write_text(f"It has {known}, not 0.54321.\n")
    paper.write_text("\\begin{document}\n\\input{parts/one} % \\include{parts/two}\n")
    status, out, _ = plot("--audit", paper, "--out", tmp_path)
    assert (status, out) == (1, f"{tmp_path}/parts/one.tex:1: no result is 0.54321\n")


def test_the_checklist_counts_what_was_tried(draw, plot, store):
    for seed in range(3):
        store.job("listed", {"val_accuracy": [0.5]}, monitor="val_accuracy", seed=seed)
    store.job("listed", {}, status="FAILED", mark=False, monitor="val_accuracy", seed=3)
    status, said, _ = plot("--checklist", "--experiment", "listed")
    assert status == 0
    assert "- Jobs tried: 4: 1 failed, 3 finished." in said
    assert "- Varied between repeats: seed." in said
    assert "- Devices: CPU." in said
