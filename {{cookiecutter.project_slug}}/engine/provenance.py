"""Where a result comes from: the code's commit, the machine, the versions of what it stands on."""

import hashlib
import platform
import subprocess
from importlib import metadata

from engine.settings import PROJECT


def tags() -> dict[str, str]:
    """Commit (`none` outside git), dirtiness, code, host and versions, as tags of a run."""
    commit = _git("rev-parse", "HEAD")
    return {
        "commit": commit or "none",
        "dirty": str(bool(commit and _git("status", "--porcelain"))).lower(),
        "code": code(),
        "host": platform.node(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "torchvision", "mlflow", "numpy")},
    }


def code() -> str:
    """A hash of all code that a job trains with: the scripts at the root and the engine."""
    digest = hashlib.sha256()
    for file in sorted([*PROJECT.glob("*.py"), *PROJECT.glob("engine/*.py")]):
        if file.name != "plot.py":
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _git(*words: str) -> str:
    """What a git command prints; nothing where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
