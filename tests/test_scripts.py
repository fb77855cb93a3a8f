"""The script under "A script of your own" in docs/recipes.md: jobs that are derived from others."""

import re

import pytest
from faults import Project, job_of, one_line, silent, succeeded
from sweeps import write_grid, write_lines
from test_changed_data import image
from test_recipes import add_analysis

pytestmark = pytest.mark.full

INPUT = "--dataset image-folder --image-size 8 --epochs 1 --seed {}"


def analyse(project: Project, *flags: str) -> list[str]:
    return ["python", "analyse.py", *flags, "--quiet"]


def sweep(project: Project) -> tuple[int, str]:
    """The exit status of `bash run.sh`, and its last line."""
    done = project.do("bash", "run.sh")
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout.splitlines()[-1]


def states(project: Project) -> dict[str, str]:
    """What `bash run.sh --list` says of each job, by its name: its state, and why."""
    done = silent(project.do("bash", "run.sh", "--list"))
    return {line[27:].split("  [")[0]: line[14:] for line in done.stdout.splitlines()[:-1]}


@pytest.fixture(scope="module")
def made(make):
    """A project with images and two analyses of two jobs, all of which its grid has run."""
    project = Project(make())
    add_analysis(project)
    for name in ("cat", "dog"):
        folder = project.root / "data" / name
        folder.mkdir(parents=True)
        for number in range(20):
            image(number, folder / f"{number}.png")
    captured = [f"job{n}=$(job {INPUT.format(n)})" for n in range(2)]
    analysis = 'job analyse.py --first "$job0" --second "$job1"'
    write_lines(project.root, *captured, analysis, f"{analysis} --norm 1")
    assert sweep(project) == (0, "4 of 4 jobs finished, 4 of them now")
    return project


@pytest.fixture
def project(made, tmp_path):
    return made.clone(tmp_path / "project")


def inputs(project: Project) -> list[str]:
    """The ids of the jobs of run.py, by their seed."""
    rows = project.ask(
        "SELECT tags.value FROM params JOIN tags USING (run_uuid) "
        "WHERE params.key = 'seed' AND tags.key = 'job_id' ORDER BY params.value"
    )
    return [str(job) for (job,) in rows]


def test_what_is_done_is_not_done_again(made):
    assert sweep(made) == (0, "4 of 4 jobs finished, 0 of them now")
    first, second = inputs(made)
    again = made.do(*analyse(made, "--first", first, "--second", second))
    assert "already finished: distance " in again.stdout, again
    again = made.do(*analyse(made, "--first", first[:6], "--second", second[:6]))
    assert "already finished: distance " in again.stdout, again


def test_check_says_in_one_line_that_it_does_not_train(made):
    first, second = inputs(made)
    done = silent(made.do(*analyse(made, "--first", first, "--second", second, "--check")))
    assert done.stdout.splitlines() == [
        "the same bits twice: fine",
        "settings: fine",
        "check finished: nothing found; analyse.py does not train, so that is all",
    ]


def test_wrong_flags_are_said_by_its_name(made):
    first, second = inputs(made)
    for flags, said in (
        (["--first", first], "analyse.py: --second: is missing; it must be the id of a job"),
        (["--first", first, "--second", "0" * 12], f"analyse.py: --second {'0' * 12}: there is no"),
        (["--first", first, "--second", second, "--pause-after", "1"], "analyse.py: --pause-after"),
    ):
        assert one_line(made.do(*analyse(made, *flags)), 2).startswith(said)


def test_jobs_and_figures_know_which_script_it_was(made):
    listed = made.do("python", "jobs.py", "list").stdout
    assert len(re.findall(r"finished .* distance \S+ +analyse first=\w{12} second=", listed)) == 2
    job = next(line.split()[0] for line in listed.splitlines() if "analyse" in line)
    shown = made.do("python", "jobs.py", "show", job).stdout
    assert "command: python analyse.py --first=" in shown and "results     distance " in shown
    assert "MISSING" not in shown  # a default that the setting does not have
    grouped = made.do("python", "jobs.py", "list", "--groups", "--where", "script=analyse").stdout
    assert len(re.findall(r"1 finished  mean of 1: distance \S+  norm=\d", grouped)) == 2, grouped
    table = "from labjobs.results import tables; from labjobs.tracking import mlflow_store as e;"
    table += "jobs = tables.jobs(e.experiment_name()); print(len(jobs), 'first' in jobs)"
    assert made.printed(table) == ["2 False"]
    made.do("python", "plot.py", "--format", "png")
    silent(made.do("python", "plot_analyses.py", "--format", "png"))
    assert (made.root / "tables" / "results.tex").exists()  # another script's
    caption = (made.root / "figures" / "distances.tex").read_text()
    assert "Distance in 2 analyses." in caption
    table = (
        table.partition("jobs = ")[0]
        + """
from settings import AnalysisSettings, Settings
name = e.experiment_name()
jobs = tables.jobs(name, AnalysisSettings, "analyse")
found = tables.joined(jobs, tables.jobs(name, Settings))
print(found["first_seed"].tolist(), found["second_seed"].dtype, found["second_model"].tolist())
print({"first", "norm"} & {*found.attrs["settings"]}, found.attrs["roles"]["first_seed"])
"""
    )
    assert made.printed(table) == ["[0, 0] int64 ['mlp', 'mlp']", "{'norm'} repeat"]


