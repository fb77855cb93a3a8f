"""`python jobs.py export-model`: a network that runs without the project, and gives its outputs."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from faults import Project, job_of, one_line, silent, succeeded

KEEP = """
import sys
import numpy as np
import torch
import jobs, models

job, folder = jobs.load(sys.argv[1]), sys.argv[2]
made = models.example_input(job.settings, job.spec, 5)
made = made if isinstance(made, tuple) else (made,)
with torch.no_grad():
    output = job.model(*made)
np.savez(f"{folder}/inputs.npz", *[each.numpy() for each in made])
output = output if isinstance(output, tuple) else (output,)
np.savez(f"{folder}/outputs.npz", *[each.numpy() for each in output])
"""
"""Keeps inputs of a job's network, and its outputs."""

ALONE = """
from importlib.util import find_spec
import numpy as np

assert not any(map(find_spec, ("labjobs", "models", "jobs", "settings")))
outputs = outputs if isinstance(outputs, tuple) else (outputs,)
print(*[tuple(each.shape) for each in outputs])
with np.load("../inputs.npz") as kept:
    inputs = [torch.from_numpy(kept[name]) for name in kept]
with torch.no_grad():
    output = model(*inputs)
output = output if isinstance(output, tuple) else (output,)
np.savez("../found.npz", *[each.numpy() for each in output])
"""
"""The same outputs from a program, without the project, after the code in its README."""


class Exported:
    """A project with a job, and its network in a folder elsewhere."""

    def __init__(self, project: Project, job: str, folder: Path) -> None:
        self.project, self.job, self.folder = project, job, folder
        flags = ("--out", str(folder / "model"))
        self.done = project.do("python", "jobs.py", "export-model", job, *flags)
        assert (self.done.returncode, self.done.stderr) == (0, ""), self.done
        project.printed(KEEP, job, str(folder))
        self.printed = ""

    def outputs(self) -> list[np.ndarray]:
        return list(np.load(self.folder / "outputs.npz").values())

    def found(self) -> list[np.ndarray]:
        model, env = self.folder / "model", self.project.env
        (code,) = re.findall("```python\n(.*?)```", (model / "README.md").read_text(), re.DOTALL)
        words = [sys.executable, "-I", "-c", f"{code}\n{ALONE}"]
        done = subprocess.run(words, cwd=model, env=env, capture_output=True, text=True)
        self.printed = silent(done).stdout
        return list(np.load(self.folder / "found.npz").values())


def exported(make: Callable[..., Path], folder: Path, *flags: str, **answers: str) -> Exported:
    project = Project(make(**answers))
    done = succeeded(project.run(*flags, "--quiet"))
    return Exported(project, job_of(done), folder)


@pytest.fixture(scope="module")
def made(make, tmp_path_factory):
    flags = ("--model", "convnet", "--epochs", "1", "--batch-size", "256")
    return exported(make, tmp_path_factory.mktemp("exported"), *flags)


