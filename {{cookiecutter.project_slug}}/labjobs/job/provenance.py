"""Where a result comes from: the code's commit, the machine, the versions of the libraries."""

import json
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from labjobs import privacy, template
from labjobs.paths import CODE

FROZEN = ".version.json"
"""The file in a copy of the code that says what was copied."""

PACKAGES = ("torch", "torchvision", "mlflow", "numpy")

LARGEST = 1_000_000
"""Bytes of a new file above which it is left out of the changes."""


def tags() -> dict[str, str]:
    """Return commit (`none` outside git), dirtiness, host, template and versions, as tags of a
    run."""
    versions = {"python": platform.python_version(), **_versions(*PACKAGES)}
    return {
        "commit": version()["commit"] or "none",
        "dirty": str(bool(version()["changes"])).lower(),
        "host": platform.node(),
        "template": template.version(),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
    }


def _versions(*packages: str) -> dict[str, str]:
    """Return the versions of these packages; without one whose metadata is missing."""
    found = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@cache
def version() -> dict[str, str]:
    """Return the `commit` and the `branch` (empty outside git), and the `changes` since, new files
    included, as a diff."""
    frozen = CODE / FROZEN
    if frozen.exists():
        return dict(json.loads(frozen.read_text()))
    known = _git("rev-parse", "HEAD", "--abbrev-ref", "HEAD").decode(errors="replace").split("\n")
    commit, branch = known[:2] if len(known) > 2 else ("", "")
    return {"commit": commit, "branch": branch, "changes": _changes() if commit else ""}


def names(*words: str, index: Path | None = None) -> list[str]:
    """The names that a git command lists, whatever their encoding."""
    return [os.fsdecode(name) for name in _git(*words, "-z", index=index).split(b"\0")[:-1]]


def _changes() -> str:
    """The differences from the commit, computed with a copy of git's index, so that the index does
    not change.

    Files that may hold secrets and those that are large are named at the top, but not shown.
    """
    new = names("ls-files", "--others", "--exclude-standard")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "index"
        index = CODE / os.fsdecode(_git("rev-parse", "--git-path", "index").strip())
        if index.exists():
            shutil.copy(index, copy)
        changed = names("diff", "HEAD", "--relative", "--name-only", index=copy)
        closed = [name for name in (*changed, *new) if is_closed(name)]
        large = [name for name in new if name not in closed and _size(CODE / name) > LARGEST]
        shown = "\0".join(name for name in new if name not in {*closed, *large})
        if shown:
            words = ("--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
            _git("--literal-pathspecs", "add", *words, index=copy, given=os.fsencode(shown))
        plain = ("--no-ext-diff", "--no-textconv", "--no-color")  # textconv can decrypt
        without = [f":(exclude,literal){name}" for name in closed]
        diff = _git("diff", "HEAD", *plain, "--", ".", *without, index=copy)
    left_out = _named("may hold secrets", closed) + _named(f"above {LARGEST} bytes", large)
    return left_out + privacy.scrub(diff.decode(errors="replace"), code=True)


def is_closed(name: str) -> bool:
    """Return whether the content of a file, named from the code's folder, must not or cannot be
    recorded."""
    file = CODE / name
    if privacy.is_secret(Path(name)) or privacy.is_private(file):
        return True
    return os.path.lexists(file) and not file.is_symlink() and not os.access(file, os.R_OK)


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:  # an editor's temporary file
        return 0


def _named(why: str, files: list[str]) -> str:
    """A line of a diff that names files; one that `git apply` skips."""
    return f"# left out ({why}): {', '.join(map(json.dumps, files))}\n" if files else ""


def _git(*words: str, index: Path | None = None, given: bytes = b"") -> bytes:
    """What a git command prints; empty if there is no git or no repository."""
    env = os.environ | ({"GIT_INDEX_FILE": str(index)} if index else {})
    try:
        done = subprocess.run(["git", *words], cwd=CODE, env=env, input=given, capture_output=True)
    except FileNotFoundError:
        return b""
    return done.stdout