def test_an_edit_that_concerns_an_input_makes_both_stale_until_it_is_undone(project):
    project.edit("run.py", "scaler.scale(loss)", "scaler.scale(loss * 1)")
    said = states(project)
    assert len(said) == 4 and all(each.startswith("stale") for each in said.values())
    first, second = inputs(project)
    for name, each in said.items():
        of = f"input {first}, input {second}" if name.startswith("analyse") else "run.train"
        assert each.endswith(f"[{of} changed]")
    flags = ("--first", first, "--second", second)
    stale = one_line(project.do(*analyse(project, *flags)), 5)
    assert f"was finished with other code (input {first}, input {second} changed)" in stale
    refused = one_line(project.do(*analyse(project, *flags, "--force")), 1)
    assert refused.endswith(f"cannot start: its input {first} is stale (run.train changed)")
    accepted = project.do("python", "jobs.py", "accept", "--because", "it is the same")
    assert "no longer stale: 2 jobs" in accepted.stdout, accepted
    assert sweep(project) == (0, "4 of 4 jobs finished, 0 of them now")
    (project.root / "accepted.jsonl").unlink()
    project.edit("run.py", "scaler.scale(loss * 1)", "scaler.scale(loss)")
    assert sweep(project) == (0, "4 of 4 jobs finished, 0 of them now")
    succeeded(project.do("python", "jobs.py", "rm", first, "--anyway"))
    assert f"(input {first} removed)" in one_line(project.do(*analyse(project, *flags)), 5)


def test_a_wrong_id_is_refused_before_anything_starts(project):
    wrong = f"analyse.py --first {'0' * 12} --second {inputs(project)[0]}"
    write_grid(project.root, INPUT.format(7), wrong)
    refused = project.do("bash", "run.sh")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        f"job 2, {wrong}: --first {'0' * 12}: there is no such job in runs; "
        "`python jobs.py list` shows all, also elsewhere",
        "run.sh: 1 of 2 jobs are wrong; nothing was started",
    ]


def test_an_input_that_fails_is_named(project):
    run_sh = project.root / "run.sh"
    text = run_sh.read_text()
    diverging = INPUT.format(1) + " --lr 1e30 --optimizer sgd"
    run_sh.write_text(text.replace(f"(job {INPUT.format(1)})", f"(job {diverging})"))
    assert run_sh.read_text() != text
    done = project.do("bash", "run.sh")
    assert done.returncode == 1
    diverged, *failed = done.stderr.splitlines()
    said = f" cannot start: its input {diverged.split()[1]} has not finished (diverged) ["
    assert len(failed) == 2 and all(said in each for each in failed)
    assert done.stdout.endswith("1 of 4 jobs finished, 0 of them now; 1 diverged, 2 failed\n")


def test_a_job_that_no_setting_names_is_no_input(project):
    first, second = inputs(project)
    project.edit("analyse.py", "weights(settings.second)", f'weights("{second}")')
    done = project.do(*analyse(project, "--first", first, "--second", first))
    assert f"failed: job {second} is not an input: name it in a setting" in one_line(done, 1)


FURTHER = """

@dataclass(frozen=True)
class Further(Settings):
    \"\"\"Those of further.py.\"\"\"

    temperature: float = 2.0
"""


def test_a_job_with_further_settings_is_loaded_with_them(fresh):
    settings, script = fresh.root / "settings.py", fresh.root / "further.py"
    settings.write_text(settings.read_text() + FURTHER)
    script.write_text(re.sub(r"\bSettings\b", "Further", (fresh.root / "run.py").read_text()))
    job = job_of(succeeded(fresh.do("python", "further.py", "--epochs", "1", "--temperature", "3")))
    assert fresh.printed(f"import jobs; print(jobs.load('{job}').settings.temperature)") == ["3.0"]


def test_jobs_of_a_script_that_is_gone_are_still_listed_and_compared(project):
    """What its metrics are is gone with it."""
    (project.root / "analyse.py").unlink()

    def jobs(*words: str) -> str:
        return silent(project.do("python", "jobs.py", *words)).stdout

    assert len(re.findall(r"1 stale  first=\w{12}", jobs("list", "--groups"))) == 2
    assert "2 finished, 2 stale" in jobs("list", "--by", "best_val_accuracy")
    by = one_line(project.do("python", "jobs.py", "list", "--by", "distance"), 2)
    assert by == "jobs.py: --by distance: analyse.py, which said what is better, is gone"
    one, other = [line.split()[0] for line in jobs("list").splitlines() if "analyse" in line]
    assert "norm" in jobs("diff", one, other)
