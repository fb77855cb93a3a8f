"""`python jobs.py`: it says what there is to know of jobs, at once, and never with a traceback."""

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from faults import Project, curves_in, ended, job_of, one_line, silent, succeeded
from labjobs import locks
from labjobs.commands import inventory
from labjobs.settings import CONFIRMING
from scipy import stats

MLP = ("--epochs", "1", "--lr", "0.01", "--note", "it's a try", "--quiet")
CONVNET = ("--model", "convnet", "--epochs", "2", "--pause-after", "1e", "--quiet")


class Jobs:
    """A project with a finished job `mlp` and a paused one, `convnet`."""

    def __init__(self, project: Project, mlp: str, convnet: str) -> None:
        self.project, self.mlp, self.convnet = project, mlp, convnet
        without_torch = project.root.parent / "without-torch"
        without_torch.mkdir(exist_ok=True)
        (without_torch / "torch.py").write_text("raise ImportError('torch takes too long')\n")
        self._env = {"PYTHONPATH": str(without_torch)}

    def do(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`python jobs.py` where torch cannot be imported."""
        return self.project.do("python", "jobs.py", *words, **self._env, **env)

    def lines(self, *words: str, **env: str) -> list[str]:
        """What a command prints that does what it should."""
        done = silent(self.do(*words, **env))
        return done.stdout.splitlines()

    def json(self, *words: str, **env: str) -> Any:
        return json.loads("\n".join(self.lines(*words, "--json", **env)))

    def states(self, **env: str) -> dict[str, str]:
        return {row["id"]: row["state"] for row in self.json("list", **env)}


@pytest.fixture(scope="module")
def made(make):
    project = Project(make())
    ended = [project.run(*flags) for flags in (MLP, CONVNET)]
    assert [done.returncode for done in ended] == [0, 0]
    return Jobs(project, *map(job_of, ended))


@pytest.fixture
def jobs(made, tmp_path):
    return Jobs(made.project.clone(tmp_path / "project"), made.mlp, made.convnet)


def test_list_has_a_line_for_each_job_the_newest_last(made):
    mlp, convnet, both = made.lines("list")
    assert mlp.startswith(f"{made.mlp}  finished  ")
    assert "  best_val_loss " in mlp and "test_" not in mlp
    assert all(f" {text}" in mlp for text in ("epochs=1", "lr=0.01", "note=it's a try"))
    assert convnet.startswith(f"{made.convnet}  paused  ")
    assert "convnet" in convnet and "epochs=2" in convnet and "  [step 21/42, " in convnet
    assert both == "2 jobs: 1 finished, 1 paused"


def test_test_results_are_printed_on_demand(made):
    """Whoever chooses in a list or by last lines chooses by validation results."""
    again = made.project.run(*MLP)
    assert " already finished: best_val_loss " in again.stdout and "test_" not in again.stdout
    mlp, *_ = made.lines("list", "--test")
    assert "  test_loss " in mlp and "best_" not in mlp
    (row, _), (tested, _) = made.json("list"), made.json("list", "--test")
    assert "best_val_loss" in row["metrics"] and not {"test_loss"} & row["metrics"].keys()
    assert tested["metrics"]["test_loss"] > 0


def test_a_full_disk_is_said_once(made):
    done = made.project.do("bash", "-c", "exec python jobs.py list >/dev/full")
    assert one_line(done, 1).startswith("jobs.py: the disk is full")


def test_list_sorts_and_selects(made):
    def listed(*words):
        return [row["id"] for row in made.json("list", *words)]

    best_first = [made.mlp, made.convnet]  # which has no result yet
    assert listed("--by", "val_loss") == listed("--by", "best_val_accuracy") == best_first
    assert listed("--where", "lr>=1e-2") == listed("--where", "state=finished") == [made.mlp]
    assert listed("--where", "model = convnet", "--where", "lr!=0.01") == [made.convnet]
    assert len(listed("--where", "eval-every>0.5e", "--where", "pretrained=off")) == 2
    assert made.lines("list", "--where", "batch-size<64") == ["0 jobs"]


def test_list_has_means_over_repeats(made):
    mlp, convnet = made.json("list", "--groups", "--by", "val_loss")
    assert (mlp["jobs"], mlp["states"], mlp["n"]) == ([made.mlp], {"finished": 1}, 1)
    assert "seed" not in mlp["settings"] and convnet["jobs"] == [made.convnet]
    row = {"script": "run", "state": "finished", "settings": {"lr": 0.1, "seed": 0}}
    rows = [
        row | {"id": id, "metrics": {"best_val_loss": loss}} for id, loss in (("a", 1), ("b", 3))
    ]
    rows[1]["settings"] = {"lr": 0.1, "seed": 1}
    rows.append(
        row | {"id": "c", "metrics": {}, "state": "failed", "settings": {"lr": 1, "seed": 0}}
    )
    rows.append(row | {"id": "d", "metrics": {"best_val_loss": 8}, "state": "stale"})
    rows[-1]["settings"] = {"lr": 0.1, "seed": 2}
    rows.append(row | {"id": "e", "metrics": {"best_val_loss": 9}})  # whose job confirms
    rows[-1]["settings"] = {"lr": 0.1, "seed": CONFIRMING}
    rows[0]["metrics"] |= {"best_val_rare": 5}
    both, failed = inventory.grouped(rows)
    # One code in a mean: that of the stale job is another.
    assert (both["jobs"], both["n"]) == (["a", "b", "d", "e"], 2)
    assert both["metrics"] == {"best_val_loss": 2, "best_val_rare": 5}
    assert both["of"] == {"best_val_loss": 2, "best_val_rare": 1}
    assert (failed["jobs"], failed["n"], failed["states"]) == (["c"], 0, {"failed": 1})
    first, *_, last = made.lines("list", "--groups", "--where", "state=finished")
    assert first.startswith("1 finished  mean of 1: best_val_loss ") and last == "1 group"


def test_list_without_jobs_is_one_line(made, tmp_path):
    fresh = Jobs(made.project.copy(tmp_path / "fresh"), "", "")
    assert fresh.lines("list") == fresh.lines("stale") == ["there are no jobs yet"]


def test_jobs_that_the_store_alone_has(made, tmp_path):
    elsewhere = Jobs(made.project.copy(tmp_path / "elsewhere"), made.mlp, "")
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{made.project.root}/mlflow.db"}
    here, (there, _) = made.json("list")[0], elsewhere.lines("list", **store)
    assert there.startswith(f"{made.mlp}  finished  ") and here["result"] in there
    assert elsewhere.json("list", **store)[0]["settings"] == here["settings"]
    (attempt,) = elsewhere.json("show", made.mlp, **store)["attempts"]
    known = made.json("show", made.mlp)["attempts"][0]
    for name in ("run_id", "metrics", "code", "state"):
        assert attempt[name] == known[name]
    assert attempt["folder"] is None


def test_show_says_all_there_is_to_know(made):
    said = "\n".join(made.lines("show", made.mlp[:6]))
    run, _ = made.project.runs(made.mlp)[0]
    folder = made.project.folder(made.mlp)
    assert said.startswith(f"job {made.mlp}: finished\n")
    for text in (
        "lr               0.01  (default: 0.001)",
        f"attempt {folder.name}: finished, with the present code and data",
        "test_accuracy ",
        "best_val_accuracy ",
        f"runs/{made.mlp}/{folder.name}",
        f"MLflow run  {run}",
    ):
        assert text in said


def test_the_command_that_show_prints_is_the_jobs_own(made):
    command = made.json("show", made.mlp)["command"]
    again = made.project.do("bash", "-c", f'"$PYTHON"{command.removeprefix("python")}')
    assert again.stdout.startswith(f"job {made.mlp} already finished"), again


def test_stale_names_what_has_changed_and_shows_it(jobs):
    assert jobs.lines("stale") == ["none of 2 jobs is stale"]
    jobs.project.edit("models.py", "nn.Linear(256, 256)", "nn.Linear(256, 255)")
    line = f"models.MLP changed: 1 of 2 jobs ({jobs.mlp})"
    assert jobs.lines("stale") == [line]
    shown = jobs.lines("stale", "--diff")
    assert shown[0] == line
    changed = [text.split() for text in shown if text.startswith(("-  ", "+  "))]
    assert changed == [["-", "nn.Linear(256,", "256),"], ["+", "nn.Linear(256,", "255),"]]
    (change,) = jobs.json("stale")
    wanted = {"definition": "models.MLP", "change": "changed", "stale": True, "jobs": [jobs.mlp]}
    assert change == wanted
    assert jobs.states() == {jobs.mlp: "stale", jobs.convnet: "paused"}
    assert "from other code or data (models.MLP changed)" in "\n".join(jobs.lines("show", jobs.mlp))
    jobs.project.edit("models.py", "nn.Linear(256, 255)", "nn.Linear(256, 256)")
    jobs.project.edit("models.py", "MLP(spec.shape, len", "ConvNet(spec.shape, len")
    unused = f"models.MLP no longer used: 1 of 2 jobs ({jobs.mlp})"
    assert unused in jobs.lines("stale")
    assert not any("class MLP" in line for line in jobs.lines("stale", "--diff"))


def test_why_names_the_way_to_a_definition(made):
    (line,) = made.lines("why", made.mlp, "models.MLP")
    assert line.startswith("models.MLP <- ") and " <- models.make <- " in line
    assert made.lines("why", made.mlp, "models.MLP.forward") == [line]
    assert made.json("why", made.mlp, "MLP")["chain"] == line.split(" <- ")
    said = one_line(made.do("why", made.mlp, "models.ConvNet"), 1)
    assert said == f"job {made.mlp} does not depend on models.ConvNet"
    assert one_line(made.do("why", made.mlp, "run.forwrad"), 1)
    said = one_line(made.do("why", made.mlp, "models.MPL"), 1)
    assert "; did you mean models.MLP" in said


def test_diff_says_in_what_two_jobs_differ(made):
    found = made.json("diff", made.mlp, made.convnet)
    assert [row["name"] for row in found["settings"]] == ["epochs", "lr", "model", "note"]
    assert {"name": "lr", "a": "0.01", "b": "0.001"} in found["settings"]
    changes = {row["name"]: row["said"] for row in found["code"]}
    assert (changes["models.MLP"], changes["models.ConvNet"]) == ("only in A", "only in B")
    assert "changed" not in changes.values()
    assert found["data"] == found["packages"] == found["device"] == []
    (parted,), one = found["curves"], made.project.journalled(made.mlp)["train_loss"][0]
    assert (parted["step"], float(parted["a"])) == one
    assert [row["said"] for row in found["results"]] == ["there are none that both have"]
    # Nothing is said of the data, which code makes.
    assert made.lines("diff", made.mlp, made.convnet)[-1] == "same packages, device"


def test_diff_of_two_attempts_shows_definitions_and_not_files(jobs):
    project, old = jobs.project, jobs.project.folder(jobs.mlp)
    project.edit("models.py", "nn.Linear(256, 256)", "nn.Linear(256, 256, bias=False)")
    project.edit("models.py", '"""Networks', '"""The networks')  # which changes no definition
    succeeded(project.run(*MLP, "--force"))
    (new,) = {*old.parent.iterdir()} - {old}
    found = jobs.json("diff", f"{jobs.mlp}/{old.name[:4]}", jobs.mlp)
    assert (found["a"], found["b"]) == ([f"{jobs.mlp}/{old.name}"], [f"{jobs.mlp}/{new.name}"])
    (changed,) = found["code"]
    assert changed["name"] == "models.MLP" and changed["said"] == "changed"
    texts = [line for line in changed["diff"].splitlines()[2:] if line[0] in "+-"]
    assert [text.split() for text in texts] == [
        ["-", "nn.Linear(256,", "256),"],
        ["+", "nn.Linear(256,", "256,", "bias=False),"],
    ]
    assert found["settings"] == [] and found["curves"][0]["step"] > 0
    loss = {row["name"]: row["difference"] for row in found["results"]}["best_val_loss"]
    best = [min(float(v) for _, v in curves_in(path)["val_loss"]) for path in (old, new)]
    assert loss == pytest.approx(best[1] - best[0])
    said = one_line(jobs.do("diff", f"{jobs.mlp}/x", jobs.mlp), 2)
    assert "which attempt? It has " in said and old.name in said and new.name in said


@pytest.mark.full
def test_diff_of_groups_has_intervals_over_seeds(fresh):
    for seed in "012":
        for rate in ("1e-3", "1e-2"):
            fresh.finish("--epochs", "1", "--batch-size", "256", "--lr", rate, "--seed", seed)
    jobs = Jobs(fresh, "", "")
    found = jobs.json("diff", "lr=1e-3", "lr=1e-2,epochs=1")
    assert found["settings"] == [{"name": "lr", "a": "0.001", "b": "0.01"}]
    assert (found["pairs"], found["code"], found["data"]) == (3, [], [])
    rows = jobs.json("list")
    best = {(row["settings"]["lr"], row["settings"]["seed"]): row["metrics"] for row in rows}
    pairs = [best[1e-2, s]["best_val_loss"] - best[1e-3, s]["best_val_loss"] for s in range(3)]
    ends = stats.t.interval(0.95, 2, mean(pairs), stdev(pairs) / 3**0.5)
    row = next(row for row in found["results"] if row["name"] == "best_val_loss")
    assert row["n"] == [3, 3] and row["paired"]
    wanted = pytest.approx([mean(pairs), *ends])
    assert [row["difference"], row["low"], row["high"]] == wanted
    # Other code of any job is named, also of one whose seed the other side does not have.
    fresh.edit("run.py", "return losses.mean(), measured", "return 2 * losses.mean(), measured")
    fresh.finish("--epochs", "1", "--batch-size", "256", "--lr", "1e-2", "--seed", "32")
    fresh.edit("run.py", "return 2 * losses.mean(), measured", "return losses.mean(), measured")
    found = jobs.json("diff", "lr=1e-3,seed=2", "lr=1e-2,seed>=2")
    assert [(row["name"], row["pairs"]) for row in found["code"]] == [("run.forward", 1)]
    assert found["pairs"] == 1 and found["results"][0]["n"] == [1, 1]
    (stale,) = found["stale"]["B"]
    said = jobs.lines("diff", "lr=1e-3,seed=2", "lr=1e-2,seed>=2")
    assert f"stale in B: {stale}" in said and found["stale"]["A"] == []
    # Jobs that differ in more are not compared, nor is a job with itself.
    fresh.finish("--epochs", "2", "--batch-size", "256", "--lr", "1e-2")
    found = jobs.json("diff", "lr=1e-3", "lr=1e-2,seed<3")
    assert found["pairs"] == 3
    assert row in found["results"]
    # Nor are jobs of different scripts.
    settings = fresh.root / "settings.py"
    more = "\n\n@dataclass(frozen=True, kw_only=True)\nclass More(Settings):\n    more: int = 1\n"
    settings.write_text(settings.read_text() + more)
    script = (fresh.root / "run.py").read_text()
    (fresh.root / "other.py").write_text(script.replace("Settings", "More"))
    succeeded(
        fresh.do("python", "other.py", "--epochs", "1", "--batch-size", "256", "--lr", "1e-2")
    )
    said = one_line(jobs.do("diff", "lr=1e-3", "lr=1e-2,epochs=1"), 2)
    assert said.endswith("jobs of other and run, which have other results; compare those of one")
    assert jobs.json("diff", "lr=1e-3", "lr=1e-2,seed<3,script=run")["results"] == found["results"]
    said = one_line(jobs.do("diff", "lr=1e-3", "seed=0"), 2)
    assert said.startswith("jobs.py: lr=1e-3 and seed=0: both have ")
    said = one_line(jobs.do("diff", "lr=1e-3", "lr=5"), 2)
    assert said == "jobs.py: lr=5: no finished job here has such settings"


def test_sync_leaves_the_run_of_a_job_that_was_continued(fresh):
    """With costs of both processes, a note longer than MLflow keeps, and a zero with a sign."""
    fresh.edit("run.py", "job.log(measured, lr=lr)", "job.log(measured, lr=lr, zero=-0.0)")
    flags = ("--epochs", "2", "--batch-size", "256", "--note", "x" * 7000, "--quiet")
    succeeded(fresh.run(*flags, "--pause-after", "1e"))
    job = fresh.finish(*flags)
    before = fresh.runs(job)
    assert Jobs(fresh, "", "").lines("sync") == ["the tracking store has all"]
    assert fresh.runs(job) == before


def test_show_knows_how_an_attempt_ended_whose_outcome_is_lost(jobs):
    (jobs.project.folder(jobs.mlp) / "outcome.json").unlink()
    (attempt,) = jobs.json("show", jobs.mlp)["attempts"]
    assert attempt["state"] == "finished"


def test_damaged_records(jobs):
    for file in ("settings.json", "outcome.json", "metrics.jsonl"):
        path = jobs.project.folder(jobs.mlp) / file
        path.write_bytes(b"[1]" + path.read_bytes()[3:])
    assert jobs.states()[jobs.mlp] == "finished"  # the store has it
    assert "problem     metrics.jsonl is damaged" in "\n".join(jobs.lines("show", jobs.mlp))
    (jobs.project.root / "mlflow.db").unlink()
    done = jobs.do("list", "--json")
    assert {row["id"]: row["state"] for row in json.loads(done.stdout)}[jobs.mlp] == "unreadable"
    assert one_line(done, 0).startswith(f"jobs.py: job {jobs.mlp}: metrics.jsonl is damaged")
    said = "\n".join(jobs.lines("show", jobs.mlp))
    assert "cannot be read: its settings.json is damaged or missing" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which command? list, show, "),
        (("lits",), "lits: no such command; did you mean list?"),
        (("list", "--jsn"), "--jsn: no such flag; did you mean --json?"),
        (("list", "--runs-root", "nowhere"), "--runs-root: there is no folder nowhere"),
        (("sync", "--runs-root", "nowhere"), "--runs-root: there is no folder nowhere"),
        (("list", "--by", "test_loss", "--test"), "--by test_loss: test results choose nothing"),
        (("list", "--where", "learning"), "--where learning: must look like 'lr>1e-3'"),
        (("list", "--where", "lrr>1"), "--where lrr>1: no such setting; did you mean lr?"),
        (("list", "--where", "script=nope"), "script=nope: none of these jobs has it; known: run"),
        (("list", "--where", "pretrained=no"), "--where pretrained=no: pretrained is on or off"),
        (
            ("list", "--where", "eval-every<9"),
            "eval_every is 1e in some jobs, which cannot be compared",
        ),
        (("cluster",), "which command? cluster check; see --help"),
        (("cluster", "checks", "lab"), "cluster checks: no such command; did you mean"),
        (
            ("cluster", "check", "lab"),
            "lab: no such cluster in cluster.toml; jobs.py docs clusters",
        ),
        (("show",), "the following arguments are required: JOB"),
        (("show", "none"), "there is no job none; `python jobs.py list` shows all"),
        (("rm", ""), "'' is not the id of a job"),
    ],
)
def test_mistakes_are_one_line(made, words, said):
    line = one_line(made.do(*words), 2)
    assert line.startswith("jobs.py: ") and said in line


def test_a_job_that_diverged_elsewhere_is_known_by_the_store(project, tmp_path):
    """On another machine, whose folder of runs lacks it, it is run again only if that is forced."""
    flags = ("--epochs", "1", "--lr", "1e30", "--optimizer", "sgd", "--quiet")
    job = job_of(project.run(*flags))
    assert project.do("python", "jobs.py", "sync").returncode == 0  # on a busy machine it is late
    away = tmp_path / "runs"
    shutil.move(project.root / "runs", away)
    (row,) = project.listed().values()
    assert (row["id"], row["state"], row["about"]) == (job, "diverged", "in another folder")
    shown = project.do("python", "jobs.py", "show", job)
    assert shown.returncode == 0 and "diverged" in shown.stdout
    again = project.run(*flags)
    assert again.returncode == 1
    assert again.stderr == f"job {job} diverged before: see MLflow; --force starts it over\n"
    assert not list(project.root.glob("runs/*/*/metrics.jsonl"))
    forced = project.run(*flags, "--force")
    assert forced.returncode == 1 and "diverged: train_loss" in forced.stderr


# Disks: `disk`, `clean`, `rm`.

FIND = {"JOB_PURPOSE": "find lr; on cpu"}


def snapshot(*folders: Path) -> dict[str, tuple[int, int]]:
    """All files in some folders, with their sizes and times."""
    files = [path for folder in folders for path in folder.rglob("*") if not path.is_dir()]
    stats = {str(path): path.lstat() for path in files if path.name != "lock"}
    return {name: (found.st_size, found.st_mtime_ns) for name, found in stats.items()}


def test_disk_counts_what_is_there_and_follows_no_link(jobs, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "best.pt").write_bytes(bytes(10_000_000))
    (jobs.project.root / "mlruns").mkdir(exist_ok=True)
    linked = jobs.project.root / "mlruns" / "best.pt"  # as the store has it
    os.link(jobs.project.folder(jobs.mlp) / "best.pt", linked)
    runs = jobs.project.root / "runs"
    (runs / jobs.mlp / "linked").symlink_to(tmp_path / "other")
    (runs / "0123456789ab").symlink_to(tmp_path / "other")
    found = jobs.json("disk")
    taken = {path: path.stat().st_blocks * 512 for path in runs.glob("*/*/*.pt")}
    weights = [n for path, n in taken.items() if path.name == "best.pt" and n < 10_000_000]
    assert found["kinds"]["best weights"] == sum(weights) > 0
    assert found["kinds"]["checkpoints"] == sum(n for p, n in taken.items() if p.name != "best.pt")
    assert {*found["jobs"]} >= {jobs.mlp, jobs.convnet}
    others = [p.stat() for p in (jobs.project.root / "mlruns").rglob("*") if p.is_file()]
    own = [about.st_blocks * 512 for about in others if about.st_nlink == 1]
    assert found["kinds"].get("mlruns", 0) == sum(own)
    assert found["total"] == sum(found["kinds"].values())
    assert jobs.lines("disk")[-1].endswith("in all, 2 jobs")


@pytest.mark.full
def test_clean_removes_what_nothing_needs_and_only_that(fresh, tmp_path):
    fresh.killed("--epochs", "150", "--quiet")
    (old,) = fresh.root.glob("runs/*/*/")
    other = fresh.finish(*MLP)
    measured = job_of(succeeded(fresh.run("--epochs", "1", "--seed", "9", "--quiet", **FIND)))
    fresh.edit("models.py", "nn.ReLU()", "nn.Tanh()")
    begun = fresh.run("--epochs", "150", "--quiet", "--pause-after", "2", "--force")
    jobs = Jobs(fresh, "", "")
    assert begun.returncode == 0 and {measured} == removed(jobs)  # the new attempt is not over
    fresh.finish("--epochs", "150", "--quiet")
    (new,) = {*old.parent.glob("*/")} - {old}
    (tmp_path / "linked").mkdir()
    (old.parent / "linked").symlink_to(shutil.copytree(old, tmp_path / "linked" / old.name))
    before = snapshot(fresh.root / "runs", tmp_path / "linked")
    assert removed(jobs) == {measured, old.name}
    with locks.take(old / "lock"):  # somebody goes on with it
        assert removed(jobs) == {measured}
    both = [fresh.command(sys.executable, "jobs.py", "clean") for _ in range(2)]
    for done in map(ended, both):  # one may meet the other
        assert all(line.endswith(" was left: it is in use") for line in done.stderr.splitlines())
        assert done.returncode == bool(done.stderr)
    assert not old.exists() and not (fresh.root / "runs" / measured).exists()
    assert fresh.runs(measured) == []
    after = snapshot(fresh.root / "runs", tmp_path / "linked")
    gone = {str(old), str(fresh.root / "runs" / measured)}
    assert after == {
        k: v for k, v in before.items() if not any(k.startswith(each) for each in gone)
    }
    assert removed(jobs) == set()
    assert {row["state"] for row in jobs.json("list")} == {"stale", "finished"}
    assert new.exists() and (fresh.root / "runs" / other).exists()
    (adopted := fresh.root / "runs" / ".adopted-half").mkdir()
    with locks.take(adopted / "lock"):  # `adopt` copies into it
        assert one_line(jobs.do("clean"), 1).endswith(f"{adopted.name} was left: it is in use")
    jobs.lines("clean")
    assert not adopted.exists() and new.exists()


def removed(jobs: Jobs) -> set[str]:
    """The names of what `clean` would remove."""
    return {Path(row["path"]).name for row in jobs.json("clean", "--dry-run")["removed"]}


NOTHING_MADE = """
def none(jobs):
    jobs.drop(jobs.index, inplace=True)


def ends(jobs):
    sys.exit(0)


FIGURES = {
    "none": none,
    "ends": ends,
"""


@pytest.mark.full
def test_a_mistake_in_one_figure_leaves_out_that_one(jobs):
    project = jobs.project
    first = "    shown = comparison.compare(jobs, 6, 6, metric"
    project.edit("plot.py", first, f"    jobs['test_loss'] += 7\n    jobs['mistaken']\n{first}")
    project.edit("plot.py", "FIGURES = {\n", NOTHING_MADE)
    drawn = project.do("python", "plot.py", "--format", "png")
    assert drawn.returncode == 1
    assert "left out none: none() must return a figure and its caption, not None" in drawn.stderr
    assert "left out ends: ends() ends plot.py" in drawn.stderr
    assert "left out learning-curves: KeyError: 'mistaken' (plot.py:" in drawn.stderr
    assert (project.root / "figures/throughput.png").exists()
    assert not (project.root / "figures/learning-curves.png").exists()
    rows = csv.DictReader((project.root / "tables/main.csv").open())
    losses = [float(row["mean"]) for row in rows if row["metric"] == "test_loss" and row["mean"]]
    assert 0 < max(losses) < 6  # the others have the jobs as they were


@pytest.mark.full
def test_rm_removes_jobs_here_and_in_the_store_unless_something_needs_them(jobs):
    project, folder = jobs.project, jobs.project.root / "runs"
    succeeded(project.do("python", "plot.py", "--format", "png"))
    derived = project.finish("--epochs", "1", "--init-from", jobs.mlp, "--quiet")
    before, runs = snapshot(folder), project.runs(jobs.mlp)
    refused = jobs.do("rm", jobs.mlp)
    assert refused.returncode == 1
    needs = f"job {derived}, which is derived from it, figures/confusion, "
    assert f"job {jobs.mlp} is needed by {needs}" in refused.stderr
    assert refused.stderr.endswith("more; --anyway removes it nevertheless\n")
    jobs.lines("rm", jobs.mlp, "--anyway", "--dry-run")
    with locks.take(project.folder(jobs.mlp) / "lock"):
        running = one_line(jobs.do("rm", jobs.mlp, "--anyway"), 1)
    assert running.endswith("was left: it is in use")
    assert snapshot(folder) == before and project.runs(jobs.mlp) == runs
    (row,) = jobs.json("rm", derived)["removed"]
    assert row["path"] == f"runs/{derived}" and project.runs(derived) == []
    jobs.lines("rm", jobs.mlp, "--anyway")
    assert [*jobs.states()] == [jobs.convnet] and not (folder / jobs.mlp).exists()
    assert "there is no job" in one_line(jobs.do("rm", jobs.mlp), 2)
    away = one_line(jobs.do("rm", jobs.convnet, MLFLOW_TRACKING_URI="http://127.0.0.1:9"), 1)
    assert away.endswith("; nothing was removed") and (folder / jobs.convnet).exists()


def test_rm_and_clean_leave_what_begins_what_is_damaged_and_what_runs_elsewhere(jobs):
    job = jobs.project.folder(jobs.mlp)
    beginning = job.with_name("00000000")
    beginning.mkdir()
    with locks.take(beginning / "lock"):  # as while torch is imported, before there is a journal
        for more in (), ("--dry-run",):
            assert one_line(jobs.do("rm", jobs.mlp, *more), 1).endswith("was left: it is in use")
    shutil.rmtree(beginning)
    old = Path(shutil.copytree(job, beginning))
    (old / "outcome.json").write_text("{")
    assert removed(jobs) == set()
    jobs.project.write("UPDATE runs SET status = 'RUNNING'")
    jobs.project.write(f"UPDATE tags SET value = '{time.time()}' WHERE key = 'heartbeat'")
    jobs.project.write("UPDATE tags SET value = 'other' WHERE key IN ('owner', 'code', 'host')")
    said = one_line(jobs.do("rm", jobs.mlp), 1)
    assert said.endswith("was left: it is running on other") and jobs.project.runs(jobs.mlp)


def test_rm_leaves_what_a_link_leads_to(jobs, tmp_path):
    folder = jobs.project.root / "runs" / jobs.convnet
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path / "elsewhere")
    said = one_line(jobs.do("rm", jobs.convnet), 1)
    assert said.endswith("was left: it is a link, which is not followed")
    assert folder.is_symlink() and snapshot(tmp_path / "elsewhere") == before
    assert jobs.project.runs(jobs.convnet)
