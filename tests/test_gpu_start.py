"""Jobs on GPUs that are not there, by their commands."""

import os
import re

import pytest
import torch
from faults import Project, chosen, job_of, lines_in, one_line, succeeded
from gpus import Machine, needs_stand_in
from sweeps import NVIDIA_SMI, write_grid

pytestmark = [needs_stand_in, pytest.mark.full]

JOBS = {"default": (), "profiled": ("--profile", "3", "--precision", "bf16")}
"""The flags of jobs that ask different things of a GPU."""


class Done:
    """A job of one epoch that has run."""

    def __init__(self, project: Project, *flags: str) -> None:
        done = succeeded(project.run("--epochs", "1", *flags))
        self.folder = project.folder(job_of(done))

    @property
    def tags(self) -> dict[str, str]:
        """What the journal says of the job."""
        lines = lines_in(self.folder)
        return {name: value for line in lines for name, value in line.get("tags", {}).items()}


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(tmp_path_factory.mktemp("machine"), gpus=2)


@pytest.fixture(scope="module")
def job(machine, project):
    """Runs a job by its name in JOBS, once."""
    done: dict[str, Done] = {}

    def run(name: str) -> Done:
        if name not in done:
            done[name] = Done(machine.host(project), *JOBS[name])
        return done[name]

    return run


def test_a_job_trains_on_a_gpu(job, machine):
    tags = job("default").tags
    assert (tags["device"], tags["gpu"], tags["precision"]) == ("H100 (a stand-in)", "0", "bf16")
    assert torch.load(job("default").folder / "best.pt")["models"]["model"]  # on any machine
    assert {started["order"] for started in machine.starts()} == {"PCI_BUS_ID"}


@pytest.mark.parametrize("device", ["cuda:7", "gpu"])
def test_a_gpu_that_is_not_there_is_refused_in_one_line(device, machine, project):
    line = one_line(machine.host(project).run("--device", device), 2)
    assert line.startswith(f"run.py: --device {device}: ")


def test_the_profile_says_what_the_gpu_did_and_that_no_step_waits(job):
    report = (job("profiled").folder / "profile.txt").read_text()
    assert "3 steps of 64 examples on H100 (a stand-in)\n" in report
    assert "the GPU is busy" in report and " MiB of memory at most" in report
    assert (job("profiled").folder / "memory.pickle").exists()


SET_LR = "            lr = optimizers.set_lr("
NO_WAIT = """            error = 2 <= job.step < 20  # of 21
            torch.cuda.set_sync_debug_mode("error" if error else "default")
"""
FLAGS = """    products = torch.get_float32_matmul_precision()
    print("evaluated with", products, torch.backends.cudnn.allow_tf32)
"""
STRICT = {
    "resident": (
        "--loader resident --precision bf16 --optimizer muon --weight-decay 0.1 --ema 0.9 "
        "--clip-norm 1 --accumulate 2 --augment crop-flip --log-every 2"
    ),
    "workers": (
        "--loader workers --workers 1 --precision fp16 --optimizer adamw --ema 0.9 "
        "--clip-norm 1 --accumulate 2 --augment crop-flip --log-every 2"
    ),
}
"""Jobs with everything on."""


@pytest.fixture(scope="module")
def strict(machine, project, tmp_path_factory):
    """A project whose steps fail if they wait, but for the first and the last, and whose
    evaluations print how numbers in 32 bits are multiplied."""
    made = machine.host(project.copy(tmp_path_factory.mktemp("strict") / "project"))
    made.edit("run.py", SET_LR, f"{NO_WAIT}{SET_LR}")
    made.edit("run.py", "    model.eval()\n", f"    model.eval()\n{FLAGS}")
    return made


def evaluated(said: str) -> set[str]:
    return {line for line in said.splitlines() if line.startswith("evaluated with")}


@pytest.mark.parametrize("name", chosen(STRICT, "resident"))
def test_no_step_waits_with_everything_on(strict, name):
    """And all of an evaluation is as exact as --precision says, in a process that has not trained
    too."""
    words = STRICT[name].split()
    as_said = {"evaluated with highest False"}
    whole = succeeded(strict.run("--epochs", "1", *words))
    assert evaluated(whole.stdout) == as_said
    paused = ("--epochs", "2", "--eval-every", "1e", *words)
    assert strict.run(*paused, "--pause-after", "1e").returncode == 0
    assert evaluated(succeeded(strict.run(*paused)).stdout) == as_said


def test_fp16_clips_the_gradients_that_fp32_has(machine, project):
    host = machine.host(project)
    words = ("--epochs", "1", "--clip-norm", "0.5", "--schedule", "constant", "--precision")
    norms = [
        [norm for _, norm in host.journalled(host.finish(*words, name))["train_gradient_norm"]]
        for name in ("fp32", "fp16")
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


@pytest.fixture
def noting(machine, project, tmp_path):
    """A project, and whether its forward function ran as it is since that was last asked."""
    note = tmp_path / "ran-as-it-is"
    made = machine.host(project.copy(tmp_path / "project"))
    made.edit(
        "run.py",
        "    inputs, labels = batch\n",
        "    inputs, labels = batch\n"
        "    whole = len(labels) == settings.batch_size\n"
        "    if whole and not torch.compiler.is_compiling():\n"
        f"        open({str(note)!r}, 'w').close()\n",
    )

    def ran_as_it_is() -> bool:
        found = note.exists()
        note.unlink(missing_ok=True)
        return found

    return made, ran_as_it_is


SHORT = ("--steps", "3", "--schedule", "constant", "--eval-every", "3")
WORTH = ("--steps", "1000000", *SHORT[2:])
"""The length of a job whose 85,002 weights and batches of 64 examples make it worth compiling."""


def test_auto_compiles_a_job_worth_it_each_time_it_goes_on(noting):
    """That a shorter job, which it continues, was not is said: compiled code has other bits."""
    host, ran_as_it_is = noting
    short = host.finish(*SHORT)
    assert ran_as_it_is()
    for pause, says in (("6", True), ("9", False)):
        going_on = ("--init-from", f"{short}:last", "--pause-after", pause)
        done = succeeded(host.run(*WORTH, *going_on))
        assert not ran_as_it_is()
        assert ("that job was too short to be compiled" in done.stdout) is says
    sizes = ("--smallest", "64", "--largest", "64")  # in jobs of a million steps
    host.do("python", "jobs.py", "find", "batch-size", *sizes, "--", *SHORT)
    assert ran_as_it_is()


def test_a_sweep_gives_each_job_a_gpu_and_asks_none_to_plan(project, tmp_path):
    machine = Machine(tmp_path, gpus=2)
    swept = machine.host(project.copy(tmp_path / "project"))
    for number in range(2):
        (tmp_path / "gpus").mkdir(exist_ok=True)
        (tmp_path / "gpus" / str(number)).write_text(f"GPU-{number}\n3, 0\n")
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    swept.env |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GPU_LOCKS": str(tmp_path / "locks")}
    write_grid(swept.root, *(f"--epochs 1 --seed {seed}" for seed in range(2)))
    succeeded(swept.do("bash", "run.sh"))
    journals = [path.read_text() for path in swept.root.glob("runs/*/*/metrics.jsonl")]
    gpus = [re.findall(r'"gpu": ?"(\d)"', journal) for journal in journals]
    assert sorted(gpus) == [["0"], ["1"]]
    assert len(machine.starts()) == 2
    assert not any(started["words"][0].endswith("sweep.py") for started in machine.starts())
