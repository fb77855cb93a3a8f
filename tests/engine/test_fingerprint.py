"""The code fingerprint of a job: its parts, where they come from, and what cannot be read."""

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from code_edits import INNER, JOBS, student_files, write
from labjobs.evidence import engine_code
from labjobs.evidence.engine_code import MANIFEST
from labjobs.evidence.fingerprint import Fingerprint, Project
from labjobs.job.identity import identity
from repository import REPOSITORY
from settings import Settings

JOB = {**identity(Settings()), **JOBS["C"]}
FILES = student_files()

SMALL = {
    "settings.py": """from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    net: str = "small"
    big: bool = False
""",
    "run.py": '''"""A job."""
import nets
from nets import *
from labjobs import Job, launch
from settings import Settings

def main(job: Job[Settings]):
    """Do it."""
    if job.settings.big:
        return nets.NETS["large"]
    sizes = [f"{size:>{3}}" for size in range(2)]
    return nets.NETS[job.settings.net](*sizes, scale=1e-3), unknown, helper(b"x", 2**70, ...)

if __name__ == "__main__":
    command = launch.begin(Settings, {})
    command.run(main)
''',
    "nets.py": """NETS = {"small": lambda *sizes, scale: sizes, "large": dict}

def helper(a, /, b, *, c=None):
    try:
        return [x for x in a if x] if b else {**c}
    except* ValueError:
        pass
    match b:
        case {"k": [1, *rest], **more}:
            return rest, more
""",
}


def fingerprint(folder: Path, files: Mapping[str, str], **settings: object) -> Fingerprint:
    """Return the fingerprint of a job of a project."""
    return Project(write(folder, files)).fingerprint({**JOB, **settings})


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The fingerprint of a job that trains the convnet."""
    return edited(tmp_path_factory.mktemp("found") / "project", b"")


def test_parts_are_what_the_job_uses(found):
    assert {"models:ConvNet", "models:block", "models:MODELS[convnet]", "data:digits"} < {
        *found.parts
    }
    others = {"models:MLP", "models:GPT", "data:mnist", "labjobs.vision"}
    assert not others & {*found.parts}
    assert not [part for part in found.parts if part.startswith(("labjobs.", "plot"))]
    assert not found.advice


def test_a_part_says_what_it_is_and_by_what_it_was_reached(found):
    assert found.source("models:block").startswith("def block(")
    assert found.source("models:MODELS[convnet]").strip().startswith('"convnet": lambda')
    assert found.why("models:block") == (
        "models:block <- models:ConvNet <- models:MODELS[convnet] <- models:named <- models:make"
        " <- run:check <- run:<module>"
    )
    with pytest.raises(KeyError):
        found.source("models:MLP")


def test_it_is_the_same_on_each_version_of_python(tmp_path):
    """If these have to change, raise SCHEME in labjobs/evidence/canonical.py."""
    small, large = (
        Project(write(tmp_path / net, SMALL)).fingerprint({"net": net, "big": False}).digest[:12]
        for net in ("small", "large")
    )
    assert (small, large) == ("dc1d2f7b437b", "500f230ba588")


DERIVED = """import sys
from labjobs import Job, launch
from settings import METRICS, MoreSettings

if __name__ == "__main__":
    command = launch.begin(MoreSettings, METRICS)

import run

def check(job: Job[MoreSettings]) -> None:
    run.load(job)

def main(job: Job[MoreSettings]) -> None:
    run.load(job)

if __name__ == "__main__":
    sys.exit(command.run(main, check))
"""
DERIVED_EDITS = re.split(
    r"^=== ", Path(__file__).with_name("derived_edits.txt").read_text(), flags=re.M
)[1:]
MORE = """

@dataclass(frozen=True, kw_only=True)
class MoreSettings(Settings):
    more: int = 1
"""


def test_of_settings_that_others_are_derived_from_only_what_is_used_counts(tmp_path):
    """In jobs of both classes: a new setting that is off, and another default, change nothing."""
    added = "    focal: float = added(0.0, neutral=0.0)\n\n    def __post_init__"
    settings = FILES["settings.py"].replace("    def __post_init__", added, 1)
    settings = settings.replace("epochs: int = setting(30", "epochs: int = setting(50", 1)
    run = FILES["run.py"]
    off = run.replace("def main(", "def unused(x):\n    return x\n\n\ndef main(", 1)
    off = off.replace(
        "    job.resume(", "    if job.settings.focal:\n        unused(1)\n    job.resume("
    )
    assert off.count("focal") == 1
    others = {"settings.py": settings + MORE, "run.py": off}
    for name in "Settings", "MoreSettings":
        derived = FILES | {"settings.py": FILES["settings.py"] + MORE}
        files = [derived, derived | others]
        if name == "MoreSettings":
            files = [each | {"run.py": each["run.py"].replace("Settings", name)} for each in files]
        one, other = (
            fingerprint(tmp_path / f"{name}{number}", each, more=1, focal=0.0)
            for number, each in enumerate(files)
        )
        assert one.parts == other.parts
    alone = fingerprint(tmp_path / "alone", FILES)
    assert alone.parts == fingerprint(tmp_path / "derived", derived).parts


@pytest.mark.parametrize("block", DERIVED_EDITS, ids=lambda block: block.splitlines()[0])
def test_what_a_derived_class_has_besides_its_fields_counts(tmp_path, block):
    """Each has a number that a job prints by `use`, and that no identity of a job has."""
    _, use, more = block.split("\n", 2)
    script = DERIVED.replace("import run\n", "import run\nimport settings\n")
    script = script.replace("    run.load(job)", f"    print({use.removeprefix('use: ')})")
    assert more.count("1.5") == 1
    codes = []
    for value in ("1.5", "2.5"):
        text = f"{FILES['settings.py']}\n\n{more.replace('1.5', value)}"
        files = FILES | {"settings.py": text, "derived.py": script}
        code = Project(write(tmp_path / value, files), "derived")
        codes.append(code.fingerprint({**JOB, "more": 1, "rate": 3.0}).digest)
    assert codes[0] != codes[1]


def test_a_script_that_uses_functions_of_another_depends_on_what_its_settings_name(tmp_path):
    """The other one's own main(), which nobody calls, passes nothing on."""
    files = FILES | {"settings.py": FILES["settings.py"] + MORE, "derived.py": DERIVED}
    code = Project(write(tmp_path, files), "derived").fingerprint({**JOB, "more": 1})
    assert {"data:digits", "models:ConvNet", "run:load"} <= {*code.parts}
    assert not {"data:mnist", "models:MLP", "run:main", "run:train"} & {*code.parts}


