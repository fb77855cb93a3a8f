"""A step that is one CUDA graph: on a GPU, and on one that is not there."""

import pytest
from faults import Project, one_line, same, succeeded
from gpus import Machine, needs_stand_in
from test_recipes import graphed

EXACT = ("--deterministic", "--schedule", "constant")  # its last.pt stays, to be compared
EVERYTHING = "--augment crop-flip --ema 0.9 --clip-norm 1 --log-every 3"
COMPILED = f"--compile on {EVERYTHING}"
JOBS = {
    "MLP": "--log-every 1",
    "convnet": f"--model convnet {EVERYTHING}",
    "compiled": COMPILED,
    "fp16 in parts": f"--model convnet --precision fp16 --accumulate 3 {EVERYTHING}",
    "Muon": f"--model convnet --optimizer muon --weight-decay 0.1 {EVERYTHING}",
    "SGD": f"--optimizer sgd --lr-for-batch 32 {EVERYTHING}",
}
PYTHON = {
    "loss.item()": "operation not permitted when stream is capturing",
    "job.log(seconds=1.0)": "log it outside of the step",
    "job.log(at=torch.full((), job.step, device='cuda'))": "job.step would stay what it is now",
    "optimizer.param_groups[0]['lr'] = 1e-3": "set learning rates before the step",
    "torch.rand(1)": "random numbers",
    "stopping.plateaus += 1": "`stopping`",
}
"""Lines that do something else in each step, and what is said of them."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("stand-in", marks=[pytest.mark.full, needs_stand_in]),
        pytest.param("GPU", marks=pytest.mark.gpu),
    ],
)
def project(make, request, tmp_path_factory):
    """A project whose step is a graph."""
    made = graphed(Project(make()))
    if request.param == "GPU":
        return made
    return Machine(tmp_path_factory.mktemp("machine"), gpus=1).host(made)


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.gpu) for name in JOBS if name != "SGD"), "SGD"]
)
def test_the_same_bits_with_and_without(project, tmp_path, name):
    """And after pauses: before an epoch's smaller batch, and in the steps before a recording."""
    if JOBS[name] == COMPILED and project.env.get("STAND_IN_GPUS"):
        pytest.skip("the stand-in does not see what compiled code does")
    words = ("--epochs", "3", *JOBS[name].split(), *EXACT)
    plain, whole, paused = (project.copy(tmp_path / each) for each in ("plain", "whole", "paused"))
    for each in (plain, whole, paused):
        each.env |= project.env
    job = plain.finish(*words, "--graph", "off")
    assert "one CUDA graph from here on" in succeeded(whole.run(*words, "--graph", "on")).stdout
    for step in ("20", "23", "41"):
        assert paused.run(*words, "--pause-after", step).returncode == 0
    paused.finish(*words)
    for other in (whole, paused):
        assert same(other.tensors(job), plain.tensors(job))
        assert other.stored(job) == plain.stored(job)


@pytest.mark.parametrize("line", PYTHON)
def test_what_a_graph_cannot_do_is_refused(project, fresh, line):
    fresh.env |= project.env
    logged = "            job.log(measured)\n"
    fresh.edit("run.py", logged, f"{logged}            {line}\n")
    done = fresh.run("--epochs", "1")
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert PYTHON[line] in said and "--graph off" in said


@pytest.mark.gpu
def test_a_step_is_recorded_once_in_many_epochs(project):
    """Each has a smaller last batch, which is not recorded however many there are."""
    done = succeeded(project.run("--epochs", "6", "--graph", "on", "--note", "recorded once"))
    assert done.stdout.count("one CUDA graph from here on") == 1


@pytest.mark.full
def test_a_script_without_such_a_step_says_so(project, make):
    plain = Project(make())
    plain.env |= project.env
    said = one_line(plain.run("--epochs", "1", "--graph", "on"), 1)
    assert "this script gives no step to job.graphed" in said
