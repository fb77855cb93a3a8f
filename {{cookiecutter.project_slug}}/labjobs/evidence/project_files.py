"""The project's modules: where they lie, read once."""

from collections.abc import Iterator
from pathlib import Path

from labjobs.evidence.modules import Module

ENGINE = "labjobs"
NO_PART_OF_A_JOB = {"plot", "jobs", "conftest", "tests", ENGINE}
"""These count only if a job's code imports them."""

UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


class Modules:
    """The student's modules, by their dotted names."""

    def __init__(self, folder: Path, entry: str) -> None:
        self.folder, self.entry = folder, entry
        self._modules: dict[str, Module | None] = {}
        self._files: dict[str, Path | None] = {}

    def __contains__(self, name: str) -> bool:
        """Whether there is such a module, readable or not."""
        return self.file(name) is not None

    def file(self, name: str) -> Path | None:
        """Return the file of a module, or the folder of a package without `__init__.py`."""
        if name not in self._files:
            self._files[name] = self._find(name)
        return self._files[name]

    def name_of(self, file: Path) -> str:
        """Return the name of the module in a file; empty if that cannot be a part of a job."""
        if not file.is_relative_to(self.folder):
            return ""
        parts = file.relative_to(self.folder).with_suffix("").parts
        if parts[0] in NO_PART_OF_A_JOB or not all(part.isidentifier() for part in parts):
            return ""
        return ".".join(parts).removesuffix(".__init__")

    def path(self, name: str) -> str:
        """Return where a module lies below the project's folder."""
        file = self.file(name)
        return file.relative_to(self.folder).as_posix() if file else f"{name}.py"

    def _find(self, name: str) -> Path | None:
        first, *rest = name.split(".")
        if not name or first == ENGINE or not all(part.isidentifier() for part in (first, *rest)):
            return None
        path = self.folder.joinpath(first, *rest)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
        return path if path.is_dir() and next(path.glob("*.py"), None) else None

    def get(self, name: str) -> Module | None:
        """Return a module; None if there is none, or if it cannot be read."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | None:
        file = self.file(name)
        if file is None:
            return None
        is_package = file.name == "__init__.py" or file.is_dir()
        package = name if is_package else name.rpartition(".")[0]
        try:
            data = b"" if file.is_dir() else file.read_bytes()
            return Module(name, data, package, name == self.entry)
        except UNREADABLE:
            return None

    def imported(self) -> list[Module]:
        """Return the modules that can be read and that the entry imports, itself or by others."""
        found, seen, waiting = [], {self.entry}, [self.entry]
        while waiting:
            if module := self.get(waiting.pop(0)):
                found.append(module)
                for name in module.imports_anywhere():
                    names = [n for n in parents(name) if n in self and n not in seen]
                    seen.update(names)
                    waiting.extend(names)
        return found

    def everything(self) -> Iterator[str]:
        """Yield the names of all modules that may be a part of a job."""
        yield from filter(None, map(self.name_of, sorted(self.folder.rglob("*.py"))))


def parents(name: str) -> list[str]:
    """Return the packages of a module, outermost first, and the module."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
