"""The example that compares networks: its jobs and its figures."""

import csv
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from faults import Project, job_of, one_line, succeeded
from sweeps import write_grid
from test_cka import reference
from torch import Tensor, nn

SHORT = "--epochs 1 --seed {}"


@pytest.fixture(scope="module")
def made(make):
    """A project that has trained two networks of different kinds, and has compared them."""
    project = Project(make(example="similarity"))
    grid(project, 'job compare.py --first "$a" --second "$b" --second-layers "layers.[0-4]"')
    succeeded(project.do("bash", "run.sh"))
    return project


@pytest.fixture(scope="module")
def project(made, tmp_path_factory):
    """That project with its jobs and their store, for further comparisons."""
    folder = tmp_path_factory.mktemp("further") / "project"
    return Project(Path(shutil.copytree(made.root, folder)))


def grid(project: Project, comparison: str) -> None:
    """Write a grid of two networks and a comparison of them."""
    run_sh = project.root / "run.sh"
    write_grid(project.root, SHORT.format(0))
    jobs = f"  a=$(job {SHORT.format(0)})\n  b=$(job {SHORT.format(1)} --model convnet)\n"
    text = run_sh.read_text().replace(f"  job {SHORT.format(0)}\n", f"{jobs}  {comparison}\n")
    assert comparison in text
    run_sh.write_text(text)


def trained(project: Project) -> list[str]:
    """The ids of the jobs of run.py, by their seed."""
    folders = [path.parent for path in project.root.glob("runs/*/*/settings.json")]
    found = [json.loads((folder / "settings.json").read_text()) for folder in folders]
    jobs = zip(found, folders, strict=True)
    seeds = {
        about["settings"]["seed"]: folder.parent.name
        for about, folder in jobs
        if about["script"] == "run"
    }
    return [job for _, job in sorted(seeds.items())]


def compare(project: Project, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    first, _ = trained(project)
    return project.do("python", "compare.py", "--first", first, "--quiet", *flags, **env)


def logged(project: Project, job: str) -> dict[tuple[str, str], float]:
    """The CKA that a job has logged, by the names of the layers."""
    (file,) = project.folder(job).glob("logged/cka-*.csv")
    with file.open(newline="") as rows:
        return {
            (row["first_layer"], row["second_layer"]): float(row["cka"])
            for row in csv.DictReader(rows)
        }


OUTPUTS = """
import sys
from pathlib import Path
import numpy as np
import torch
import data, jobs

both = [jobs.load(job).model for job in sys.argv[1:3]]
images = data.load(jobs.load(sys.argv[1]).settings, Path("data")).test[:][0]
found = {}
for part, model in zip("ab", both):
    value = (images / 255 - model.mean) / model.std
    for number, layer in enumerate(model.network.layers):
        value = layer(value)
        found[f"{part}{number}"] = value.detach().flatten(1).double().numpy()
np.savez("outputs.npz", **found)
"""


def test_a_job_s_values_are_those_of_its_layers(project):
    """Computed again, layer by layer, on all 359 test images, in NumPy."""
    script = project.root / "outputs.py"
    script.write_text(OUTPUTS)
    succeeded(project.do("python", "outputs.py", *trained(project)))
    with np.load(project.root / "outputs.npz") as kept:
        outputs = dict(kept)
    script.unlink()
    (project.root / "outputs.npz").unlink()
    assert len(outputs["a0"]) == 359
    done = compare(project, "--second", trained(project)[1], "--batch-size", "100")
    values = logged(project, job_of(done))
    assert len(values) == 6 * 8
    for (one, other), value in values.items():
        wanted = reference(outputs[f"a{one[-1]}"], outputs[f"b{other[-1]}"])
        assert value == pytest.approx(wanted, abs=1e-5)
    assert f"finished: last_cka {values['layers.5', 'layers.7']:.4g}" in done.stdout
    averaged = compare(project, "--second", trained(project)[1], "--spatial", "average")
    assert (
        logged(project, job_of(averaged))["layers.5", "layers.0"] != values["layers.5", "layers.0"]
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        ("", 2, "compare.py: --second, --model: give one of them"),
        ("--model mlp --second {}", 2, "compare.py: --second, --model: give one of them"),
        ("--second {} --pretrained", 2, "compare.py: --pretrained, --image-size: are for --model"),
        ("--model resnet81", 2, "--model resnet81: no such model; did you mean resnet18?"),
        ("--model mlp --pretrained", 2, "--pretrained: no weights are published for this project"),
        (
            "--second {} --layers layer.*",
            2,
            "--layers layer.*: the network has no such layer; did you mean layers.5?",
        ),
        (
            "--model resnet18 --second-layers layer1,fcc",
            2,
            "--second-layers fcc: the network has no such layer; did you mean fc?",
        ),
        ("--second {} --examples 3", 2, "compare.py: --examples 3: must be at least 4"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(project, flags, status, said):
    words = flags.format(trained(project)[1]).split()
    assert said in one_line(compare(project, *words), status)


# Networks of torchvision


def write_weights(home: Path, name: str) -> dict[str, Tensor]:
    """Write weights as torchvision publishes them where torch looks for them; returns them."""
    torch.manual_seed(7)
    network = torchvision.models.get_model(name)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # as if it had seen something
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 2)
    url = torchvision.models.get_model_weights(name).DEFAULT.url
    file = home / "hub" / "checkpoints" / url.split("/")[-1]
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), file)
    return dict(network.state_dict())


