"""`bash run.sh`: the jobs of a grid, by what it prints, leaves and returns."""

import json
import math
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from faults import Project, ended, one_line, silent, succeeded, wait_until
from labjobs.errors import SettingsError
from labjobs.layout import JOURNAL
from labjobs.sweeps import options
from labjobs.sweeps.gpus import Gpu
from labjobs.sweeps.grid import STARTED
from labjobs.sweeps.queue import Worker
from labjobs.sweeps.starter import Starter
from sweeps import SETTINGS, Lab, light, pretend_slurm, write_grid, write_lines

QUICK = "--epochs 1 --batch-size 256 --device cpu"
NOTE = "-- it's $(touch oops); `touch oops` \"* \\n\n${HOME} é"


def test_jobs_that_train(project):
    """One diverges, one has an odd note and is in the grid twice; then there is nothing to do."""
    odd = f"{QUICK} --seed 5 --note={shlex.quote(NOTE)}"
    write_grid(project.root, f"{QUICK} --lr 1e30 --optimizer sgd", odd, f"{odd} --lr 0.001")
    done = succeeded(project.do("bash", "run.sh"))
    last = "1 of 2 jobs finished, {} of them now; 1 diverged"
    assert done.stdout.splitlines()[-1] == last.format(1)
    (line,) = done.stderr.splitlines()
    job = line.split()[1]
    assert line.startswith(f"job {job} diverged: train_loss was not finite by optimizer step 2")
    assert line.endswith(f"/{project.folder(job).name}/output.txt]")
    assert line.split(" [")[0] in (project.folder(job) / "output.txt").read_text()
    assert "Traceback" in (project.folder(job) / "log.txt").read_text()
    tags = "SELECT status, value FROM runs JOIN tags USING (run_uuid) WHERE key = 'diverged'"
    assert sorted(project.ask(tags)) == [("FAILED", "true"), ("FINISHED", "false")]
    assert not (project.root / "oops").exists()
    notes = {value for (value,) in project.ask("SELECT value FROM params WHERE key = 'note'")}
    assert notes == {"", NOTE}

    (project.root / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    again = project.do("bash", "run.sh", PYTHONPATH=str(project.root))
    assert (again.returncode, again.stdout) == (0, last.format(0) + "\n")
    assert again.stderr.startswith(f"job {job} diverged before: train_loss was not finite")


@pytest.mark.full
def test_a_setting_without_effect_is_named(project, fresh):
    dummy = '    dummy: float = 0.0\n    """Nothing."""\n\n'
    fresh.edit("settings.py", "    seed: int", f"{dummy}    seed: int")
    write_grid(fresh.root, *(f"{QUICK} --dummy {x} --seed {y}" for x in (0, 1) for y in (0, 1)))
    done = succeeded(fresh.do("bash", "run.sh"))
    assert "run.sh: no code reads --dummy\n" in done.stdout
    *_, first, second = done.stdout.splitlines()
    assert first == "4 of 4 jobs finished, 4 of them now"
    assert second.startswith("run.sh: --dummy 0.0 and 1.0 gave the same results, bit for bit (jobs")
    assert succeeded(fresh.do("bash", "run.sh")).stdout == first.replace(", 4", ", 0") + "\n"


@pytest.mark.full
def test_of_a_job_that_is_killed_in_a_sweep_the_store_knows(project):
    """Its courier is no child of the job; the next sweep continues the job, in the same run."""
    write_grid(project.root, "--epochs 4000 --seed 8 --device cpu --checkpoint-minutes 0.001")
    sweep = project.command("bash", "run.sh")
    job = started(sweep)
    wait_until(lambda: bool(list(project.root.glob(f"runs/{job}/*/last.pt"))))
    wait_until(lambda: [status for _, status in project.runs(job)] == ["RUNNING"])
    os.kill(json.loads((project.folder(job) / "lock").read_text())["pid"], signal.SIGKILL)
    done = ended(sweep)
    assert done.returncode == 1
    assert done.stderr.startswith(f"job {job} was killed by SIGKILL; its output ends: ")
    wait_until(lambda: [status for _, status in project.runs(job)] == ["KILLED"])
    write_grid(project.root, "--epochs 4000 --seed 8 --device cpu --pause-after 1e")
    again = project.do("bash", "run.sh")
    assert again.returncode == 0 and "finished, 0 of them now; 1 paused" in again.stdout
    assert len(project.runs(job)) == 1


def started(sweep: "subprocess.Popen[str]") -> str:
    """The id of the job that a sweep says next that it has started."""
    assert sweep.stdout
    return next(line.split()[2] for line in sweep.stdout if " started on " in line)


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_run_sh_runs_from_anywhere(lab, shell, tmp_path):
    """Also where CDPATH leads to another folder of the same name, and not at all by `source`."""
    root = lab.project.root
    lab.write_grid("--seed 9")
    (tmp_path / "else" / root.name).mkdir(parents=True)
    env = {"CDPATH": f"{tmp_path}/else:."}
    away = Project(root.parent)
    away.env = lab.project.env
    assert (
        "1 job: 1 pending" in silent(away.do(shell, f"{root.name}/run.sh", "--list", **env)).stdout
    )
    sourced = lab.project.do("bash", "-i", "-c", "source run.sh --list; echo still here")
    assert sourced.stdout == "still here\n"
    assert "run.sh: do not source it; type bash run.sh\n" in sourced.stderr


def test_what_started_it_may_ignore_its_children(lab):
    """Their ends could not be waited for."""
    lab.write_grid(light()(0))
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    command = f"{ignore}os.execvp(sys.argv[1], sys.argv[1:])"
    done = silent(lab.project.behind(sys.executable, "-c", command).do("bash", "run.sh"))
    assert "1 of 1 jobs finished, 1 of them now" in done.stdout


def test_a_wrong_grid_starts_nothing_and_names_each_mistake(lab):
    lab.write_grid("--seed 9", "--seed fast", "--sede 3", "--help", "--sede 4")
    syntax = lab.sweep()
    assert (syntax.returncode, syntax.stdout) == (2, "")
    assert syntax.stderr.splitlines() == [
        "job 2, run.py --seed fast: --seed fast: must be a whole number",
        "job 3, run.py --sede 3: --sede: no such flag; did you mean --seed? (and 1 more job)",
        "job 4, run.py --help: --help: cannot be used in a grid",
        "run.sh: 4 of 5 jobs are wrong; nothing was started",
    ]
    script, settings = (lab.project.root / f"{name}.py" for name in ("run", "settings"))
    declared, right = settings.read_text(), script.read_text()
    settings.write_text(declared.replace("seed: int = 0", "seed: int"))
    assert one_line(lab.sweep(), 2) == "run.sh: Settings.seed: needs a default"
    settings.write_text(f"{declared}    width: int = wide\n")
    line = "run.sh: NameError: name 'wide' is not defined (settings.py"
    assert one_line(lab.sweep(), 2).startswith(line)
    settings.write_text(declared)
    script.write_text(right.replace("def check(job):", "def check(job):\n    job.settings.sede"))
    lab.write_grid("--seed 9")
    fault = lab.sweep()
    assert fault.returncode == 2
    assert re.match(r"job 1, .*: AttributeError: .* \(run.py:\d+\)\n", fault.stderr)
    script.write_text(right.replace("import json", "import jsn, json"))
    line = "run.sh: run.py cannot be imported: ModuleNotFoundError: No module named 'jsn' (run.py:"
    assert one_line(lab.sweep(), 2).startswith(line)
    script.write_text(right)
    lab.write_grid("--seed 9", "--note wrong")
    checked = lab.sweep()
    assert (checked.returncode, checked.stdout) == (2, "")
    assert checked.stderr.startswith("job 2, run.py --note wrong: --note wrong: cannot run\n")
    lab.write_grid("--seed 9 --runs-root run.py/runs")
    folder = lab.sweep()
    assert (folder.returncode, folder.stdout) == (2, "")
    assert "cannot write in" in folder.stderr
    assert not (lab.project.root / "runs").exists()


MEANT = "run.sh: {} failed, so jobs may be missing; if that is meant, put || true behind it"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("jobb --seed 9", "jobb: command not found"),
        ('job --lr "$lrr"', "lrr: unbound variable"),
        ('for seed in $(false); do job --seed "$seed"; done', MEANT.format("false")),
        (
            'false | while read -r n; do job --seed "$n"; done',
            MEANT.format("what is before a pipe"),
        ),
    ],
)
def test_a_misspelt_grid_starts_nothing(lab, line, said):
    """The first signal to sweep.py is lost, as between a process's fork and its exec."""
    slow = lab.machine / "slow"
    begin = "trap '' TERM; sleep 0.5; trap - TERM"
    slow.write_text(f'#!/bin/sh\n{begin}; exec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    lab.write_lines(line)
    done = lab.sweep(PYTHON=str(slow))
    assert (done.returncode, done.stdout) == (2, "")
    unknown, nothing = done.stderr.splitlines()
    assert unknown.endswith(said)
    assert nothing == "run.sh: nothing was started"


def test_a_captured_job_prints_its_id_and_others_print_nothing(lab):
    lab.write_analysis()
    odd = 'job --note "a  b\n\'\\$"'
    lab.write_lines(
        "printf '0\\n1\\n' | while read -r seed; do job --seed \"$seed\"; done",
        f"id=$({odd} --seed 2)",
        f"{odd} --seed 2",
        'echo "captured $id"',
        'second=$(job analyse.py --first "$id" --note end)',
        'job analyse.py --first "$second"',
    )
    done = lab.sweep("--list", "--json")
    rows = json.loads(done.stdout)
    assert done.stderr == f"captured {rows[2]['id']}\n"
    assert [row["settings"].get("first") for row in rows[2:]] == [
        None,
        rows[2]["id"],
        rows[3]["id"],
    ]
    assert len(rows) == 5


def test_a_grid_may_use_any_names(lab, tmp_path):
    """Also those of variables that sweep.sh had, one of which named a folder to be removed."""
    own = tmp_path / "own"
    own.mkdir()
    lab.write_lines(f"work={own} planner=1 naming=1 code=9 python=none", "job --seed 5")
    succeeded(lab.sweep())
    assert own.is_dir() and not [*(lab.project.root / ".sweeps").iterdir()]


def test_what_git_ignores_is_in_a_sweep_and_what_jobs_write_beside_it_is_kept(lab):
    root = lab.project.root
    succeeded(lab.project.do("git", "init", "--quiet"))
    with (root / ".gitignore").open("a") as file:
        file.write("local_*.py\n*.so\n")
    (root / "local_paths.py").write_text("SCALE = 3")
    (root / "data").mkdir(exist_ok=True)
    (root / "data" / "gain.txt").write_text("2")
    (root / "ops").mkdir()
    (root / "ops" / "build.txt").touch()
    (root / "ops" / "kernel.so").write_text("3")
    read = "(local_paths.SCALE - 2) * ''.join(beside(each).read_text() for each in names)"
    used = f"names = 'data/gain.txt', 'ops/kernel.so'; beside('note.txt').write_text({read})"
    named = "    import local_paths\n    beside = Path(__file__).parent.joinpath\n"
    script = "    script = Path(sys.argv[0]).stem\n"
    lab.project.edit("run.py", script, f"{named}    {used}\n{script}")
    (root / "weights" / "old").mkdir(parents=True)
    (root / "weights" / "old" / "local_a.py").touch()  # in folders with ignored files alone
    for seed in (1, 2):
        lab.write_grid(f"--seed {seed}")
        said = succeeded(lab.sweep()).stdout
        (name,) = re.findall("run.sh: jobs have written (.*) beside their code, a copy that", said)
        assert (root / name).read_text() == "23"
    assert len([*(root / ".sweeps").iterdir()]) == 2
    packed = set[str]()
    for archive in root.glob("runs/.code/*.tar.gz"):
        with tarfile.open(archive) as file:
            packed |= {*file.getnames()}
    assert {"run.py", "ops/build.txt"} <= packed
    assert packed.isdisjoint({"local_paths.py", "ops/kernel.so"})  # which may be private


def test_a_grid_may_wait_for_its_own_commands(lab):
    lab.write_lines("job --seed 3 & wait", "(exit 5) & wait $! || job --seed $?", "wait")
    rows = json.loads(lab.sweep("--list", "--json").stdout)
    assert [row["settings"]["seed"] for row in rows] == [3, 5]


def test_a_grid_may_count_test_and_cut_off(lab):
    lab.write_lines(
        "yes | head -2 | while read -r _; do job --seed $((n++)); ((m++)); [[ $n == 1 ]]; done",
        'for seed in $(false || echo 5; seq 6 99999 | head -1); do job --seed "$seed"; done',
    )
    rows = json.loads(lab.sweep("--list", "--json", n="0", m="0").stdout)
    assert [row["settings"]["seed"] for row in rows] == [0, 1, 5, 6]


def test_of_a_wrong_job_no_id_is_known(lab):
    lab.write_analysis()
    lab.write_lines("id=$(job --sede 3)", 'job analyse.py --first "$id"', "job plot.py")
    done = lab.sweep()
    assert done.returncode == 2
    first, second, third, nothing = done.stderr.splitlines()
    assert first == "job 1, run.py --sede 3: --sede: no such flag; did you mean --seed?"
    assert second.startswith("job 2, analyse.py --first '': --first : must be the id of a job")
    assert third.startswith(
        "job 3, plot.py: plot.py: is not a job script, which calls launch.begin"
    )
    assert nothing == "run.sh: 3 of 3 jobs are wrong; nothing was started"


def test_an_empty_grid_and_wrong_flags_of_one_that_captures(lab):
    lab.write_lines(":")
    assert one_line(lab.sweep(), 2) == "run.sh: the grid has no jobs"
    lab.write_lines("id=$(job --seed 3)", 'job --seed 4 --note "of $id"')
    assert one_line(lab.sweep("--gpsu", "0"), 2).startswith("run.sh: --gpsu: no such flag")


UNKNOWN = "no such flag; see --help"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--retries -1", "--retries -1: must be at least 0"),
        ("--at-most 3", "--at-most: only with --on or --slurm"),
        ("--piece 2h", "--piece: only with --on or --slurm"),
        ("--slurm --piece 2", "--piece 2: must be at least two minutes, such as 2h or 90m"),
        ("--slurm --piece 1m", "--piece 1m: must be at least two minutes, such as 2h or 90m"),
        ("-- --partition gpu", "--: only with --on or --slurm"),
        ("--slurm --retries 2", "--retries: not with --on or --slurm alone"),
        ("--on a,b,local", "--on a,b,local: one cluster at a time, and local"),
        ("--cost", "--cost: only with --list"),
        ("--only failed --watch", "--only: not with --watch"),
        ("--budget 0", "--budget 0: must be above 0"),
        ("--budget two", "--budget two: must be none or a number"),
        ("--budget 2 --list", "--budget: not with --list or --watch"),
        ("--budget 2 --slurm", "--budget: not with --on or --slurm"),
        pytest.param(
            *("--slurm", "--slurm: there is no sbatch on this machine"),
            marks=pytest.mark.skipif(bool(shutil.which("sbatch")), reason="Slurm is installed"),
        ),
        ("--slurm --partition gpu", f"--partition: {UNKNOWN}; options of sbatch go after --"),
        ("--slurm -- --output x.txt", "--output: run.sh sets this option of sbatch"),
        ("--slurm -- -d afterok:3", "-d: run.sh sets this option of sbatch"),
    ],
)
def test_wrong_flags_are_said(flags, said):
    with pytest.raises(SettingsError) as error:
        options.read(flags.split())
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--fail-fats", "--fail-fats: no such flag; did you mean --fail-fast?"),
        ("--json", "--json: only with --list"),
        ("--only stale", f"--only stale: such jobs are not run; known: {', '.join(STARTED)}"),
        ("--gpus 3", "--gpus 3: nvidia-smi does not list this GPU"),
    ],
)
def test_wrong_flags_are_refused(lab, flags, said):
    lab.write_grid("--seed 9")
    done = lab.sweep(*flags.split())
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"run.sh: {said}\n")
    assert list((lab.project.root / ".sweeps").iterdir()) == []


