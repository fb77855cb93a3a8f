"""Which parts of a small project's code a job reaches, from its script on."""

from collections.abc import Mapping
from pathlib import Path
from types import CodeType

import pytest
from code_edits import write
from labjobs.evidence.fingerprint import Fingerprint, Project

RUN = """import nets
from labjobs import Job, launch
from settings import Settings

def main(job: Job[Settings]):
    return {body}

if __name__ == "__main__":
    command = launch.begin(Settings, {{}})
    command.run(main)
"""

SETTINGS = """from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    net: str = "small"
    monitor: str = "none"
    kernels: tuple[str, ...] = ()
"""

NETS = """def small(x):
    return x


def large(x):
    return helper(x)


def helper(x):
    return 2 * x


NETS = {"small": small, "large": large}
"""

FILES = {"run.py": RUN.format(body="nets.NETS[job.settings.net]"), "nets.py": NETS}
JOB = {"net": "small", "monitor": "none", "kernels": []}


def found(
    folder: Path, files: Mapping[str, str], also: tuple[str, ...] = (), **settings: object
) -> Fingerprint:
    """Return the fingerprint of a job of a project with these files besides its own."""
    root = write(folder, {"settings.py": SETTINGS, **FILES, **files})
    return Project(root).fingerprint({**JOB, **settings}, also)


def differs(
    folder: Path, files: Mapping[str, str], file: str, old: str, new: str, **settings: object
) -> bool:
    """Return whether another text in a file gives the job another fingerprint."""
    text = {**FILES, **files}[file]
    assert old in text
    one = found(folder / "one", files, **settings)
    other = found(folder / "other", {**files, file: text.replace(old, new)}, **settings)
    return one.digest != other.digest


def test_with_settings_that_are_not_the_jobs_own_each_entry_may_be_used(tmp_path):
    own, *others = (
        "nets.NETS[job.settings.net]",
        "make(replace(job.settings, net=other))",
        "make(job.other)",
        "[make][0](job.settings)",
    )
    make = "\n\ndef make(settings: Settings):\n    return nets.NETS[settings.net]\n"
    for number, body in enumerate(others):
        run = RUN.format(body=body).replace("\n\nif", make + "\nif")
        assert {"nets:small", "nets:large"} <= {
            *found(tmp_path / str(number), {"run.py": run}).parts
        }
    assert "nets:large" not in found(tmp_path / "own", {"run.py": RUN.format(body=own)}).parts


def test_a_program_in_a_folder_counts_with_what_it_uses_of_the_project(tmp_path):
    run = RUN.format(body='job.start("python", "-m", "tools.make", "tools/make.py")')
    make = "from parts import f\n\n\ndef g():\n    f()\n"
    files = {"run.py": run, "tools/make.py": make, "parts.py": "def f():\n    return 7\n"}
    assert differs(tmp_path, files, "parts.py", "7", "8")


def test_of_a_file_that_is_nested_too_deeply_everything_may_be_used(tmp_path):
    deep = "import more\n\ndef f():\n    return " + "-" * 800 + "more.g()\n"
    files = {
        "run.py": RUN.replace("import nets", "import deep").format(body="deep.f()"),
        "deep.py": deep,
        "more.py": "def g():\n    return 7\n",
    }
    assert differs(tmp_path, files, "more.py", "7", "8")


def test_sources_that_a_setting_names_count(tmp_path):
    files = {"a.cu": "int a;", "b.cu": "int b;", "c.txt": "text"}
    assert not differs(tmp_path / "no", files, "a.cu", "int", "long")
    assert differs(tmp_path / "a", files, "a.cu", "int", "long", kernels=["b.cu", "a.cu"])
    assert not differs(tmp_path / "b", files, "a.cu", "int", "long", kernels=["b.cu"])
    assert not differs(tmp_path / "c", files, "c.txt", "text", "x", kernels=["c.txt", "d.cu"])


@pytest.mark.parametrize(
    "imports",
    [
        "try:\n    import more\n    k = 8\nexcept ImportError:\n    k = 7\n",
        "from importlib.util import find_spec\n\nk = 8 if find_spec('more') else 7\n",
    ],
)
def test_a_folder_without_code_that_can_be_imported_counts(tmp_path, imports):
    files = {"run.py": RUN.format(body="nets.k"), "nets.py": imports}
    one = found(tmp_path / "one", files)
    other = found(tmp_path / "two", {**files, "more/notes.txt": ""})
    assert one.digest != other.digest
    data = {**files, "nets/more/notes.txt": ""}  # which nets.py hides
    assert one.digest == found(tmp_path / "three", data).digest


def test_a_module_that_hides_a_folder_of_its_name_counts(tmp_path):
    nets = "try:\n    from more.one import k\nexcept ImportError:\n    k = 7\n"
    files = {"run.py": RUN.format(body="nets.k"), "nets.py": nets, "more/one.py": "k = 8\n"}
    one, other = found(tmp_path / "one", files), found(tmp_path / "two", {**files, "more.py": ""})
    assert one.digest != other.digest


def test_libraries_of_an_environment_in_the_project_are_no_code_of_it(tmp_path):
    run = RUN.format(body="__import__(job.settings.net)")
    files = {
        "run.py": run,
        "venv/pyvenv.cfg": "",
        "venv/lib/torch.py": "k = 7",
        "venv.py": "k = 7",
    }
    assert differs(tmp_path / "own", files, "venv.py", "7", "8")
    assert not differs(tmp_path / "installed", files, "venv/lib/torch.py", "7", "8")