PUBLISHED = """
import sys
from pathlib import Path
import numpy as np
import torch, torchvision
from torch.nn.functional import interpolate
import data, jobs

network = torchvision.models.get_model("resnet18", weights="DEFAULT").eval()
job = jobs.load(sys.argv[1])
images = data.load(job.settings, Path("data")).test[:][0]
first = (images / 255 - job.model.mean) / job.model.std
kept = {"a": job.model.network.layers[:2](first)}
pixels = interpolate(images / 255, 64, mode="bilinear", antialias=True)
value = network.conv1(((pixels - job.model.mean) / job.model.std).expand(-1, 3, -1, -1))
for name in ("bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool"):
    value = getattr(network, name)(value)
    kept[name] = value
kept["fc"] = network.fc(value.flatten(1))
np.savez("outputs.npz", **{k: v.detach().flatten(1).double().numpy() for k, v in kept.items()})
"""


@pytest.mark.full
def test_published_weights_are_compared_to_their_last_layer(project, tmp_path):
    """In the true format, read from torch's cache; on grey images as on three equal colours."""
    env = {"TORCH_HOME": str(tmp_path / "torch")}
    flags = ("--model", "resnet18", "--pretrained", "--image-size", "64", "--layers", "layers.1")
    flags += ("--second-layers", "layer*,fc", "--batch-size", "200")
    refused = one_line(compare(project, *flags, HTTPS_PROXY="http://127.0.0.1:9", **env), 1)
    assert "--pretrained: the weights of resnet18 cannot be fetched or read (" in refused
    assert str(tmp_path / "torch" / "hub" / "checkpoints" / "resnet18-") in refused
    write_weights(tmp_path / "torch", "resnet18")
    done = succeeded(compare(project, *flags, **env))
    values = logged(project, job_of(done))
    (project.root / "outputs.py").write_text(PUBLISHED)
    succeeded(project.do("python", "outputs.py", trained(project)[0], **env))
    with np.load(project.root / "outputs.npz") as kept:
        wanted = {name: reference(kept["a"], kept[name]) for name in kept}
    (project.root / "outputs.py").unlink()
    (project.root / "outputs.npz").unlink()
    assert [name for _, name in values] == ["layer1", "layer2", "layer3", "layer4", "fc"]
    for (_, name), value in values.items():
        assert value == pytest.approx(wanted[name], abs=1e-4)


# The figures


MAPS = """
import numpy as np
import plot_compare
from labjobs.results import figures, tables
from labjobs.results.style import DEFAULT, VENUES
from labjobs.tracking.mlflow_client import experiment_name
from settings import CompareSettings

figures.use(VENUES[DEFAULT])
jobs = tables.jobs(experiment_name(), CompareSettings, "compare")
fig, caption = plot_compare.layer_maps(jobs)
ax = fig.axes[0]
(image,) = ax.images
labels = [text.get_text() for text in ax.get_yticklabels()]
print(image.origin, image.get_clim(), labels[0], labels[-1], len(fig.axes))
np.save("map.npy", np.asarray(image.get_array()))
"""


@pytest.mark.full
def test_jobs_without_a_comparison_are_said_in_one_line(make):
    drawn = Project(make(example="similarity")).do("python", "plot_compare.py")
    assert "no finished job of compare.py" in one_line(drawn, 1)