def test_search_draws_the_same_settings_each_time(lab):
    body = "search {} --lr 'log 1e-4 1e-1' --note \"choice 'a b' c\" -- --seed 1"
    shown = []
    for count in (8, 16):
        lab.write_lines(body.format(count))
        shown.append(listed(lab)[:-1])
    assert shown[1][:8] == shown[0] and len(shown[1]) == 16
    rates = [float(re.findall(r"lr=(\S+)", line)[0]) for line in shown[1]]
    quarters = Counter(int(4 * math.log(rate / 1e-4) / math.log(1e3)) for rate in rates)
    assert quarters == {0: 4, 1: 4, 2: 4, 3: 4}  # evenly spread, on the scale that was asked for
    assert {re.findall(r"note=(.+)", line)[0].strip() for line in shown[1]} == {"a b", "c"}


def test_each_flag_of_a_search_has_a_sequence_of_its_own(lab):
    rate, note = "--lr 'log 1e-4 1e-1'", "--note 'choice a b'"
    nested = "--seed 'int 5 900 if --note=b'"
    shown = {}
    for words in (rate, f"{note} {rate}", f"{note} {rate} {nested}"):
        lab.write_lines(f"search 16 {words}")
        lines = listed(lab)[:-1]
        shown[words] = [re.findall(r"lr=(\S+)", line) for line in lines]
    assert len(set(map(str, shown.values()))) == 1
    assert all(("seed=0" in line) == ("note=a" in line) for line in lines), lines
    lab.write_lines("search 6 --note 'choice a b c' --seed 'int 1 2'")
    assert len({*listed(lab)[:-1]}) == 6


