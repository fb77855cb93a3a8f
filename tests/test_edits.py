"""Edits of the first week: each project trains, is killed and goes on, is checked and drawn.

All of them change a student's own files, never the engine. Edits of other kinds are in
test_recipes.py and planted.py.
"""

import numpy as np
import pytest
from faults import assert_as_undisturbed, chosen, succeeded

pytestmark = pytest.mark.full

SHORT = ("--epochs", "30", "--batch-size", "128", "--log-every", "1", "--quiet")

EDITS = {
    "own data by default": (
        (
            "data.py",
            "    pixels, labels = digits()\n",
            '    table = torch.from_numpy(np.load(data_root / "measured.npy"))\n'
            "    pixels, labels = table[:, :-1].float(), table[:, -1].long()\n",
        ),
    ),
    "a layer that is frozen, two with the same weights, all in float64": (
        (
            "models.py",
            "    return MLP(spec.inputs, settings.width, spec.classes)\n",
            "    network = MLP(spec.inputs, settings.width, spec.classes).double()\n"
            "    network.layers[0].requires_grad_(False)\n"
            "    return network\n",
        ),
        (
            "models.py",
            "        self.layers = nn.Sequential(\n",
            "        first, second = nn.Linear(width, width), nn.Linear(width, width)\n"
            "        second.weight = first.weight\n"
            "        self.layers = nn.Sequential(\n",
        ),
        (
            "models.py",
            "            nn.Linear(width, width),\n",
            "            first,\n            nn.ReLU(),\n            second,\n",
        ),
        ("models.py", "spec.inputs)", "spec.inputs, dtype=torch.float64)"),
        (
            "run.py",
            "Adam(model.parameters(),",
            "Adam([p for p in model.parameters() if p.requires_grad],",
        ),
        ("run.py", "model(inputs).float()", "model(inputs)"),
        ("data.py", "[:, :-1].float() / 16", "[:, :-1] / 16"),
    ),
}
"""Changes of the example `plain`: (file, text, text in its place)."""


@pytest.fixture
def edited(of_example, tmp_path, request):
    """A project with an edit, and a table of 400 examples, in which the largest of the first ten
    numbers tells the class."""
    project = of_example("plain").copy(tmp_path / "edited")
    for change in EDITS[request.param]:
        project.edit(*change)
    inputs = np.random.default_rng(0).random((400, 64))
    (project.root / "data").mkdir()
    table = np.column_stack([inputs, inputs[:, :10].argmax(1)])
    np.save(project.root / "data" / "measured.npy", table)
    return project


@pytest.mark.parametrize("edited", chosen(EDITS, "own data by default"), indirect=True)
def test_it_trains_is_killed_and_goes_on_and_is_drawn(edited, tmp_path):
    parts = edited.copy(tmp_path / "parts")
    job = edited.finish(*SHORT)
    parts.killed(*SHORT)
    assert parts.finish(*SHORT) == job
    assert_as_undisturbed(parts, job, edited, job)
    succeeded(parts.do("python", "plot.py", "--format", "png"))
    assert (parts.root / "figures/learning-curves.png").exists()
    done = succeeded(parts.run("--check"))
    assert done.stdout.endswith("check finished: nothing found\n"), done
