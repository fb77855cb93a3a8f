"""Where a result comes from: the code's commit, the machine, the versions of what it stands on."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path

from engine.paths import CODE

FROZEN = ".version.json"
"""Where a copy of the code says what it is a copy of."""

LARGEST = 1_000_000
"""Bytes of a new file above which it is left out of the changes."""


def tags() -> dict[str, str]:
    """Commit (`none` outside git), dirtiness, code, host and versions, as tags of a run."""
    return {
        "commit": version()["commit"] or "none",
        "dirty": str(bool(version()["changes"])).lower(),
        "code": code(),
        "host": platform.node(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "torchvision", "mlflow", "numpy")},
    }


@cache
def version() -> dict[str, str]:
    """The `commit` (empty outside git) and the `changes` since, new files included, as a diff."""
    frozen = CODE / FROZEN
    if frozen.exists():
        return dict(json.loads(frozen.read_text()))
    commit = _git("rev-parse", "HEAD").strip()
    return {"commit": commit, "changes": _changes() if commit else ""}


def code() -> str:
    """A hash of all code that a job trains with: the scripts at the root and the engine."""
    digest = hashlib.sha256()
    for file in sorted([*CODE.glob("*.py"), *CODE.glob("engine/**/*.py")]):
        if file.name != "plot.py":
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _changes() -> str:
    """What differs from the commit; made with a copy of git's index, which stays as it is."""
    new = _git("ls-files", "-z", "--others", "--exclude-standard").split("\0")[:-1]
    small = [name for name in new if os.lstat(CODE / name).st_size <= LARGEST]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "index"
        index = CODE / _git("rev-parse", "--git-path", "index").strip()
        if index.exists():
            shutil.copy(index, copy)
        if small:
            _git("add", "--intent-to-add", "--", *small, index=copy)
        return _git("diff", "HEAD", "--no-ext-diff", "--no-color", "--", ".", index=copy)


def _git(*words: str, index: Path | None = None) -> str:
    """What a git command prints; nothing where there is no git or no repository."""
    env = os.environ | ({"GIT_INDEX_FILE": str(index)} if index else {})
    try:
        done = subprocess.run(["git", *words], cwd=CODE, env=env, capture_output=True)
    except FileNotFoundError:
        return ""
    return done.stdout.decode(errors="replace")
