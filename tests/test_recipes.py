"""Recipes of `python jobs.py docs recipes`, as they stand there, in a fresh project."""

import re

import pytest
from faults import Project, job_of, one_line, succeeded
from repository import REPOSITORY
from test_project import check

PAGE = REPOSITORY / "{{cookiecutter.project_slug}}" / "labjobs" / "docs" / "recipes.md"
SHORT = ("--steps", "6", "--eval-every", "3", "--batch-size", "128")


def blocks(heading: str) -> list[str]:
    """The blocks of Python below a heading of the page."""
    _, _, rest = PAGE.read_text().partition(f"\n## {heading}\n")
    assert rest, heading
    return re.findall(r"```python\n(.*?)```", rest.partition("\n## ")[0], re.DOTALL)


def indented(block: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in block.splitlines(True))


def replace_function(project: Project, file: str, block: str) -> None:
    """Put a function of the page in the place of the project's function of that name."""
    name = re.match(r"def (\w+)", block)
    assert name
    path = project.root / file
    text = path.read_text()
    pattern = rf"(?ms)^def {name[1]}\(.*?\n\n\n"
    assert len(re.findall(pattern, text)) == 1
    path.write_text(re.sub(pattern, lambda _: f"{block}\n\n", text))


def remove_definition(project: Project, file: str, name: str) -> None:
    """Delete a function, class or table at the top of a file, with its text."""
    path = project.root / file
    text, count = re.subn(
        rf"(?ms)^(def {name}\(|class {name}\(|{name}: ).*?\n\n\n", "", path.read_text() + "\n\n\n"
    )
    assert count == 1, name
    path.write_text(text.rstrip() + "\n")


def assert_sound(project: Project) -> str:
    """The project's own checks pass, as does a job; returns its id."""
    check("ruff check", project.root)
    check("mypy", project.root)
    return job_of(succeeded(project.run(*SHORT)))


@pytest.mark.full
def test_another_loss(fresh):
    replace_function(fresh, "run.py", blocks("Another loss")[0])
    fresh.edit("run.py", "from torch.nn.functional import cross_entropy\n", "")
    assert_sound(fresh)


def graphed(project: Project) -> Project:
    """Have a project give its step to job.graphed, as the recipe says."""
    step, loop = blocks("A step as one CUDA graph")
    path = project.root / "run.py"
    before, inner, rest = path.read_text().partition("        for batch in job.steps(")
    _, last, after = rest.partition("            ema.update()\n")
    assert inner and last
    head, epochs, training = before.partition("    for _ in job.epochs():")
    made = [head, indented(step), "\n", epochs, training, indented(indented(loop)), after]
    path.write_text("".join(made))
    return project


@pytest.mark.full
def test_a_step_as_one_graph(project, fresh):
    """On a CPU the same steps are taken one by one."""
    flags = ("--ema", "0.9", "--clip-norm", "1", "--accumulate", "2", "--log-every", "1")
    plain = project.stored(project.finish(*SHORT, *flags))
    assert_sound(graphed(fresh))
    found = fresh.stored(fresh.finish(*SHORT, *flags))
    assert found.keys() == plain.keys()
    for name, curve in plain.items():
        steps, values = zip(*found[name], strict=True)
        assert steps == tuple(step for step, _ in curve)
        assert values == pytest.approx([value for _, value in curve], rel=1e-4), name
    said = one_line(fresh.run(*SHORT, "--seed", "1", "--graph", "on"), 2)
    assert "failed: --graph on: needs a CUDA GPU and a job of one process (" in said


@pytest.mark.full
def test_two_learning_rates(fresh):
    """And other settings of the optimizer still do something."""
    lines = blocks("An optimizer, a schedule, two learning rates")[0]
    fresh.edit(
        "optimizers.py", "    parts = groups(model.parameters(), settings)\n", indented(lines)
    )
    plain = fresh.stored(assert_sound(fresh))
    for flags in ("--weight-decay 0.5", "--lr-for-batch 8", "--optimizer muon"):
        other = fresh.stored(fresh.finish(*SHORT, *flags.split()))
        assert other["test_loss"] != plain["test_loss"], flags


@pytest.mark.full
def test_a_scheduler_of_torch(fresh):
    block = blocks("An optimizer, a schedule, two learning rates")[1]
    made, resumed, read, step = (line for line in block.splitlines() if line.strip())
    assert resumed.startswith("job.resume(..., scheduler=scheduler)")
    resume = "    job.resume(model=model, optimizer=optimizer, scaler=scaler, "
    fresh.edit("run.py", resume, f"    {made}\n{resume}scheduler=scheduler, ")
    fresh.edit("run.py", "lr = optimizers.set_lr(optimizer, settings, job, stopping)", read)
    fresh.edit("run.py", "        if stopping.impr", f"        {step}\n        if stopping.impr")
    fresh.edit("run.py", "    job.check_schedule(optimizers.factor)\n", "")
    for name in ("Progress", "SCHEDULES", "one_cycle", "stable_decay", "set_lr", "factor"):
        remove_definition(fresh, "optimizers.py", name)
    fresh.edit("optimizers.py", "from typing import Any, NamedTuple", "from typing import Any")
    fresh.edit("optimizers.py", "import EarlyStopping, Job, Muon, Timing, ", "import Muon, ")
    for setting in ("schedule", "warmup"):
        text = (fresh.root / "settings.py").read_text()
        found = re.search(rf'(?s)    {setting}: .*?""".*?"""\n\n', text)
        assert found
        fresh.edit("settings.py", found[0], "")
    check("ruff format", fresh.root)
    job = assert_sound(fresh)
    succeeded(fresh.run("--check"))
    said = one_line(fresh.run("--steps", "12", "--init-from", f"{job}:last"), 1)
    assert "job.check_schedule" in said


@pytest.mark.full
def test_all_images_of_a_patient_in_one_part(fresh):
    """And data sets that name no patients work as before."""
    (block,) = blocks("All images of a patient in one part")
    field, folder, load = (part.partition("\n")[2].strip("\n") for part in block.split("\n\n"))
    test, val, *checked = load.splitlines()
    none = "    val: Examples | None = None\n"
    for old, new in (
        (none, f"{none}    {field}\n"),
        ("        return Source(images, images.classes)\n", f"{indented(indented(folder))}\n"),
        ("train, test = split(train, TEST_FRACTION, settings.split_seed)", test),
        ("train, val = split(train, settings.val_fraction, settings.split_seed)", val),
        ("    if val is None and", indented("\n".join(checked)) + "\n    if val is None and"),
        ("    SettingsError,\n    channel", "    SettingsError,\n    check_groups,\n    channel"),
    ):
        fresh.edit("data.py", old, new)
    check("ruff format", fresh.root)
    check("ruff check --fix --select I", fresh.root)
    assert_sound(fresh)
