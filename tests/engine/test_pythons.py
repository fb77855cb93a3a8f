"""The code's fingerprint on other versions of Python: for the same edits it is the same."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from code_edits import EDITS, INNER, changed, student_files, write

DIGESTS = """
import json, sys
from pathlib import Path
from labjobs.evidence.fingerprint import Project
found = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    for name, settings in json.loads((folder / "jobs.json").read_text()).items():
        found[f"{folder.name} {name}"] = Project(folder).fingerprint(settings).digest
print(json.dumps(found))
"""


def python(version: str) -> str | None:
    """A Python of some version, if this machine has one: on its path, or pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python")]
    for each in filter(None, found):
        if subprocess.run([each, "-c", ""], capture_output=True).returncode == 0:
            return str(each)
    return None


@pytest.fixture(scope="module")
def projects(tmp_path_factory, request):
    """A folder of edited projects, `--edits` of them, and a package that stands in for MLflow."""
    root = tmp_path_factory.mktemp("projects")
    count = min(len(EDITS), request.config.getoption("--edits"))
    for number, edit in enumerate(random.Random(0).sample(EDITS, count)):
        files = changed(changed(student_files(), edit.before), edit.edit)
        folder = write(root / "edits" / f"{number:03}", files)
        jobs = {name: {**edit.settings, **settings} for name, settings in edit.jobs.items()}
        (folder / "jobs.json").write_text(json.dumps(jobs))
    write(root / "stand-in", {"mlflow/__init__.py": ""})
    return root


@pytest.fixture(scope="module")
def here(projects):
    """The digests by this Python."""
    return digests(projects, sys.executable)


def digests(projects: Path, python: str) -> dict[str, str]:
    """The digest of each job of each project."""
    env = {"PYTHONPATH": f"{INNER}:{projects / 'stand-in'}", "PATH": os.environ["PATH"]}
    command = [python, "-c", DIGESTS, str(projects / "edits")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.full
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_it_is_the_same(projects, here, version):
    if (other := python(version)) is None:
        pytest.skip(f"there is no Python {version} here")
    assert here and digests(projects, other) == here
