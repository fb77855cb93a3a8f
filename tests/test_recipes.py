"""Recipes of `python jobs.py docs recipes`, as they stand there, in a fresh project."""

import re
import sys

import pytest
from faults import Project, assert_as_undisturbed, ended, job_of, one_line, succeeded
from repository import REPOSITORY
from test_project import check

pytestmark = pytest.mark.full

PAGE = REPOSITORY / "{{cookiecutter.project_slug}}" / "labjobs" / "docs" / "recipes.md"
SHORT = ("--steps", "6", "--eval-every", "3", "--batch-size", "128")


def blocks(heading: str) -> list[str]:
    """The blocks of Python below a heading of the page."""
    _, _, rest = PAGE.read_text().partition(f"\n## {heading}\n")
    assert rest, heading
    return re.findall(r"```python\n(.*?)```", rest.partition("\n## ")[0], re.DOTALL)


def add_analysis(project: Project) -> None:
    """Add the script of the recipe, its settings, and the one that draws its figure."""
    settings, script, figure = blocks("A script of your own")
    project.edit("settings.py", "import Metric,", "import JobId, Metric,")
    project.edit("settings.py", "@dataclass(", f"{settings}\n\n@dataclass(")
    (project.root / "analyse.py").write_text(script)
    (project.root / "plot_analyses.py").write_text(figure)


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


def remove_setting(project: Project, name: str) -> None:
    """Delete a field of Settings, with its text."""
    found = re.search(
        rf'(?s)    {name}: .*?""".*?"""\n\n', (project.root / "settings.py").read_text()
    )
    assert found
    project.edit("settings.py", found[0], "")


def assert_sound(project: Project) -> str:
    """The project's own checks pass, as does a job; returns its id."""
    check("ruff check", project.root)
    check("mypy", project.root)
    return job_of(succeeded(project.run(*SHORT)))


@pytest.mark.long
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
        remove_setting(fresh, setting)
    check("ruff format", fresh.root)
    job = assert_sound(fresh)
    succeeded(fresh.run("--check"))
    said = one_line(fresh.run("--steps", "12", "--init-from", f"{job}:last"), 1)
    assert "job.check_schedule" in said


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


@pytest.fixture
def plain(of_example, tmp_path):
    return of_example("plain").copy(tmp_path / "plain")


def test_what_plain_leaves_out(plain):
    """Each flag does something, and without one a job is what it was."""
    short = ("--epochs", "2", "--batch-size", "128")
    before = plain.copy(plain.root.parent / "before")
    job = before.finish(*short)
    settings, folds, loop = blocks("What `plain` leaves out")
    imported = "from labjobs.settings import Metric, SettingsError, Span, "
    plain.edit("settings.py", f"{imported}setting", f"{imported}Weights, added, setting")
    insert(plain, "settings.py", "    # Variant\n", indented(settings))
    load = "    train, val = split(rest, settings.val_fraction, settings.split_seed)\n"
    plain.edit("data.py", load, indented(folds))
    plain.edit("data.py", "import split", "import fold, split")
    plain.edit("run.py", "import Batches,", "import EMA, Batches,")
    plain.edit("run.py", "Job, Means\n", "Job, Means, clip_gradients\n")
    made = "    model, batches, val, test = load(job)\n"
    plain.edit("run.py", made, f"{made}    job.init(model=model)\n")
    made = "models.make(job.settings, spec)\n"
    plain.edit("run.py", f"        {made}", f"        model = {made}    job.init(model=model)\n")
    ema, resumed, step = loop.split("\n", 2)
    assert resumed.startswith("job.resume(..., ema=ema)")
    insert(plain, "run.py", "    stopping = Early", f"    {ema}\n")
    plain.edit("run.py", "stopping=stopping)", "stopping=stopping, ema=ema)")
    head, _, rest = (plain.root / "run.py").read_text().partition("            loss, measured = ")
    _, last, rest = rest.partition("is written later\n")
    assert last
    (plain.root / "run.py").write_text(head + indented(indented(indented(step.lstrip()))) + rest)
    plain.edit("run.py", "forward, model, val", "forward, ema.model, val")
    plain.edit("run.py", "metrics, model=model", "metrics, model=ema.model")
    check("ruff format", plain.root)

    check("mypy", plain.root)
    check("ruff check", plain.root)
    assert plain.finish(*short) == job
    assert plain.tested(job) == before.tested(job)
    for flag in ("--fold=2", f"--init-from={job}", "--clip-norm=0.1", "--ema=0.9"):
        assert plain.tested(plain.finish(*short, flag)) != plain.tested(job), flag
    succeeded(plain.run("--check", "--accumulate", "2", "--ema", "0.9", "--clip-norm", "1"))


