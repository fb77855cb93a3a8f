"""The code's fingerprint on other versions of Python, and what they report of code that runs."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from code_edits import INNER, JOBS, student_files, write
from labjobs.evidence.fingerprint import is_below

DIGESTS = """
import json, sys
from pathlib import Path
from labjobs.evidence import fingerprint
root, *jobs = sys.argv[1:]
ran = fingerprint.begin(Path(root))
sys.path.insert(0, root)
import settings
settings.Settings()  # by a function that dataclasses made
project = fingerprint.Project(Path(root))
codes = [project.fingerprint(json.loads(job)) for job in jobs]
print([(code.digest, project.lacking(code, ran)) for code in codes])
"""


def python(version: str) -> str | None:
    """A Python of some version, if this machine has one: on its path, or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python")]
    for each in filter(None, found):
        if subprocess.run([each, "-c", ""], capture_output=True).returncode == 0:
            return str(each)
    return None


@pytest.mark.full
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_it_is_the_same(tmp_path, version):
    if (other := python(version)) is None:
        pytest.skip(f"there is no Python {version} here")
    project = write(tmp_path / "project", student_files())
    packages = ("mlflow", "numpy", "torch", "tqdm")
    write(tmp_path / "stand-in", {f"{name}/__init__.py": "" for name in packages})
    env = {"PYTHONPATH": f"{INNER}:{tmp_path / 'stand-in'}", "PATH": os.environ["PATH"]}
    words = ["-c", DIGESTS, str(project), *map(json.dumps, JOBS.values())]
    one, two = (
        subprocess.run([each, *words], cwd=project, env=env, capture_output=True, check=True).stdout
        for each in (sys.executable, other)
    )
    assert one == two != b""


def test_generated_functions_are_not_the_projects(tmp_path, monkeypatch):
    """Python 3.12 and later report them too, with names of files such as <string>."""
    monkeypatch.chdir(tmp_path)
    assert is_below(Path(__file__).parent, python.__code__)
    assert not is_below(tmp_path, eval("lambda: 0").__code__)
    assert not is_below(tmp_path, importlib._bootstrap._find_spec.__code__)
