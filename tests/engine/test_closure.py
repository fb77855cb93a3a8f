"""Which parts of a small project's code a job reaches, from its script on."""

from collections.abc import Mapping
from pathlib import Path
from types import CodeType

import pytest
from code_edits import write
from labjobs.evidence.fingerprint import Fingerprint, Project

RUN = """import nets
from settings import Settings

def main(job):
    return {body}

if __name__ == "__main__":
    main(None)
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


@pytest.mark.parametrize("body", ["nets.NETS.keys()", "job.name in nets.NETS"])
def test_code_that_looks_at_the_names_of_a_registry_depends_on_them_alone(
    tmp_path: Path, body: str
) -> None:
    files = {"run.py": RUN.format(body=body)}
    assert found(tmp_path / "made", files).source("nets:NETS[*]").split() == ["small", "large"]
    assert differs(tmp_path / "name", files, "nets.py", '"large"', '"huge"')
    assert not differs(tmp_path / "text", files, "nets.py", "2 * x", "3 * x")


def test_a_loop_over_all_entries_depends_on_them_and_their_order(tmp_path: Path) -> None:
    files = {"run.py": RUN.format(body="[net(1) for net in nets.NETS.values()]")}
    swapped = '{"large": large, "small": small}'
    assert differs(
        tmp_path / "order", files, "nets.py", '{"small": small, "large": large}', swapped
    )
    assert differs(tmp_path / "text", files, "nets.py", "2 * x", "3 * x")


def test_what_a_registry_takes_in_by_stars_counts(tmp_path: Path) -> None:
    more = {"nets.py": NETS.replace("}", ", **OTHERS}") + "OTHERS = dict(zip('ab', (small, 1)))\n"}
    assert "nets:OTHERS" in found(tmp_path, more).parts
    assert differs(tmp_path / "edit", more, "nets.py", "(small, 1)", "(small, 2)")
    two = {"nets.py": NETS.replace("}", ", **OTHERS}") + 'OTHERS = {"a": helper, "b": 1}\n'}
    assert "nets:helper" not in found(tmp_path / "small", two).parts
    assert "nets:helper" in found(tmp_path / "a", two, net="a").parts
    assert not differs(tmp_path / "other", two, "nets.py", '"b": 1', '"b": 2', net="a")


def test_where_other_settings_are_made_all_constants_and_settings_may_be_keys(
    tmp_path: Path,
) -> None:
    """Also what follows val_ in one, as METRICS has it."""
    made = RUN.format(body="nets.NETS[job.settings.net], Settings(seed=3)")
    files = {"run.py": made, "settings.py": SETTINGS + "    seed: int = 0\n"}
    either = {"nets:small", "nets:large"}
    for settings in ({"net": "x"}, {"net": "x", "kernels": ["y"]}):
        assert not either & {*found(tmp_path / "none", files, **settings).parts}
    for settings in ({"net": "large"}, {"net": "x", "monitor": "val_large"}):
        assert either & {*found(tmp_path / "one", files, **settings).parts} == {"nets:large"}
    assert either <= {*found(tmp_path / "two", files, net="x", kernels=["large", "small"]).parts}
    constant = {**files, "run.py": made.replace("seed=3", 'net="large"')}
    assert either & {*found(tmp_path / "constant", constant, net="small").parts} == either


def test_a_program_that_the_code_names_counts_with_what_it_uses(tmp_path: Path) -> None:
    run = RUN.format(body='job.start("python", "make.py")')
    files = {"run.py": run, "make.py": "import parts\nparts.f()\n", "parts.py": "f = int\n"}
    made = found(tmp_path / "made", files)
    assert made.source("file:make.py") == files["make.py"]
    assert made.advice == ("make.py counts as a whole: make.py is named in the code",)
    assert differs(tmp_path / "edit", files, "parts.py", "int", "str")
    assert not differs(tmp_path / "not", {**files, "run.py": FILES["run.py"]}, "parts.py", "i", "j")


def test_a_program_in_a_folder_counts_with_what_it_uses_of_the_project(tmp_path: Path) -> None:
    run = RUN.format(body='job.start("python", "-m", "tools.make", "tools/make.py")')
    make = "from parts import f\n\n\ndef g():\n    f()\n"
    files = {"run.py": run, "tools/make.py": make, "parts.py": "def f():\n    return 7\n"}
    assert differs(tmp_path, files, "parts.py", "7", "8")


def test_of_a_file_that_is_nested_too_deeply_everything_may_be_used(tmp_path: Path) -> None:
    deep = "import more\n\ndef f():\n    return " + "-" * 800 + "more.g()\n"
    files = {
        "run.py": RUN.replace("import nets", "import deep").format(body="deep.f()"),
        "deep.py": deep,
        "more.py": "def g():\n    return 7\n",
    }
    assert differs(tmp_path, files, "more.py", "7", "8")


def test_sources_that_a_setting_names_count(tmp_path: Path) -> None:
    files = {"a.cu": "int a;", "b.cu": "int b;", "c.txt": "text"}
    assert not differs(tmp_path / "no", files, "a.cu", "int", "long")
    assert differs(tmp_path / "a", files, "a.cu", "int", "long", kernels=["b.cu", "a.cu"])
    assert not differs(tmp_path / "b", files, "a.cu", "int", "long", kernels=["b.cu"])
    assert not differs(tmp_path / "c", files, "c.txt", "text", "x", kernels=["c.txt", "d.cu"])


DEPENDS = NETS.replace("    return x\n", "    return x  # depends: kernels/*.cu, gone.txt\n", 1)


def test_files_after_depends_count_for_the_definition_that_has_the_comment(tmp_path: Path) -> None:
    files = {"nets.py": DEPENDS, "kernels/a.cu": "int a;", "kernels/b.cu": "int b;"}
    small, large = (found(tmp_path / net, files, net=net) for net in ("small", "large"))
    assert {part for part in small.parts if part.startswith("file:")} == {
        *("file:kernels/a.cu", "file:kernels/b.cu", "file:gone.txt")
    }
    assert small.advice == ("# depends: gone.txt in nets.py matches no file",)
    assert small.why("file:kernels/b.cu").startswith("file:kernels/b.cu <- nets:small <- nets:NETS")
    assert not [part for part in large.parts if part.startswith("file:")] and not large.advice
    assert differs(tmp_path / "edit", files, "kernels/b.cu", "int", "long")
    (tmp_path / "one").mkdir()
    (tmp_path / "one/gone.txt").touch()
    assert not found(tmp_path / "one", files).advice


def test_files_after_depends_outside_of_definitions_count_for_all(tmp_path: Path) -> None:
    files = {"nets.py": NETS + "# depends: table.csv\n", "table.csv": "1,2"}
    for net in ("small", "large"):
        assert differs(tmp_path / net, files, "table.csv", "1", "2", net=net)


CLASSES = """class Net:
    def __init_subclass__(cls):
        KNOWN.append(cls)