@pytest.mark.full
def test_a_draw_is_recorded_with_its_job_and_stays(project):
    rate = "log 1e-3 1e-2"
    search = f"search 2 seed=3 --lr '{rate}' -- --steps 8 --batch-size 256 --device cpu"
    write_lines(project.root, search, f"{search} --seed 1", "job --steps 8 --seed 2 --device cpu")
    done = succeeded(project.do("bash", "run.sh"))
    tags = """SELECT value, COUNT(*) FROM tags JOIN runs USING (run_uuid)
    WHERE key = 'search' AND lifecycle_stage = 'active' GROUP BY value ORDER BY value"""
    drawn = {"seed": 3, "ranges": {"--lr": rate}}
    expected = [(json.dumps({**drawn, "index": index}), 2) for index in (0, 1)]
    assert project.ask(tags) == expected
    again = next(line for line in done.stdout.splitlines() if "--lr=" in line).split("cpu: ")[1]
    succeeded(project.do("python", *again.split(), "--force"))
    assert project.ask(tags) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("some", "search: must begin with the number of jobs, such as search 20 seed=0"),
        ("5 --lr 'log 0 1'", "search: --lr 'log 0 1': must look like 'log 1 10', with two "),
        ("5 --lr 'normal 1 -2'", "search: --lr 'normal 1 -2': must look like 'normal 0 1': mean"),
        ("5 --lr 'uniform 0 1' -- --lr 1", "search: --lr: is drawn, and given after --"),
        ("5 --lr 'uniform 0 1 if --note=a'", "search: --lr: 'if --note=a' must name a flag that "),
        ("until 0 without improvement --at-most 9", "search until 0 without improvement --at-most"),
        ("until 5 --lr 'log 1 2'", "search until 5 --lr log 1 2: must look like search until 10 "),
        ("5 --note 'choice a b'", "search 5: its ranges have 2 different jobs; ask for as many"),
    ],
)
def test_a_wrong_search_is_refused_before_anything_starts(lab, words, said):
    lab.write_lines(f"search {words}")
    wrong = lab.sweep("--list")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith(f"run.sh: {said}")


