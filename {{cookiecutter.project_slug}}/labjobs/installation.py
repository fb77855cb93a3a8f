"""Which engine runs: the one installed from the wheel in `vendor/`, or a folder `labjobs/` of the
project, which takes precedence because Python looks beside a script first.
"""

import base64
import hashlib
import shutil
import zipfile
from pathlib import Path

from labjobs import __version__
from labjobs.errors import SettingsError
from labjobs.files import ENGINE, shown

COMMIT = "commit.txt"
"""The file with the template's commit, written when the project was made or updated."""

NOT_COMPARED = (f"labjobs/{COMMIT}",)
"""The same engine may come with several commits."""


def version() -> str:
    """Return the version and the commit, such as `1.0.0 (3f2a9c1d04be)`."""
    commit = ENGINE / COMMIT
    known = commit.read_text().strip() if commit.exists() else ""
    return f"{__version__} ({known[:12] or 'commit unknown'})"


def content() -> dict[str, bytes]:
    """Return the engine's files by their names, such as `labjobs/launch.py`."""
    found = (path for path in ENGINE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {f"labjobs/{path.relative_to(ENGINE).as_posix()}": path.read_bytes() for path in found}


def eject(project: Path) -> Path:
    """Copy the engine that runs into the project; returns the folder. Raises SettingsError if it is
    there already."""
    folder = project / "labjobs"
    if folder.exists():
        raise SettingsError(f"{shown(folder)} is there already, and is what runs")
    shutil.copytree(ENGINE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def problem(project: Path) -> str:
    """Return, in one line, which engine runs and what to do, if it is not the wheel in `vendor/`,
    or that wheel is damaged; empty if all is as it should be."""
    wheels = sorted(project.glob("vendor/labjobs-*.whl"))
    if (project / "labjobs").resolve() == ENGINE:
        if not wheels:
            return ""
        cure = "remove the folder to use the wheel"
        return f"labjobs/ in the project is used, not {shown(wheels[0])}; {cure}"
    used = f"labjobs {__version__} in {ENGINE.parent} is used"
    if not wheels:
        return f"there is no wheel in vendor/; {used}; restore it from version control"
    if len(wheels) > 1:
        names = " and ".join(wheel.name for wheel in wheels)
        return f"vendor/ has {names}; {used}; keep the one that pyproject.toml names"
    try:
        packed = _packed(wheels[0])
    except (zipfile.BadZipFile, OSError, KeyError, ValueError):
        return f"{shown(wheels[0])} is damaged; {used}; restore the wheel from version control"
    if _without_commit(packed) != _without_commit(content()):
        cure = "`uv sync && source .venv/bin/activate`"
        return f"{used}, which is not {shown(wheels[0])}; {cure} installs that"
    return ""


def _packed(wheel: Path) -> dict[str, bytes]:
    """The files of the engine in a wheel. Raises ValueError if one was changed since the wheel was
    made, and what zipfile raises."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        hashes = dict(line.split(",")[:2] for line in archive.read(record).decode().splitlines())
        packed = {name: archive.read(name) for name in names if name.startswith("labjobs/")}
    for name, data in packed.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        if hashes.get(name) != f"sha256={digest}":
            raise ValueError(f"{name} was changed")
    return packed


def _without_commit(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name not in NOT_COMPARED}