def killed_twice(project: Project, *flags: str) -> str:
    """Return the id of a job that ends, killed twice, as one that was never killed."""
    whole = project.copy(project.root.parent / "whole")
    job = whole.finish(*flags)
    for _ in range(2):
        project.killed(*flags)
    assert project.finish(*flags) == job
    assert_as_undisturbed(project, job, whole, job)
    return job


@pytest.mark.long
@pytest.mark.parametrize("chosen", ["growing", "mixed"])
def test_batches_that_change(fresh, chosen):
    functions, line = blocks("Batches that change during training")
    fresh.edit("data.py", "\ndef read(", f"\n{functions}\n\ndef read(")
    made = line.strip().removeprefix("train = ").replace("growing", chosen)
    fresh.edit("run.py", "job.batches(splits.train, settings.batch_size, shuffle=True)", made)
    fresh.edit("run.py", "import sys\n", "import sys\nfrom functools import partial\n")
    check("ruff format", fresh.root)
    check("ruff check", fresh.root)
    check("mypy", fresh.root)
    flags = ("--epochs", "3", "--eval-every", "0.5e", "--log-every", "1", "--batch-size", "100")
    flags += ("--loader", "workers", "--workers", "2", "--augment", "crop-flip")
    job = killed_twice(fresh, *flags)
    evaluated = [step for step, _ in fresh.journalled(job)["epoch"]]
    ends = {"growing": [6, 13, 16, 20, 22, 24], "mixed": [6, 13, 20, 26, 32, 39]}
    assert evaluated == ends[chosen]
    succeeded(fresh.run("--check", *flags))
    said = one_line(fresh.run("--epochs", "6", "--init-from", f"{job}:last"), 2)
    assert "or chose its batches there" in said


@pytest.fixture
def language(of_example, tmp_path):
    return of_example("language").copy(tmp_path / "language")


def insert(project: Project, file: str, before: str, text: str) -> None:
    """Put a text of the page before the only place of another in a file."""
    assert (project.root / file).read_text().count(before) == 1, before
    project.edit(file, before, f"{text}{before}")


@pytest.mark.long
def test_a_state_that_is_carried_on(language):
    network, chosen, load, above, forward, train, evaluate = blocks(
        "State that is carried from batch to batch"
    )
    insert(language, "models.py", "MODELS: dict", f"{network}\n\n")
    entry = '"lstm": lambda context, vocabulary: Recurrent(vocabulary)'
    assert entry in PAGE.read_text()
    insert(language, "models.py", '    "gpt2": GPT,\n', f"    {entry},\n")
    insert(language, "data.py", "def load(", f"{chosen}\n\n")
    insert(language, "data.py", "from torch import Tensor\n", "import torch\n")

    language.edit("run.py", "@torch.no_grad()\ndef sample(", "def sample(")
    for name in ("in_chunks", "measure", "ChunkedLoss", "sample"):
        remove_definition(language, "run.py", name)
    insert(language, "run.py", "def forward(", f"{above}\n\n")
    replace_function(language, "run.py", forward)
    language.edit("run.py", '        job.log_text("sample", sample(job, ema.model))\n', "")
    language.edit("run.py", "Forward, Job, Means,", "Job, Means, Stateful,")
    insert(language, "run.py", "from functools", "from collections.abc import Callable\n")
    remove_setting(language, "loss_chunk")
    for line in load.splitlines():
        made = line.partition(" = ")[2]
        before = made.replace("partial(data.columns, settings)", "settings.batch_size")
        language.edit("run.py", before, made)
    made, resumed, if_anew, anew, step = (line for line in train.splitlines() if line)
    assert resumed.startswith("job.resume(..., carried=carried)")
    insert(language, "run.py", "    # What a checkpoint holds", f"    {made}\n")
    language.edit("run.py", "stopping=stopping)", "stopping=stopping, carried=carried)")
    begin = indented(indented(indented(f"{if_anew}\n{anew}\n")))
    insert(language, "run.py", "            lr = optimizers", begin)
    language.edit("run.py", "loss, measured = forward(model, part, settings)", step)
    made, step = evaluate.splitlines()
    insert(language, "run.py", "    means = Means()\n", f"    {made}\n")
    language.edit("run.py", "_, measured = forward(model, batch, job.settings)", step)
    for command in ("ruff format", "ruff check --fix", "ruff format", "mypy"):
        check(command, language.root)

    flags = ("--model", "lstm", "--epochs", "1", "--log-every", "1", "--batch-size", "200")
    killed_twice(language, *flags)
    succeeded(language.run("--check", *flags))
    language.edit("run.py", ", carried=carried\n", "\n")
    done = language.run("--check", *flags)
    assert done.returncode == 1 and "carried changes while training" in done.stdout