@pytest.mark.full
def test_a_search_ends_after_draws_that_do_not_improve(lab):
    """In the order of the draws, however many run at once and whichever ends first; a result that
    is not a number, here the first, is worse than any other."""
    metric = "from labjobs.settings import Metric\nMETRICS = {'loss': Metric('lower')}"
    declared = SETTINGS.replace("METRICS = {}", metric)
    (lab.project.root / "settings.py").write_text(f'{declared}    monitor: str = "val_loss"\n')
    words = "--lr 'uniform 0 1' -- --note '{\"seconds\": 0.1}'"
    lab.write_lines(f"search 40 {words}")
    draws = json.loads(silent(lab.sweep("--list", "--json")).stdout)
    first, *rates = [draw["settings"]["lr"] for draw in draws]
    loss = f'abs(job.settings.lr - 0.4) if job.settings.lr != {first} else float("nan")'
    scored = f'job.journal.metrics(12, {{"best_val_loss": {loss}}})'
    later = 'time.sleep(job.settings.lr + note.get("seconds", 0.3))'
    lab.project.edit("run.py", "    job.journal.flush()", f"    {scored}\n    job.journal.flush()")
    lab.project.edit("run.py", 'time.sleep(note.get("seconds", 0.3))', later)
    errors = [math.inf, *(abs(rate - 0.4) for rate in rates)]
    bests = [number for number, error in enumerate(errors) if error == min(errors[: number + 1])]
    steps = zip(bests, [*bests[1:], len(draws)], strict=True)
    end = next(best for best, after in steps if after - best > 3) + 4
    assert 4 < end < 40
    lab.write_lines(f"search until 3 without improvement --at-most 40 {words}")
    assert len(listed(lab)) == 3 + 1
    done = silent(lab.sweep("--per-gpu", "4"))
    assert done.stdout.splitlines()[-1].startswith(f"{end} of {end} jobs finished")
    ran = {path.parents[1].name for path in lab.project.root.glob("runs/*/*/outcome.json")}
    assert ran == {draw["id"] for draw in draws[:end]}
    removed = [
        lab.project.do("python", "jobs.py", "rm", draw["id"], "--dry-run").returncode
        for draw in (draws[0], draws[end - 1])
    ]
    assert removed == [1, 0]  # what was drawn later depends on the results of the first


