"""Put the chosen example's files in place, pack the engine, and say what to type next."""

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import zipfile
from pathlib import Path

# Cookiecutter renders this file. JSON in a raw string holds any path; the spaces keep its quotes
# apart from Python's. Cruft tells the commit, cookiecutter the folder of the template.
ANSWERS = json.loads(r""" {{ cookiecutter|jsonify }} """)

METADATA = """Metadata-Version: 2.4
Name: labjobs
Version: {version}
Summary: Everything around the training loop of a project's jobs
License-Expression: MIT
License-File: LICENSE
Requires-Python: >=3.11
"""
WHEEL = """Wheel-Version: 1.0
Generator: lab template
Root-Is-Purelib: true
Tag: py3-none-any
"""


READS = """\
import os; "LABJOBS_READS" in os.environ and __import__("labjobs.job.data_evidence", \
fromlist=["x"]).join_by_environment()
"""
"""Python executes this line whenever it starts: what a job's processes read is data of the job."""


def checked_out(folder):
    """The commit that a clone has checked out, read without git; empty if that is not known."""
    git = folder / ".git"
    try:
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref: "):
            return head
        branch = head.removeprefix("ref: ")
        if (git / branch).exists():
            return (git / branch).read_text("utf-8").strip()
        packed = (git / "packed-refs").read_text("utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), "")
    except OSError:
        return ""


def pack(engine, vendor):
    """Write a folder of Python as a wheel: the same bytes from the same files, on any machine.

    Nothing is compressed: compressed bytes differ between versions of zlib, and git stores the
    changes between two wheels well if they are plain.
    """
    version = re.search(r'__version__ = "(.+)"', (engine / "__init__.py").read_text("utf-8"))[1]
    about = f"labjobs-{version}.dist-info"
    needs = (engine / "requirements.txt").read_text("utf-8").splitlines()
    metadata = METADATA.format(version=version) + "".join(f"Requires-Dist: {n}\n" for n in needs)
    files = {
        f"labjobs/{path.relative_to(engine).as_posix()}": path.read_bytes()
        for path in sorted(engine.rglob("*"))
        if path.is_file()
    }
    files["labjobs_reads.pth"] = READS.encode()
    files[f"{about}/METADATA"] = metadata.encode()
    files[f"{about}/WHEEL"] = WHEEL.encode()
    files[f"{about}/licenses/LICENSE"] = (engine / "LICENSE").read_bytes()
    record = [f"{name},sha256={digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    vendor.mkdir()
    with zipfile.ZipFile(vendor / f"labjobs-{version}-py3-none-any.whl", "w") as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # Unix, wherever it is packed
            wheel.writestr(entry, data)


def digest(data):
    """The SHA-256 of a file, as a wheel's RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


project = Path.cwd()
examples = project / ".examples"
chosen = examples / "{{ cookiecutter.example }}"
if not examples.is_dir():  # in the template, it is a link
    sys.exit("This copy of the template has lost its links, as zip files do; use a clone")
if chosen.is_dir():  # classification is what the template itself has
    about = shutil.ignore_patterns("README.md", ".without")  # the project has a README
    shutil.copytree(chosen, project, dirs_exist_ok=True, ignore=about)
    without = chosen / ".without"  # names files and folders that the example does without
    for name in without.read_text("utf-8").split() if without.exists() else ():
        left_out = project / name
        shutil.rmtree(left_out) if left_out.is_dir() else left_out.unlink()
    (project / "docs").mkdir(exist_ok=True)
    shutil.copyfile(chosen / "README.md", project / "docs" / "example.md")
shutil.rmtree(examples)

# What the checks of the template leave in it.
for cache in [*project.rglob("__pycache__"), *project.glob(".*cache")]:
    shutil.rmtree(cache)

engine = project / "labjobs"
started = Path(os.environ.get("PWD", ""))  # where cookiecutter was typed
commit = ANSWERS.get("_commit") or checked_out(started / ANSWERS.get("_repo_dir", ""))
(engine / "commit.txt").write_text(f"{commit}\n", "utf-8")
if "{{ cookiecutter.engine }}" == "package":
    pack(engine, project / "vendor")
    shutil.rmtree(engine)

print(f"""
{project.name} is ready. Type next:

    cd {shlex.quote(str(project))}
    uv sync && source .venv/bin/activate    # without uv: see README.md
    python run.py                           # one job
    bash run.sh                             # the grid of jobs
    python plot.py                          # the figures""")