WHOLE = RUN.format(body="getattr(nets, job.settings.net)")


@pytest.mark.parametrize(
    ("imports", "counts"),
    [
        ("from more import large", True),
        ("from more import large as great", True),
        ("from more import *", True),
        ("from most import *", True),
        ("from more import other", False),
        ("from more import _hidden", True),
        ("import more", True),
    ],
)
def test_a_module_that_counts_as_a_whole_has_what_it_imports(tmp_path, imports, counts):
    """As an `__init__.py` passes on the classes of its package."""
    more = "def large():\n    return depth()\n\n\ndef other():\n    return 1\n\n\n"
    more += "def _hidden():\n    return large()\n\n\ndef depth():\n    return 7\n"
    files = {"run.py": WHOLE, "nets.py": imports, "more.py": more, "most.py": "from more import *"}
    assert differs(tmp_path, files, "more.py", "7", "8") == counts


@pytest.mark.parametrize(
    ("imports", "reads", "named"),
    [
        ("import cv2", "cv2.imread(x)", "cv2.imread"),
        ("from cv2 import *", "imread(x)", "cv2.imread"),
        ("import pyarrow.parquet as pq", "pq.read_table(x)", "pyarrow.parquet.read_table"),
        ("import cv2", "getattr(cv2, 'imread')(x)", "cv2"),
        ("try:\n    import cv2\nexcept ImportError:\n    cv2 = None", "cv2.imread(x)", "cv2"),
        ("import cv2", "cv2.resize(x)", ""),
        ("import cv2\n\n\ndef unused(x):\n    return cv2.imread(x)", "x", ""),
    ],
)
def test_libraries_that_read_files_without_python_are_found(tmp_path, imports, reads, named):
    nets = f"{imports}\n\n\n{NETS.replace('2 * x', reads)}"
    unseen = found(tmp_path, {"nets.py": nets}, net="large").unseen
    assert [*unseen] == ([named] if named else [])
    assert all(where.startswith("nets.py:") for where in unseen.values())


def test_what_is_not_imported_reads_nothing(tmp_path):
    """Although it counts, since nobody knows what a library that is not known does."""
    other = "import cv2\n\n\ndef read(x):\n    return cv2.imread(x)\n"
    files = {"nets.py": f"import scaling\n{NETS}", "other.py": other}
    code = found(tmp_path, files, net="large")
    assert "other:<file>" in code.parts and not code.unseen
    files["nets.py"] = f"import scaling\nimport other\n{NETS.replace('2 * x', 'other.read(x)')}"
    assert [*found(tmp_path, files, net="large").unseen] == ["cv2.imread"]


def test_definitions_that_have_run_can_be_added(tmp_path):
    """Those that are gone are left out."""
    also = ("gone:f", "nets:gone", "nets:large")
    made = found(tmp_path / "made", {}, also=also)
    assert {"nets:large", "nets:helper"} <= {*made.parts}
    assert not {"nets:gone", "gone:f"} & {*made.parts}
    (advice,) = found(tmp_path / "whole", {}, also=("nets:<file>",)).advice
    said = "nets.py counts as a whole: code has run there that no definition has"
    assert advice == said


def test_what_has_run_and_is_in_no_part_is_found(tmp_path):
    root = write(tmp_path, {"settings.py": SETTINGS, **FILES})
    project, ran = Project(root), list[CodeType]()
    compiled = compile(NETS, str(root / "nets.py"), "exec")
    ran = [each for each in compiled.co_consts if isinstance(each, CodeType)]
    assert [each.co_name for each in ran] == ["small", "large", "helper"]
    code = project.fingerprint(JOB)
    assert project.lacking(code, ran) == ["nets:helper", "nets:large"]
    assert project.lacking(code.widened(["nets:large"]), ran) == []
    whole = project.fingerprint(JOB, also=("nets:<file>",))
    assert project.lacking(whole, ran) == []


def test_the_code_of_a_job_that_this_one_is_derived_from_is_a_part(tmp_path):
    project = Project(write(tmp_path, {"settings.py": SETTINGS, **FILES}))
    one, other = (project.fingerprint(JOB, inputs={"0123": code}) for code in ("abc", "abd"))
    assert one.digest != other.digest != project.fingerprint(JOB).digest
    assert one.source("input:0123") == "code abc"


@pytest.mark.parametrize("first", ["small", "large"])
def test_jobs_of_one_project_do_not_depend_on_which_was_asked_for_first(tmp_path, first):
    body = '1 if job.settings.net == "small" else nets.helper(2)'
    root = write(tmp_path, {"settings.py": SETTINGS, **FILES, "run.py": RUN.format(body=body)})
    project = Project(root)
    project.fingerprint({**JOB, "net": first})
    for net in ("small", "large", "other"):
        job = {**JOB, "net": net}
        one, other = project.fingerprint(job), Project(root).fingerprint(job)
        for what in ("digest", "parts", "advice", "unread"):
            assert getattr(one, what) == getattr(other, what)
    assert "nets:helper" not in project.fingerprint(JOB).parts