def listed(lab: Lab) -> list[str]:
    done = silent(lab.sweep("--list"))
    return done.stdout.splitlines()


def test_states_and_ctrl_c(lab):
    """It stops the running job and starts no other."""
    lab.write_grid(light(ends="failed", says="KeyError: no")(0), light()(1))
    assert lab.sweep().returncode == 1
    jobs = light(seconds=600)(2), light(ends="failed", says="KeyError: no")(0), light()(1)
    lab.write_grid(*jobs, light()(7))
    sweep = lab.start("--only", "pending", "--per-gpu", "1")
    job = started(sweep)
    folder = lab.project.folder(job)
    wait_until((folder / "ran").exists)
    *lines, total = listed(lab)
    assert [line.split()[1] for line in lines] == ["running", "failed", "unsent", "pending"]
    assert lines[0].startswith(job) and lines[0].endswith("[step 2/12, 20 s left]")
    assert lines[1].endswith("[KeyError: no]")
    assert total == "4 jobs: 1 failed, 1 pending, 1 running, 1 unsent"

    os.killpg(sweep.pid, signal.SIGINT)  # what a terminal does
    stopped = ended(sweep)
    assert stopped.returncode == 130
    said = "run.sh: stopping the jobs because of Ctrl-C; a second Ctrl-C kills them\n"
    assert stopped.stderr == said
    last = "0 of 4 jobs finished, 0 of them now; 1 interrupted, 1 not started, 2 skipped"
    assert stopped.stdout.splitlines()[-1] == last
    found = json.loads(lab.sweep("--list", "--json").stdout)
    assert [row["state"] for row in found] == ["interrupted", "failed", "unsent", "pending"]
    only = silent(lab.sweep("--list", "--only", "failed")).stdout.splitlines()
    total = "4 jobs: 1 failed, 1 interrupted, 1 pending, 1 unsent"
    assert (only[0].split()[0], only[1:]) == (found[1]["id"], [total])
    assert silent(lab.sweep("--list", "--only", "stale")).stdout.splitlines() == [total]
    assert found[0] | {"id": job, "about": "step 2/12, 20 s left"} == found[0]
    assert found[0]["settings"]["seed"] == 2
    assert Path(found[0]["folder"]) == folder


