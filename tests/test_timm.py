"""A network of timm by its recipe: it starts from a file of weights, and its job is like others."""

import re
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import pytest
import timm
import torch
from faults import Project, job_of, one_line
from safetensors.torch import save_file

pytestmark = pytest.mark.full

FLAGS = ("--model", "timm-resnet18", "--weights", "resnet18.safetensors", "--steps", "20")
SHORT = (*FLAGS, "--eval-every", "10", "--quiet")


@pytest.fixture(scope="module")
def project(make: Callable[..., Path]) -> Project:
    """A project with what the recipe says, and a file of weights for ImageNet."""
    project = Project(make())
    recipes = (project.root / "docs" / "recipes.md").read_text()
    recipe = recipes.split("## A network of timm\n")[1].split("\n## ")[0]
    network, setting, start, optimizer = re.findall(r"(?s)```python\n(.*?)```", recipe)
    project.edit("models.py", "from torch import", "import timm\nfrom torch import")
    project.edit("models.py", "MODELS: dict", f"{network}\n\nMODELS: dict")
    line = '    "timm-resnet18": timm_resnet18,\n'
    project.edit("models.py", '    "convnet": ', f'{line}    "convnet": ')
    project.edit("settings.py", "    # Length", f"{indent(setting, '    ')}\n    # Length")
    project.edit("run.py", "import torch\nfrom", "import timm\nimport torch\nfrom")
    made = "        models.make(settings, splits.spec),"
    started = f"    model = {made.strip(' ,')}\n{indent(start, '    ')}    return (\n        model,"
    project.edit("run.py", f"    return (\n{made}", started)
    script = project.root / "optimizers.py"
    before, after = re.split(r"(?s)def make\(.*?(?=def groups\()", script.read_text())
    script.write_text(f"{before}{optimizer}\n\n{after}")
    imported = "from timm.optim import param_groups_layer_decay\n"
    project.edit("optimizers.py", "from torch import nn", f"{imported}from torch import nn")
    torch.manual_seed(0)
    (project.root / "data").mkdir()
    save_file(timm.create_model("resnet18").state_dict(), weights_in(project))
    return project


def weights_in(project: Project) -> Path:
    return project.root / "data" / "resnet18.safetensors"


def test_it_starts_from_the_file_and_is_fitted_to_the_data(project: Project) -> None:
    job = job_of(project.run(*SHORT, "--lr", "1e-30"))
    torch.manual_seed(0)
    published, found = timm.create_model("resnet18"), project.weights(job)
    layer = "layer1.0.conv1.weight"
    assert torch.allclose(found[f"network.{layer}"], published.state_dict()[layer])
    grey = published.conv1.weight.sum(1, keepdim=True)  # its filters, for one channel
    assert torch.allclose(found["network.conv1.weight"], grey)
    assert found["network.fc.weight"].shape == (10, 512)


def test_layers_near_the_images_learn_less(project: Project) -> None:
    still, moved = (
        project.weights(job_of(project.run(*SHORT, *lr))) for lr in (("--lr", "1e-29"), ())
    )
    first, last = (
        (moved[name] - still[name]).abs().max()
        for name in ("network.layer1.0.conv1.weight", "network.layer4.1.conv2.weight")
    )
    assert 0 < first < last / 2


def test_nothing_is_found_by_check(project: Project) -> None:
    done = project.run("--model", "timm-resnet18", "--check")
    assert done.returncode == 0, done
    assert "check finished: nothing found" in done.stdout


def test_with_another_file_it_is_stale(project: Project) -> None:
    flags = (*SHORT, "--seed", "1")
    job = job_of(project.run(*flags))
    save_file(timm.create_model("resnet18").state_dict(), weights_in(project))
    said = one_line(project.run(*flags), 5)
    assert f"job {job} was finished with other data (data/resnet18.safetensors changed)" in said
