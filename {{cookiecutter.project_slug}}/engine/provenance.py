"""Where a result comes from: the code's commit, the machine, the versions of what it stands on."""

import platform
import subprocess
from importlib import metadata

from engine.settings import PROJECT


def tags() -> dict[str, str]:
    """Commit (`none` outside git), dirtiness, host and versions, as tags of a run."""
    commit = _git("rev-parse", "HEAD")
    return {
        "commit": commit or "none",
        "dirty": str(bool(commit and _git("status", "--porcelain"))).lower(),
        "host": platform.node(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "torchvision", "mlflow", "numpy")},
    }


def _git(*words: str) -> str:
    """What a git command prints; nothing where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
