"""Where a result comes from: the code's commit, the machine, the engine, the libraries."""

import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from labjobs import __version__, files, layout, privacy
from labjobs.files import CODE, ENGINE, shown
from labjobs.job.data_evidence import aside, of_text

PACKAGES = ("torch", "torchvision", "mlflow", "numpy")

IMAGE = "LABJOBS_IMAGE"
"""The variable that names the image of the container in which a job runs, with its digest."""

LARGEST = 1_000_000  # bytes of a new file above which it is left out of the changes
MANY = 1_000  # files that git ignores in a folder above which they are data, not parts of the code

FORM = (
    *("--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short", "--binary"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--unified=3", "--inter-hunk-context=0"),
)
"""How changes are written, so that `git apply` takes them, whatever the user's configuration says;
textconv could decrypt."""

NAMING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
"""Variables that may name another repository, as git's own do while it runs a hook."""


def tags() -> dict[str, str]:
    """Return commit (`none` outside git), dirtiness, host, template, versions and the image of the
    container, if there is one, as tags."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "commit": version()["commit"] or "none",
        "dirty": str(bool(version()["changes"])).lower(),
        "host": platform.node(),
        "template": engine(),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        **({"container": os.environ[IMAGE]} if os.environ.get(IMAGE) else {}),
    }


@cache
def version() -> dict[str, str]:
    """Return the `commit` and the `branch` (empty outside git), and the `changes` since, new files
    included, as a diff."""
    frozen = CODE / layout.FROZEN
    if frozen.exists():
        return dict(json.loads(frozen.read_bytes()))
    known = git("rev-parse", "HEAD", "--abbrev-ref", "HEAD").decode(errors="replace").split("\n")
    commit, branch = known[:2] if len(known) > 2 else ("", "")
    return {"commit": commit, "branch": branch, "changes": _changes() if commit else ""}


def no_commit() -> str:
    """Return why no commit is recorded, as git says it; empty if one is."""
    said = b"" if version()["commit"] else _asked(("rev-parse", "--verify", "HEAD"))[1]
    if b"single revision" in said:
        return "there is none yet"
    if b"not a git repository" in said:
        return "not a git repository, which git init would make it"
    return said.decode(errors="replace").partition("\n")[0].removeprefix("fatal: ")


def names(*words: str, index: Path | None = None) -> list[str]:
    """The names that a git command lists, whatever their encoding."""
    return [os.fsdecode(name) for name in git(*words, "-z", index=index).split(b"\0")[:-1]]


def _changes() -> str:
    """The differences from the commit, computed with a copy of git's index, so that the index does
    not change.

    Files that may hold secrets and those that are large are named at the top, but not shown. The
    project's id, which its first job writes, is no change of the code.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "index"
        index = CODE / os.fsdecode(git("rev-parse", "--git-path", "index").strip())
        if index.exists():
            shutil.copy(index, copy)
        if not git("ls-files", "-z", index=copy):  # damaged, as by a power cut
            copy.unlink(missing_ok=True)
            git("read-tree", "HEAD", index=copy)
        new = names("ls-files", "--others", "--exclude-standard", index=copy)
        new = [name for name in new if name != layout.PROJECT_ID]
        changed = names("diff", "HEAD", "--relative", "--name-only", "--no-renames", index=copy)
        closed = [name for name in (*changed, *new) if is_closed(name)]
        counts = names("diff", "HEAD", "--relative", "--numstat", "--no-renames", index=copy)
        binary = [line[4:] for line in counts if line.startswith("-\t-\t")]
        large = [n for n in (*new, *binary) if n not in closed and _is_large(CODE / n)]
        shown = "\0".join(name for name in new if name not in {*closed, *large})
        if shown:
            words = ("--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
            git("--literal-pathspecs", "add", *words, index=copy, given=os.fsencode(shown))
        without = [f":(exclude,literal){name}" for name in (*closed, *large)]
        diff = git("diff", "HEAD", *FORM, "--", ".", *without, index=copy)
    # Lines that `git apply` skips.
    left_out = [("may hold secrets", closed), (f"above {LARGEST} bytes", large)]
    lines = [f"# left out ({why}): {', '.join(map(json.dumps, n))}\n" for why, n in left_out if n]
    return "".join(lines) + privacy.scrub(diff.decode(errors="surrogateescape"), code=True)


def is_closed(name: str) -> bool:
    """Return whether a file, named from the code's folder, must not or cannot be recorded."""
    file = CODE / name
    if privacy.is_secret(Path(name)) or privacy.is_private(file):
        return True
    return os.path.lexists(file) and not file.is_symlink() and not os.access(file, os.R_OK)


def _is_large(file: Path) -> bool:
    return file.exists() and file.stat().st_size > LARGEST


def git(*words: str, index: Path | None = None, given: bytes = b"") -> bytes:
    """What a git command prints; empty if there is no git or no repository."""
    return _asked(words, index, given)[0]


def _asked(
    words: tuple[str, ...], index: Path | None = None, given: bytes = b""
) -> tuple[bytes, bytes]:
    """What a git command prints, and what it complains about."""
    own = {name: value for name, value in os.environ.items() if name not in NAMING}
    env = own | ({"GIT_INDEX_FILE": str(index)} if index else {})
    try:
        done = subprocess.run(["git", *words], cwd=CODE, env=env, input=given, capture_output=True)
    except OSError as error:  # there is no git, or none that may be run
        return b"", str(error).encode()
    return done.stdout, done.stderr


def paths() -> set[Path]:
    """Return the paths of the code's files, from its folder: in a git repository, the tracked files
    and new files that are not ignored; in a sweep's copy, those that were copied; otherwise, the
    files next to the scripts and the folders that contain Python files. An environment that git
    does not ignore is no code of the project."""
    copied = files.read_json(CODE / layout.FROZEN).get("files", [])
    listed = copied or names("ls-files", "--cached", "--others", "--exclude-standard")
    found = {Path(name) for name in listed}
    if Path("run.py") not in found:  # no repository, or one that ignores the project
        found = set(_withoutgit())
    environments = {path.parent for path in found if path.name == layout.ENVIRONMENT} - {Path()}
    return {p for p in found if (CODE / p).exists() and environments.isdisjoint(p.parents)}


def ignored() -> list[str]:
    """Return the names, from the project's folder, of what git ignores there and jobs may use all
    the same, such as `data`, `local_paths.py` and `ops/kernel.so`."""
    known = {path.parts[0] for path in paths()}
    beside = (path for path in CODE.iterdir() if path.name not in known)
    within = names("ls-files", "--others", "--ignored", "--exclude-standard", "--directory")
    among = [CODE / name for name in within if name.partition("/")[0] in known]
    crowded = {folder for folder, n in Counter(p.parent for p in among).items() if n > MANY}
    every = (path for path in (*beside, *among) if path.parent not in crowded)
    return [path.relative_to(CODE).as_posix() for path in every if not _is_of_tools(path)]


def _is_of_tools(path: Path) -> bool:
    is_theirs = path.name.startswith((".", "mlflow.db")) or path.name == "__pycache__"
    return is_theirs or (path / layout.ENVIRONMENT).exists()


def _withoutgit() -> Iterator[Path]:
    for path in CODE.iterdir():
        if _is_of_tools(path):
            continue
        if path.is_dir() and not path.is_symlink() and any(path.glob("*.py")):
            yield from (file.relative_to(CODE) for file in path.rglob("*") if file.is_file())
        else:
            yield path.relative_to(CODE)


# Which engine runs: the one installed from the wheel in `vendor/`, or a folder `labjobs/` of the
# project, which takes precedence because Python looks beside a script first.

ENGINE_COMMIT = "commit.txt"  # the template's, written when the project was made or updated


def engine() -> str:
    """Return the engine's version and commit, such as `1.0.0 (3f2a9c1d04be)`."""
    commit = ENGINE / ENGINE_COMMIT
    known = commit.read_text("utf-8").strip() if commit.exists() else ""
    return f"{__version__} ({known[:12] or 'commit unknown'})"


def _engine_files() -> dict[str, bytes]:
    """The engine's files by their names, such as `labjobs/launch.py`."""
    found = (path for path in ENGINE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {f"labjobs/{path.relative_to(ENGINE).as_posix()}": path.read_bytes() for path in found}


def other_engine(project: Path) -> str:
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
            packed = {name: wheel.read(name) for name in wheel.namelist() if _is_compared(name)}
    except (zipfile.BadZipFile, OSError):
        packed = {}
    if packed != {name: data for name, data in _engine_files().items() if _is_compared(name)}:
        cure = "installs that; if it fails, restore the wheel from version control"
        return f"{used}; `uv sync --reinstall-package labjobs && source .venv/bin/activate` {cure}"
    return ""


def _is_compared(name: str) -> bool:
    """Whether a file belongs to the engine; the same engine may come with several commits."""
    return name.startswith("labjobs/") and name != f"labjobs/{ENGINE_COMMIT}"


# Complete copies of what jobs ran with, so that they can be run again years later.
#
# In the folder of runs, `.code/<digest>.tar.gz` has the project's code as it was,
# `.code/labjobs-<digest>.tar.gz` the engine, and `.installed/<digest>.txt` the versions of Python
# and of all packages, as pip and uv read them. Jobs that ran with the same share one file.

CODE_COPY, ENGINE_COPY, INSTALLED = "code_copy", "engine_copy", "installed"  # in settings.json


def keep_copies(runs_root: Path) -> dict[str, str]:
    """Keep the code and the versions of this process; returns the paths of the copies, relative
    to the folder of runs, for settings.json."""
    for path, content in _copies().values():
        if not (runs_root / path).exists():
            files.write_shared(runs_root / path, content)
    return {name: path for name, (path, _) in _copies().items()}


@cache
def _copies() -> dict[str, tuple[str, Callable[[BinaryIO], object]]]:
    """The path of each copy, and the function that writes it; the code is that of the first
    call."""
    with aside():
        code, installed = dict(_code()), "".join(_installed())
        engine = {name: data.decode() for name, data in sorted(_engine_files().items())}
    codes, listed = layout.CODES, f"{layout.INSTALLED}/{of_text(installed)}.txt"
    return {
        ENGINE_COPY: (f"{codes}/labjobs-{of_text(repr(engine))}.tar.gz", partial(_pack, engine)),
        CODE_COPY: (f"{codes}/{of_text(repr(code))}.tar.gz", partial(_pack, code)),
        INSTALLED: (listed, lambda file: file.write(installed.encode())),
    }


def _code() -> Iterator[tuple[str, str]]:
    """The code's files without the engine's: texts that are not large and hold no secrets."""
    for path in sorted(paths()):
        file = CODE / path
        if path.parts[0] == "labjobs":
            continue
        if file.is_file() and not file.is_symlink() and not is_closed(path.as_posix()):
            with suppress(OSError, UnicodeDecodeError):  # an editor's temporary file; not a text
                if not _is_large(file):
                    yield path.as_posix(), privacy.scrub(file.read_text("utf-8"), code=True)


def _pack(code: Mapping[str, str], file: BinaryIO) -> None:
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in code.items():
            content = text.encode()
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(about, io.BytesIO(content))


def _installed() -> Iterator[str]:
    """The lines of a requirements file. Reading the names of folders takes a millisecond; asking
    each package would take a fifth of a second."""
    yield f"# Python {platform.python_version()}\n"
    found = {path.name for entry in sys.path for path in Path(entry).glob("*.dist-info")}
    for name in sorted(found):
        package, _, version = name.removesuffix(".dist-info").rpartition("-")
        yield f"{package.replace('_', '-')}=={version}\n"