def test_messages_of_a_failure_of_silence_and_of_the_end(lab, tmp_path):
    """No message has a secret, or is long, whatever a job prints."""
    failing = light(ends="failed", says=f"KeyError: hunter2hunter2 {'no' * 1000}")
    lab.write_grid(failing(0), failing(1), light(seconds=4)(2))
    lab.env |= {"HUB_TOKEN": "hunter2hunter2"}
    done = lab.sweep(NOTIFY=f"cat >> {tmp_path / 'told'}", NOTIFY_SECONDS="1")
    assert done.returncode == 1
    told = (tmp_path / "told").read_text().splitlines()
    assert sum("a job has failed, the first one: " in line for line in told) == 1
    assert "KeyError: ***" in "".join(told) and "hunter2" not in "".join(told)
    assert max(map(len, told)) < 1100
    assert any("has stopped logging: " in line and '"seconds": 4' in line for line in told)
    end = next(line for line in done.stdout.splitlines() if " jobs finished, " in line)
    assert told[-1] == f"{lab.project.root.name}: {end}"


def test_a_message_that_cannot_be_sent_stops_nothing(lab):
    lab.write_grid(light()(0))
    done = lab.sweep(NOTIFY="printf 'no such address \\377' >&2; exit 3")
    assert done.returncode in (0, 3) and done.stdout.count(" finished: ") == 1
    assert "run.sh: NOTIFY: status 3: no such address \ufffd\n" in done.stderr


def test_variables_that_are_no_numbers(lab):
    """Nothing is started."""
    lab.write_grid(light()(0))
    lab.use(0, memory=3, percent=0)
    for variable, device in (("NOTIFY_SECONDS", ""), ("GPU_BUSY_MIB", "GPU-0")):
        said = lab.sweep(**{variable: "10m", "CUDA_VISIBLE_DEVICES": device})
        assert said.returncode == 2
        assert said.stderr == f"run.sh: {variable} 10m: must be a number, at least 0\n"
    assert not lab.intervals()