def assert_same_elsewhere(made: Exported) -> None:
    """The program gives the network's outputs without the project."""
    for one, other in zip(made.outputs(), made.found(), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.full
def test_a_fresh_python_with_torch_alone_gives_the_same_outputs(made):
    assert_same_elsewhere(made)
    assert made.printed == "(4, 10)\n"
    files = {"README.md", "job.json", "model.pt2", "weights.safetensors"}
    assert {path.name for path in (made.folder / "model").iterdir()} == files
    model, where = made.done.stdout.splitlines()
    assert model == "model.pt2: gives the network's outputs for 1, 2, 3 and 8 examples"
    assert where == f"exported: {made.folder}/model"
    about = json.loads((made.folder / "model" / "job.json").read_text())
    assert (about["id"], about["status"]) == (made.job, "finished")
    assert about["settings"]["model"] == "convnet" and "val_loss" in about["metrics"]
    assert len(about["spec"]["classes"]) == 10


SHORT = ("--steps", "2")
GRAPHS = (*SHORT, "--eval-every", "2", "--layers", "2")


@pytest.mark.long
def test_several_inputs_whose_numbers_of_rows_grow(make, tmp_path):
    assert_same_elsewhere(exported(make, tmp_path, *GRAPHS, example="graphs"))


def test_weights_are_those_of_the_job_by_name(made):
    from safetensors.numpy import load_file

    kept, weights = load_file(made.folder / "model/weights.safetensors"), made.project.weights
    assert {name: array.tobytes() for name, array in kept.items()} == {
        name: tensor.contiguous().numpy().tobytes() for name, tensor in weights(made.job).items()
    }


def test_a_folder_that_exists_is_not_touched(made):
    before = sorted((path, path.stat().st_mtime_ns) for path in made.folder.rglob("*"))
    words = ("export-model", made.job, "--out", str(made.folder / "model"))
    line = one_line(made.project.do("python", "jobs.py", *words), 2)
    cure = "exists already: remove it, or choose another --out"
    assert line == f"jobs.py: {made.folder}/model {cure}"
    assert sorted((path, path.stat().st_mtime_ns) for path in made.folder.rglob("*")) == before


LAYERS = "        logits: Tensor = self.layers(images)\n"


@pytest.fixture
def changed(made, tmp_path):
    return made.project.clone(tmp_path / "project")


def test_without_example_inputs_a_line_says_what_to_write(made, changed):
    changed.edit("models.py", "def example_input(", "def no_input(")
    line = one_line(changed.do("python", "jobs.py", "export-model", made.job), 1)
    assert line.startswith("jobs.py: models.py has no example_input(settings, spec, examples)")
    assert not (changed.root / "exported").exists()


def test_of_a_network_that_cannot_be_followed_nothing_is_left(made, changed):
    looking = "        images = images if images.sum() > 0 else 0 * images\n"
    changed.edit("models.py", LAYERS, looking + LAYERS)
    done = changed.do("python", "jobs.py", "export-model", made.job)
    warned, line = done.stderr.splitlines()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert warned.startswith(f"jobs.py: job {made.job}: from other code or data (")
    assert line.startswith("jobs.py: torch.export cannot follow the network (Could not guard")
    assert not [*(changed.root / "exported").iterdir()]


def test_a_stale_job_is_exported_with_a_remark(made, changed):
    changed.edit("models.py", LAYERS, f"        images = images + 0\n{LAYERS}")
    done = changed.do("python", "jobs.py", "export-model", made.job[:6], "--json")
    remark = f"job {made.job}: from other code or data (models.ConvNet changed)"
    assert (done.returncode, done.stderr) == (0, f"jobs.py: {remark}\n")
    about = json.loads(done.stdout)
    assert about["folder"] == str(changed.root / "exported" / made.job)
    kept = json.loads((Path(about["folder"]) / "job.json").read_text())
    assert kept["exported_with"] == remark.partition(": ")[2]


def test_weights_that_do_not_fit_the_code_are_refused(made, changed):
    changed.edit("models.py", "width: int = 32", "width: int = 16")
    line = one_line(changed.do("python", "jobs.py", "export-model", made.job), 1)
    assert line.startswith(f"jobs.py: job {made.job} cannot be loaded with the present code (Error")
    assert line.endswith("check out the commit that it ran with")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("import torch\n", "import torch\nimport nosuch\n", "No module named 'nosuch' (models.py:"),
        ("def example_input(", "def example_input(*_):\n    1 / 0\n\n\ndef other(", "division by"),
    ],
)
def test_faults_in_the_students_code_are_one_line(made, changed, old, new, said):
    changed.edit("models.py", old, new)
    done = changed.do("python", "jobs.py", "export-model", made.job)
    *_, line = done.stderr.splitlines()
    assert done.returncode == 1 and "Traceback" not in done.stderr, done
    assert line.startswith(f"jobs.py: job {made.job} cannot be exported: ") and said in line


def test_of_a_job_that_has_not_finished_it_says_so(made, changed):
    flags = ("--epochs", "4", "--pause-after")
    job = job_of(changed.run(*flags, "1", "--quiet"))
    line = one_line(changed.do("python", "jobs.py", "export-model", job), 1)
    assert line.endswith("a job that trains keeps them from its first evaluation on")
    assert changed.run(*flags, "2e", "--quiet").returncode == 0
    done = changed.do("python", "jobs.py", "export-model", job)
    remark = f"jobs.py: job {job} has not finished; these are its best weights so far\n"
    assert (done.returncode, done.stderr) == (0, remark)


def test_jobs_without_weights_are_refused(made, changed):
    assert "there is no job none" in one_line(
        changed.do("python", "jobs.py", "export-model", "none"), 2
    )
    (changed.folder(made.job) / "best.pt").unlink()
    line = one_line(changed.do("python", "jobs.py", "export-model", made.job), 1)
    assert "no weights are kept" in line