@pytest.mark.long
def test_metrics_of_all_outputs(fresh):
    """Also of one process in two, and of the training steps of an interval."""
    pytest.importorskip("torchmetrics")
    evaluate, declared, seen = blocks("Metrics of all outputs")
    imported, function = evaluate.split("\n\n\n")
    replace_function(fresh, "run.py", function.removeprefix("@torch.no_grad()\n"))
    insert(fresh, "run.py", "\nimport data\n", f"{imported}\n")
    insert(fresh, "run.py", "Metrics = dict", "CLASSES = 10\n")
    insert(fresh, "settings.py", "}\n\n", indented(declared))
    scores = '        measured["scores"] = logits.softmax(-1)\n'
    insert(fresh, "run.py", "    return losses.mean(), measured\n", scores)
    check("ruff check --fix", fresh.root)
    check("ruff format", fresh.root)
    flags = ("--steps", "6", "--eval-every", "4", "--batch-size", "128", "--log-every", "1")
    one = fresh.journalled(fresh.finish(*flags, "--monitor", "val_auc"))
    assert all(0.5 < value < 1 for _, value in one["val_auc"] + one["test_average_precision"])
    words = (
        "--standalone",
        "--nproc-per-node",
        "2",
        "--",
        "run.py",
        *flags,
        "--monitor",
        "val_auc",
    )
    two = fresh.copy(fresh.root.parent / "two")
    module = ("-m", "torch.distributed.run")
    job = job_of(succeeded(ended(two.command(sys.executable, *module, *words))))
    for name in ("val_auc", "test_average_precision"):
        values = [value for _, value in two.journalled(job)[name]]
        assert values == pytest.approx([value for _, value in one[name]], abs=1e-4)

    made, kept, resumed, *update, log, reset = (line for line in seen.splitlines() if line)
    insert(fresh, "run.py", "    # What a checkpoint holds", f"    {made}\n    {kept}\n")
    assert resumed.startswith("job.resume(..., seen=seen)")
    fresh.edit("run.py", "stopping=stopping)", "stopping=stopping, seen=seen)")
    fresh.edit("run.py", scores, scores.removeprefix("    "))
    before = "                job.log(measured, lr=lr)"
    insert(fresh, "run.py", before, "".join(f"                {line}\n" for line in update))
    fresh.edit("run.py", "        job.log_epoch(metrics)\n", f"        {log}\n        {reset}\n")
    check("mypy", fresh.root)
    job = killed_twice(fresh, *flags)
    assert [step for step, _ in fresh.journalled(job)["train_auc"]] == [4, 6]
    succeeded(fresh.run("--check"))


MODULE = '''"""What the recipes use that a project's files have."""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset, TensorDataset

import data
from data import TEST_FRACTION
from labjobs import Batches, EarlyStopping, Forward, Job, examples_at, split, underlying
from labjobs.results import figures, tables
from plot import FIGURES, Drawn
from run import Metrics, evaluate
from settings import Settings


def encode(line: str) -> str:
    """Return a line as it is."""
    return line


'''


def test_others_pass_a_projects_own_checks(fresh):
    """Those that no other test here puts into a project."""
    parts = [blocks(heading)[0] for heading in ("Examples of different lengths", "Streams")]
    pairs, made = blocks("Pairs and triplets")
    made = indented(made.replace("data.Pairs", "Pairs"))
    head = 'def paired(job: Job[Settings], splits: data.Splits) -> Pairs:\n    """P."""\n'
    parts += [pairs, f"{head}{made}    return pairs\n"]
    parts += blocks("A figure of your own")
    (labels,) = blocks("The same fraction of each class in every part")
    named = "source: data.Source, train: data.Examples, settings: Settings"
    parts.append(f'def stratified({named}) -> None:\n    """L."""\n{indented(labels)}')
    (background,) = blocks("Evaluation in the background")
    given = "job: Job[Settings], forward: Forward, val: Batches, ema: Any, stopping: EarlyStopping"
    head = f'def background({given}) -> None:\n    """B."""\n    for _ in job.epochs():\n'
    parts.append(f"{head}{indented(indented(background))}")
    (fresh.root / "recipes.py").write_text(MODULE + "\n\n".join(parts))
    add_analysis(fresh)
    check("ruff format", fresh.root)
    check("ruff check --ignore E402,RUF059", fresh.root)
    check("mypy", fresh.root)
