"""Edits that change results in ways that are hard to see: each is noticed.

They are in hidden_edits.txt, for a job that trains the mlp:

=== name of the edit
edit: nets.py: old -> new     without it: models.py: 1.5 -> 2.5
use: expression               the width of a layer of the mlp
run: statement                in train()
import: statement             at the top of models.py
--- nets.py                   more text in this file; in models.py, before the first constant
"""

import re
from pathlib import Path

import pytest
from code_edits import INNER, Files, student_files, write
from labjobs.evidence.fingerprint import Project
from labjobs.job.identity import identity
from settings import Settings

JOB = identity(Settings())
FILES = student_files()
BLOCKS = re.split(r"^=== ", Path(__file__).with_name("hidden_edits.txt").read_text(), flags=re.M)
PLACES = {
    "use": ("models.py", "nn.Linear(prod(shape), 256)"),
    "run": ("run.py", "    augment = data.augmentation(settings, job)\n"),
    "import": ("models.py", "from settings import Settings\n"),
    "text": ("models.py", "LANGUAGE_MODELS ="),
}
GIVEN = """import operator
from functools import cache, partial


class Enc:
    ema = True


CFG = {"w": 1}
"""
"""Stands in models.py, for all edits."""


def before_and_after(block: str) -> tuple[Files, Files]:
    """Return the project's files before and after an edit."""
    head, *texts = re.split(r"^--- ", block.rstrip() + "\n", flags=re.M)
    lines = [line.partition(": ")[::2] for line in head.splitlines()[1:]]
    found = {word: [rest for each, rest in lines if each == word] for word in (*PLACES, "edit")}
    added = dict(text.split("\n", 1) for text in texts)
    models = f"{GIVEN}\n{added.pop('models.py', '')}\n\n"
    files = {**FILES}
    for word, new in {
        "use": "".join(f"nn.Linear(prod(shape), int({use}))" for use in found["use"]),
        "run": PLACES["run"][1] + "".join(f"    {line}\n" for line in found["run"]),
        "import": PLACES["import"][1] + "".join(f"{line}\n" for line in found["import"]),
        "text": models + PLACES["text"][1],
    }.items():
        file, old = PLACES[word]
        assert files[file].count(old) == 1
        files[file] = files[file].replace(old, new or old)
    for name, text in added.items():
        files[name] = f"{FILES.get(name, '')}{text}"
    file, change = (found["edit"] or ["models.py: 1.5 -> 2.5"])[0].split(": ", 1)
    old, new = change.split(" -> ")
    assert files[file].count(old) == 1, (file, old)
    return files, {**files, file: files[file].replace(old, new)}


@pytest.mark.parametrize("block", BLOCKS[1:], ids=lambda block: block.splitlines()[0])
def test_it_is_noticed(tmp_path, block):
    one, other = (
        Project(write(tmp_path / name, files)).fingerprint(JOB)
        for name, files in zip(("before", "after"), before_and_after(block), strict=True)
    )
    assert one.digest != other.digest


def test_what_costs_the_precision_is_named_with_its_line(tmp_path):
    run = FILES["run.py"].replace("import torch\n", "import torch\nimport importlib\n", 1)
    use = "    importlib.import_module(settings.note)\n"
    files = {**FILES, "run.py": run.replace(PLACES["run"][1], PLACES["run"][1] + use)}
    code = Project(write(tmp_path, files)).fingerprint(JOB)
    line = files["run.py"].splitlines().index(use.rstrip()) + 1
    assert {part for part in code.parts if part.endswith("<file>")} > {"data:<file>", "run:<file>"}
    assert f"data.py counts as a whole: run.py:{line} uses importlib.import_module" in code.advice


def test_a_library_may_be_declared_as_known(tmp_path):
    run = FILES["run.py"].replace("import torch\n", "import lpips\nimport torch\n", 1)
    declared = '[tool.labjobs]\nknown-libraries = ["lpips"]\n'
    unknown, known = (
        Project(write(tmp_path / name, {**FILES, "run.py": run, "pyproject.toml": text}))
        for name, text in (("unknown", ""), ("known", declared))
    )
    assert "imports lpips, which is not known" in unknown.fingerprint(JOB).advice[0]
    assert not known.fingerprint(JOB).advice


def test_the_template_itself_is_understood():
    assert not Project(INNER).fingerprint(JOB).advice
