"""Complete copies of what jobs ran with, so that they can be run again years later.

In the folder of runs, `.code/<digest>.tar.gz` has the project's code, engine included, as it was;
`.installed/<digest>.txt` has the versions of Python and of all packages, as pip and uv read them.
Jobs that ran with the same code or versions share one file.
"""

import io
import platform
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from labjobs import files, privacy
from labjobs.job import code_files, provenance, reads
from labjobs.job.contents import of_text
from labjobs.paths import CODE

CODE_COPY, INSTALLED = "code_copy", "installed"
"""Fields of settings.json that name the two files."""


def keep(runs_root: Path) -> dict[str, str]:
    """Keep the code and the versions of this process; returns the paths of the two copies, relative
    to the folder of runs, for settings.json."""
    paths = {}
    for name, (path, content) in _copies().items():
        if not (runs_root / path).exists():
            files.write_shared(runs_root / path, content)
        paths[name] = path
    return paths


@cache
def _copies() -> dict[str, tuple[str, Callable[[BinaryIO], object]]]:
    """The path of each copy, and the function that writes it; the code is that of the first
    call."""
    with reads.aside():
        code, installed = dict(_code()), "".join(_installed())
    return {
        CODE_COPY: (f".code/{of_text(repr(code))}.tar.gz", lambda file: _pack(code, file)),
        INSTALLED: (
            f".installed/{of_text(installed)}.txt",
            lambda file: file.write(installed.encode()),
        ),
    }


def _code() -> Iterator[tuple[str, str]]:
    """The names and contents of the code's files: text files that are not large and hold no
    secrets."""
    for path in sorted(code_files.paths()):
        file = CODE / path
        if file.is_file() and not file.is_symlink() and not provenance.is_closed(path.as_posix()):
            with suppress(OSError, UnicodeDecodeError):  # an editor's temporary file; not a text
                if file.stat().st_size <= provenance.LARGEST:
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