class Small(Net):
    x = 2


class Tiny(Small):
    x = 3
"""


def test_subclasses_count_where_a_class_notes_them(tmp_path: Path) -> None:
    """Those of modules that the job imports, and their subclasses."""
    files = {"nets.py": CLASSES, "unseen.py": "import nets\n\nclass Far(nets.Net):\n    x = 4\n"}
    asks = {**files, "run.py": RUN.format(body="nets.Net")}
    made = found(tmp_path / "made", asks)
    assert {"nets:Net", "nets:Small", "nets:Tiny"} < {*made.parts}
    assert "unseen:Far" not in made.parts
    assert made.why("nets:Tiny") == "nets:Tiny <- nets:Net <- nets:<module>"
    hook = "def __init_subclass__(cls):"
    without = {**asks, "nets.py": CLASSES.replace(hook, "def other(cls):")}
    plain = found(tmp_path / "plain", without)
    assert not {"nets:Small", "nets:Tiny"} & {*plain.parts}
    seen = {**asks, "run.py": asks["run.py"].replace("import nets", "import nets, unseen")}
    assert "unseen:Far" in found(tmp_path / "seen", seen).parts


def test_importing_from_a_package_does_what_the_package_does(tmp_path: Path) -> None:
    run = RUN.replace("import nets", "import pack.deep.leaf").format(body="pack.deep.leaf.f()")
    files = {
        "run.py": run,
        "pack/__init__.py": "import random\nrandom.seed(1)\n",
        "pack/deep/__init__.py": "",
        "pack/deep/leaf.py": "def f():\n    return 1\n",
    }
    made = found(tmp_path / "made", files)
    assert {"pack:<module>", "pack.deep.leaf:f"} <= {*made.parts}
    assert differs(tmp_path / "edit", files, "pack/__init__.py", "seed(1)", "seed(2)")


WHOLE = RUN.format(body="getattr(nets, job.settings.net)")


def test_of_a_module_that_counts_as_a_whole_everything_does(tmp_path: Path) -> None:
    made = found(tmp_path, {"run.py": WHOLE})
    assert {"nets:small", "nets:large", "nets:helper"} < {*made.parts}
    assert made.advice == ("nets.py counts as a whole: run.py uses nets as a value",)


@pytest.mark.parametrize(
    ("imports", "counts"),
    [
        ("from more import large", True),
        ("from more import large as great", True),
        ("from more import *", True),
        ("from most import *", True),
        ("from more import other", False),
        ("from more import _hidden", True),
        ("import more", False),
    ],
)
def test_a_module_that_counts_as_a_whole_has_what_it_imports(
    tmp_path: Path, imports: str, counts: bool
) -> None:
    """As an `__init__.py` passes on the classes of its package."""
    more = "def large():\n    return depth()\n\n\ndef other():\n    return 1\n\n\n"
    more += "def _hidden():\n    return large()\n\n\ndef depth():\n    return 7\n"
    files = {"run.py": WHOLE, "nets.py": imports, "more.py": more, "most.py": "from more import *"}
    assert differs(tmp_path, files, "more.py", "7", "8") == counts


def test_a_star_takes_only_what_is_exported_along(tmp_path: Path) -> None:
    more = "def _hidden():\n    return 7\n"
    files = {"run.py": WHOLE, "nets.py": "from more import *\nfrom re import *", "more.py": more}
    assert not differs(tmp_path, files, "more.py", "7", "8")


def test_a_file_that_is_no_python_counts_by_its_bytes(tmp_path: Path) -> None:
    made = found(tmp_path, {"nets.py": "def f(:\n"})
    assert made.advice == ("nets.py cannot be read as Python: any change of the file counts",)
    assert made.source("nets:<file>") == "def f(:\n"
    assert made.why("nets:<file>") == "nets:<file>"


def test_definitions_that_have_run_can_be_added(tmp_path: Path) -> None:
    """Those that are gone are left out."""
    also = ("gone:f", "nets:gone", "nets:large")
    made = found(tmp_path / "made", {}, also=also)
    assert {"nets:large", "nets:helper"} <= {*made.parts}
    assert not {"nets:gone", "gone:f"} & {*made.parts}
    (advice,) = found(tmp_path / "whole", {}, also=("nets:<file>",)).advice
    assert advice == ("nets.py counts as a whole: code has run there that no definition has")


def test_what_has_run_and_is_in_no_part_is_found(tmp_path: Path) -> None:
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


def test_the_code_of_a_job_that_this_one_is_derived_from_is_a_part(tmp_path: Path) -> None:
    project = Project(write(tmp_path, {"settings.py": SETTINGS, **FILES}))
    one, other = (project.fingerprint(JOB, inputs={"0123": code}) for code in ("abc", "abd"))
    assert one.digest != other.digest != project.fingerprint(JOB).digest
    assert one.source("input:0123") == "code abc"


@pytest.mark.parametrize("first", ["small", "large"])
def test_jobs_of_one_project_do_not_depend_on_which_was_asked_for_first(
    tmp_path: Path, first: str
) -> None:
    body = '1 if job.settings.net == "small" else nets.helper(2)'
    root = write(tmp_path, {"settings.py": SETTINGS, **FILES, "run.py": RUN.format(body=body)})
    project = Project(root)
    project.fingerprint({**JOB, "net": first})
    for net in ("small", "large", "other"):
        job = {**JOB, "net": net}
        assert project.fingerprint(job) == Project(root).fingerprint(job)
    assert "nets:helper" not in project.fingerprint(JOB).parts