@pytest.mark.parametrize(
    ("what", "content"),
    [
        ("a syntax error", b"def f(:\n"),
        ("not UTF-8", b'name = "\xff"\n'),
        ("zeros", b"x = 1\0\n"),
        ("nested too deeply", b"x = " + b"(" * 3000 + b")" * 3000),
        ("nested deeply", b"x = " + b"-" * 800 + b"1\n\nx.y\n"),
        ("a long chain", b"x = a" + b".b" * 3000 + b"\nx()\n"),
    ],
)
def test_what_cannot_be_read_counts_as_a_whole(tmp_path, what, content):
    files = {**FILES, "run.py": FILES["run.py"].replace("import data\n", "import data\nimport x\n")}
    digests = []
    for name, more in (("one", b""), ("other", b"\ny()")):
        folder = write(tmp_path / name, files)
        (folder / "x.py").write_bytes(content + more)
        digests.append(Project(folder).fingerprint(JOB).digest)
    assert digests[0] != digests[1]


def test_a_project_without_code_has_a_fingerprint_too(tmp_path):
    assert Project(tmp_path).fingerprint(JOB).parts == {}
    (tmp_path / "run.py").mkdir()
    assert Project(tmp_path).fingerprint(JOB).digest


def test_damaged_code_is_never_a_fault(tmp_path):
    chance = random.Random(0)
    for number in range(12):
        name = chance.choice(["run.py", "models.py", "data.py", "settings.py"])
        lines = FILES[name].splitlines(keepends=True)
        for _ in range(3):
            lines.pop(chance.randrange(len(lines)))
        found = fingerprint(tmp_path / str(number), {**FILES, name: "".join(lines)})
        assert all(found.source(part) is not None and found.why(part) for part in found.parts)


def edited(root: Path, change: bytes, line_end: bytes = b"\n") -> Fingerprint:
    """Return the fingerprint in a project after a change at the end of labjobs.training.optim."""
    folder = write(root, FILES)
    shutil.copytree(INNER / "labjobs", folder / "labjobs")
    file = folder / "labjobs/training/optim.py"
    file.write_bytes((file.read_bytes() + change).replace(b"\n", line_end))
    return Project(folder).fingerprint(JOB)


def test_an_engine_that_was_edited_counts_as_code(tmp_path, found):
    new = edited(tmp_path / "new", b"\nEMA.decay = 1\n")
    assert {*new.parts.items()} - {*found.parts.items()} == {
        ("labjobs.training.optim", new.parts["labjobs.training.optim"])
    }
    assert new.source("labjobs.training.optim").endswith("EMA.decay = 1\n")
    assert new.why("labjobs.training.optim").startswith("labjobs.training.optim <- run:")
    for name, change, line_end in (("comment", b"# !\n", b"\n"), ("ends", b"", b"\r\n")):
        assert edited(tmp_path / name, change, line_end).digest == found.digest


@pytest.mark.parametrize("raised", [False, True])
def test_another_engine_counts_by_its_results_versions(monkeypatch, tmp_path, found, raised):
    """One whose modules import others, or have other results."""
    versions = json.loads(MANIFEST.read_text())
    for module in versions["modules"].values():
        module["imports"] = []
    versions["modules"]["labjobs.training.optim"]["results"] += raised
    monkeypatch.setattr(engine_code, "MANIFEST", tmp_path / "versions.json")
    (tmp_path / "versions.json").write_text(json.dumps(versions))
    new = edited(tmp_path / "project", b"")
    assert (new.digest != found.digest) == raised
    if raised:
        assert new.parts["labjobs.training.optim"] == "v2"
        assert new.source("labjobs.training.optim") == "labjobs.training.optim: results version 2\n"


def test_the_results_versions_are_recorded():
    command = [sys.executable, str(REPOSITORY / "scripts/results_versions.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