def test_silence_is_told_again_only_if_it_lasts_much_longer(tmp_path, monkeypatch):
    """As with an evaluation after each epoch that takes longer than ten minutes."""
    now, told = [0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    entry = SimpleNamespace(job=SimpleNamespace(path=tmp_path))
    worker = Worker(Gpu({}), Starter(tmp_path, 1, warm=False))
    for silence in (1, 1, 1200, 1, 1200, 1, 13_000):
        with (tmp_path / JOURNAL).open("a") as journal:
            print("{}", file=journal)
        for _ in range(silence):
            now[0] += 1
            told += [silence] * worker.is_stuck(entry, 600)
    assert told == [1200, 13_000]


@pytest.mark.full
def test_two_batch_systems(lab: Lab) -> None:
    """None waits for a job of the other, or is forgotten where the other cannot be asked. One that
    does not answer is given no jobs, which it may have."""
    pretend_slurm(lab)
    job = "<JB_job_number>4711</JB_job_number><state>qw</state><tasks>1</tasks>"
    answers = {"qsub": "echo 4711", "qconf": "true", "sbatch": "echo 17"}
    answers |= {"qstat": f"echo '<jobs><job_list>{job}</job_list></jobs>'"}
    answers |= {"squeue": "echo 17 0 PENDING None"}
    for name, answer in answers.items():
        (lab.machine / name).write_text(f"#!/bin/sh\n{answer}\n")
        (lab.machine / name).chmod(0o755)
    text = '[one]\nsystem = "gridengine"\n[two]\nsystem = "slurm"\n'
    (lab.project.root / "cluster.toml").write_text(text)
    lab.write_analysis()
    lab.write_grid("--seed 1")
    silent(lab.sweep("--on", "one"))
    lab.write_lines("first=$(job --seed 1)", 'job analyse.py --first "$first"')
    said = one_line(lab.sweep("--on", "two"), 2)
    assert "Slurm cannot wait for job " in said and said.endswith(", queued by SGE 4711_0 PENDING")
    lab.write_grid("--seed 2")
    silent(lab.sweep("--on", "two"))
    (lab.machine / "qstat").write_text("#!/bin/sh\nexit 1\n")
    again = lab.sweep("--on", "two")
    assert again.stdout == "nothing submitted to Slurm: 1 queued\n"
    assert again.stderr == "run.sh: qstat: status 1; the jobs in its queue are not known\n"
    (lab.machine / "qstat").write_text("#!/bin/sh\necho '<jobs'\n")
    assert "run.sh: qstat: has not printed XML (" in lab.sweep("--list").stderr
    (lab.machine / "qstat").write_text("#!/bin/sh\nexit 1\n")
    lab.write_grid("--seed 1")
    twice = lab.sweep("--on", "one")
    assert (twice.returncode, twice.stderr.splitlines()[-1]) == (2, "run.sh: qstat: status 1")


def test_what_is_wrong_in_cluster_toml(lab: Lab) -> None:
    """Nothing is submitted; tests/engine/test_clusters.py has the other mistakes."""
    pretend_slurm(lab)
    lab.write_grid("--seed 9")
    (lab.project.root / "cluster.toml").write_text('[hyades]\nsystem = "slurm"\npartitions = "a"\n')
    said = one_line(lab.sweep("--on", "hyades"), 2)
    hint = "no such key; did you mean partition?"
    assert said == f"run.sh: cluster.toml: [hyades] partitions: {hint}"
    assert not (lab.machine / "submitted").exists()


@pytest.mark.full
def test_an_image_that_is_not_on_the_node(lab: Lab) -> None:
    """The job does not start; tests/test_containers.py has images that are there."""
    pretend_slurm(lab)
    lab.write_grid("--seed 9")
    toml = '[hyades]\nsystem = "slurm"\ncontainer = "localhost/none"\n'
    (lab.project.root / "cluster.toml").write_text(toml)
    silent(lab.sweep("--on", "hyades"))
    words = (lab.machine / "submitted").read_text().split("\0")
    (script,) = (word for word in words if word.startswith("--wrap="))
    node = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURMD_NODENAME": "node"}
    node |= {"SLURM_CPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    said = one_line(lab.project.do("sh", "-c", script.removeprefix("--wrap="), **node), 1)
    assert re.match("job .{12} cannot be started: container localhost/none: .*podman", said)
    assert lab.intervals() == []


@pytest.mark.full
def test_a_cluster_is_asked_for_what_cluster_toml_says(lab: Lab, tmp_path: Path) -> None:
    """A person's own file adds to the project's, and replaces it."""
    pretend_slurm(lab)
    lab.write_grid("--seed 9", "--seed 8 --data-root elsewhere")
    (lab.project.root / "cluster.toml").write_text(
        """[hyades]
system = "slurm"
partition = "gpu"
account = "somebody"
constraint = "a100&nvlink"
cores = 8
memory = "32G"
time = "4:00:00"
ask = { gpus = "--ntasks=1 --gpus-per-task=a100:{}" }
options = ["--exclude=bad node"]
requeue = false
setup = ["module load 'cuda 12'"]
runs = "$SCRATCH/runs"
data = "/data"
"""
    )
    own = tmp_path / "config" / "labjobs"
    own.mkdir(parents=True)
    (own / "cluster.toml").write_text('[hyades]\naccount = "me"\nqos = "fast"\n')
    lab.env |= {"XDG_CONFIG_HOME": str(own.parent), "SCRATCH": str(tmp_path / "scratch")}
    flags = ("--on", "hyades", "--gpus-per-job", "2", "--at-most", "3", "--", "--nice=1")
    assert "2 jobs submitted to Slurm as " in silent(lab.sweep(*flags)).stdout
    words = (lab.machine / "submitted").read_text().split("\0")
    for word in (
        "--partition=gpu",
        "--account=me",
        "--qos=fast",
        "--constraint=a100&nvlink",
        "--cpus-per-task=8",
        "--mem=32G",
        "--time=4:00:00",
        "--ntasks=1",
        "--gpus-per-task=a100:2",
        "--exclude=bad node",
        "--no-requeue",
        "--nice=1",
        "--array=0-1%3",
    ):
        assert word in words, word
    assert not any(word.startswith("--gres") for word in words)
    (record,) = lab.project.root.glob(".sweeps/*/submitted.json")
    given = [f"--runs-root={tmp_path}/scratch/runs", "--data-root=/data"]
    jobs = [words for _, words, _ in json.loads(record.read_text())["jobs"]]
    own = [["--seed", "9"], ["--seed", "8", "--data-root", "elsewhere"]]
    assert jobs == [["run.py", *given, *flags] for flags in own]
    assert len(list((tmp_path / "scratch/runs").glob("*/*"))) == 2
    (script,) = (word for word in words if word.startswith("--wrap="))
    done = subprocess.run(
        ["sh", "-c", script.removeprefix("--wrap=")], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1 and "setup in cluster.toml failed: module load" in done.stderr
    lab.write_grid("--seed 7")
    assert lab.sweep("--on", "local").returncode == 0
    assert len(lab.intervals()) == 1


def test_slurm_gives_what_is_not_here(lab, project, tmp_path):
    """Jobs are checked without the devices that they will have."""
    pretend_slurm(lab)
    whole = project.copy(tmp_path / "whole")
    write_grid(whole.root, "--precision fp16 --model convnet", "--device cuda:3")
    whole.env = lab.env | {"PYTHONPATH": ""}  # these jobs need torch
    done = silent(whole.do("bash", "run.sh", "--slurm"))
    assert "2 jobs submitted to Slurm as " in done.stdout


@pytest.mark.full
def test_jobs_that_slurm_is_not_given_are_named(lab):
    """Those that are stale, as a sweep on this machine does."""
    pretend_slurm(lab)
    lab.write_grid(*map(light(), range(2)))
    assert lab.sweep().returncode == 0
    script = lab.project.root / "run.py"
    script.write_text(script.read_text().replace('seconds", 0.3', 'seconds", 0.2'))
    lab.write_grid(*map(light(), range(3)))
    done = lab.sweep("--slurm")
    assert done.returncode == 1 and "1 job submitted to Slurm as " in done.stdout, done
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all(" is stale: " in line and "--redo-stale runs it again" in line for line in lines)
    silent(lab.sweep("--slurm", "--redo-stale"))


def test_results_that_the_store_lacks(lab, tmp_path):
    """While it is away, nothing is started for them, and the exit status says that they wait."""
    lab.write_grid(light()(0))
    assert lab.sweep().returncode == 0
    (tmp_path / "broken.db").write_text("no database")
    away = lab.sweep(MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/broken.db")
    assert away.returncode == 3
    assert away.stdout == "0 of 1 jobs finished, 0 of them now; 1 unsent\n"
    problem, hint = away.stderr.splitlines()
    assert "the tracking store cannot be read" in problem
    assert hint == ("run.sh: some results are not uploaded yet; the same command uploads them")
    assert len(lab.intervals()) == 1


@pytest.mark.parametrize(("beat", "state"), [("half past ten", "pending"), ("now", "running")])
def test_a_heartbeat_of_another_folder(lab, beat, state):
    """It tells that the job is being trained there, if it is a time."""
    heartbeat = str(time.time()) if beat == "now" else beat
    lab.write_grid(light()(0), light()(1))
    job = json.loads(lab.sweep("--list", "--json").stdout)[0]
    tags = {"job_id": job["id"], "code": job["code"], "owner": "elsewhere", "host": "far"}
    tags["heartbeat"] = heartbeat
    with closing(sqlite3.connect(lab.machine / "store.db")) as store, store:
        store.execute("INSERT INTO runs VALUES ('a', 0, 'RUNNING', 'active', 0, NULL)")
        store.executemany("INSERT INTO tags VALUES ('a', ?, ?)", tags.items())
    assert [line.split()[1] for line in listed(lab)[:-1]] == [state, "pending"]
