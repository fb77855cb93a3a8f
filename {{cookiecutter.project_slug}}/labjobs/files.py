"""Small files that are written whole or not at all, and read without errors whatever they contain.

The records of an attempt are sealed: the last field of their JSON, `crc`, is the CRC-32 of all the
text before it. So a flipped bit is noticed, and the files are still plain JSON.
"""

import json
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

TAIL = 65_536  # bytes at the end of a journal, or an output, that surely hold its last line

SEAL = b',\n  "crc": "%08x"\n}\n'  # ends a record; the end of a journal's line has no line break


def write(
    path: Path, fill: Callable[[BinaryIO], object], own: str = "", previous: Path | None = None
) -> None:
    """Write a file whole or not at all: next to it, onto the disk, then renamed over it.

    `fill` writes the content into an open binary file. If several processes may write the same file
    at once, each needs its `own` word. The old file is kept under the name `previous`, if given.
    Raises OSError, and leaves the old file as it was, if the new one cannot be written.
    """
    part = path.with_name(f"{path.name}{own}.part")
    try:
        part.unlink(missing_ok=True)  # what a killed process left, or a link to somewhere else
        with part.open("x+b") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        if previous and path.exists():
            path.replace(previous)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_shared(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file that several processes may write at once, into a folder that is made if it is
    not there, for everyone who may write in the folder around it. Raises OSError."""
    with suppress(FileExistsError):
        path.parent.mkdir()
        path.parent.chmod(path.parent.parent.stat().st_mode)
    write(path, fill, f".{uuid4().hex}")


def changed(path: Path) -> int:
    """Return when a file was last changed, in ns; 0 if it is not there."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def sync_folder(folder: Path) -> None:
    """See the new names of a folder's files onto the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tail(path: Path) -> bytes:
    """Return the last TAIL bytes of a file; none if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        return file.read()
    return b""


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, with bytes that are no text as they were, whole or not at all."""
    write(path, lambda file: file.write(text.encode(errors="surrogateescape")))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a dictionary as JSON, whole or not at all; other types become their text."""
    write_text(path, json.dumps(content, indent=2, default=str) + "\n")


def json_of(content: Any, indent: int | None = 2) -> str:
    """Return content as JSON that every program can read; without an indent, on one short line."""
    separators = None if indent else (",", ":")
    return json.dumps(_finite(content), indent=indent, separators=separators)


def _finite(value: Any) -> Any:
    """A value for JSON, which has no infinity and no NaN: these become texts, like all that is
    neither a number nor a text."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    return value if isinstance(value, int | str | None) else str(value)


def read_json(path: Path) -> dict[str, Any]:
    """Return the dictionary in a JSON file; an empty one if there is none."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        return dict(json.loads(path.read_bytes()))
    return {}


def write_record(path: Path, content: dict[str, Any]) -> None:
    """Write a dictionary, which is not empty, as sealed JSON, whole or not at all."""
    write(path, lambda file: file.write(record(content)))


def read_record(path: Path) -> dict[str, Any]:
    """Return the dictionary in a sealed file; an empty one if the file is missing or damaged."""
    with suppress(OSError):
        return opened(path.read_bytes().rstrip(b" "))  # lock files are padded with it
    return {}


def record(content: dict[str, Any]) -> bytes:
    """Return a dictionary as sealed JSON, without the seal that it had."""
    bare = {name: value for name, value in content.items() if name != "crc"}
    return sealed(json.dumps(bare, indent=2, default=str)[:-2].encode())


def sealed(text: bytes, seal: bytes = SEAL, seed: int = 0) -> bytes:
    """Return the text of a JSON object, without its end, with a checksum and an end."""
    return text + seal % zlib.crc32(text, seed)


def opened(data: bytes, seal: bytes = SEAL, seed: int = 0) -> dict[str, Any]:
    """Return the object that was sealed; an empty one if the text was changed."""
    text = data[: -len(seal % 0)]
    return dict(json.loads(data)) if data and sealed(text, seal, seed) == data else {}


# The folders from which everything else is found.

ENGINE = Path(__file__).resolve().parent
"""The folder of the engine that runs: installed, or in the project."""


def _code() -> Path:
    """The script's folder, the current one or the nearest above it, if it has a settings.py; else
    that of a project which sys.path names, as in a notebook that lies elsewhere."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        sys.exit("the current folder was removed; cd into one that exists")
    script = here / sys.argv[0]  # empty in a notebook or a prompt
    for folder in (script.resolve().parent if sys.argv[0] else here, here, *here.parents):
        if folder != ENGINE and (folder / "settings.py").is_file():
            return folder
    for folder in map(Path, sys.path):
        of_project = (folder / "settings.py", folder / "pyproject.toml")
        if folder != ENGINE and all(file.is_file() for file in of_project):
            return folder.absolute()
    return Path(os.environ.get("PROJECT_FOLDER", here))


CODE = _code()  # the folder that the student's code lies in: the project's, or a sweep's copy of it

if sys.flags.safe_path and str(CODE) not in sys.path:  # by PYTHONSAFEPATH, python -I or -P
    sys.path.insert(0, str(CODE))

PROJECT = Path(os.environ.get("PROJECT_FOLDER", CODE))
"""The project's folder: runs, data and the default tracking store lie in it."""


def portable(path: Path) -> str:
    """Return a path as a text to be stored: `PROJECT / text` is the path again after a move."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def shown(path: Path) -> str:
    """Return a path as short as it can be typed from the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
