"""Which engine runs: the one installed from the wheel in `vendor/`, or a folder `labjobs/` of the
project, which takes precedence because Python looks beside a script first.
"""

import zipfile
from pathlib import Path

from labjobs import __version__
from labjobs.files import ENGINE, shown

COMMIT = "commit.txt"  # the template's, written when the project was made or updated


def version() -> str:
    """Return the version and the commit, such as `1.0.0 (3f2a9c1d04be)`."""
    commit = ENGINE / COMMIT
    known = commit.read_text("utf-8").strip() if commit.exists() else ""
    return f"{__version__} ({known[:12] or 'commit unknown'})"


def content() -> dict[str, bytes]:
    """Return the engine's files by their names, such as `labjobs/launch.py`."""
    found = (path for path in ENGINE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {f"labjobs/{path.relative_to(ENGINE).as_posix()}": path.read_bytes() for path in found}


def problem(project: Path) -> str:
    """Return, in one line, which engine runs and what to do, if it is not the only wheel in
    `vendor/`; empty if all is as it should be."""
    wheels = sorted(project.glob("vendor/labjobs-*.whl"))
    names = " and ".join(map(shown, wheels)) or "a wheel in vendor/"
    if (project / "labjobs").resolve() == ENGINE:
        cure = "remove the folder to use the wheel"
        return f"labjobs/ in the project is used, not {names}; {cure}" if wheels else ""
    used = f"labjobs {__version__} in {ENGINE.parent} is used, which is not {names}"
    if len(wheels) != 1:
        return f"{used}; restore the one that pyproject.toml names from version control"
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            packed = {name: wheel.read(name) for name in wheel.namelist() if _compared(name)}
    except (zipfile.BadZipFile, OSError):
        packed = {}
    if packed != {name: data for name, data in content().items() if _compared(name)}:
        cure = "installs that; if it fails, restore the wheel from version control"
        return f"{used}; `uv sync && source .venv/bin/activate` {cure}"
    return ""


def _compared(name: str) -> bool:
    """Whether a file belongs to the engine; the same engine may come with several commits."""
    return name.startswith("labjobs/") and name != f"labjobs/{COMMIT}"
