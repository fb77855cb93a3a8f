"""The code fingerprint of a job: which definitions its results depend on, and their hashes."""

import ast
import atexit
import hashlib
import inspect
import os
import re
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any, NamedTuple

from labjobs import layout
from labjobs.evidence.canonical import SCHEME, Code, Use, Writer, Written, short
from labjobs.evidence.engine_code import EngineCode
from labjobs.evidence.symbols import Module, Symbols, extent
from labjobs.evidence.top_level import Name
from labjobs.evidence.understood import is_special, parents, special_word
from labjobs.evidence.values import ALL, ENGINES, MODULE, Key, Undecided

Piece = tuple[Module, ast.AST]

WHOLE = "<file>"
"""Stands for all of a module, instead of one definition."""

NO_CODE = {"labjobs", "runs"}
"""Folders of a project that have no code of its jobs, besides hidden ones."""

EVERY_LINE = range(sys.maxsize)

GRID = "run.sh"
"""Names jobs, and changes none of them. One that reads it has it in its data."""

SOURCES = (
    *(".c", ".cc", ".cpp", ".cu", ".cuh", ".f90", ".go", ".h", ".hpp", ".jl", ".js", ".py", ".pyx"),
    *(".r", ".rs", ".so", ".awk", ".bash", ".lua", ".pl", ".rb", ".sed", ".sh", ".zsh"),
    *("makefile", ".mk"),
)
"""How the names of programs' sources end."""

MAKEFILES = {"GNUmakefile", "makefile", "Makefile"}
SHELLS = {"sh", "bash", "dash", "ksh", "zsh", "make"}  # they run files whatever their names


class Project:
    """A project's code, read once; answers for thousands of jobs.

    `folder` is the project's, `entry` the module whose `main` does the job. Never raises an error
    about the code: a file that cannot be read counts as a whole.
    """

    def __init__(self, folder: Path, entry: str = "run") -> None:
        self.engine = EngineCode(folder)
        self.symbols = Symbols(folder, entry, self.engine.door)
        self.code = Code(self.symbols)
        self._texts: dict[ast.AST, list[Written]] = {}
        self.direction = cache(self._direction)
        self.acts = cache(self._acts)
        self.programs = cache(self._programs)
        registries = self.code.registries.entries.values()
        self._keys = {entry.key for entries in registries for entry in entries}
        self._known: dict[tuple[Any, ...], Fingerprint] = {}

    def fingerprint(
        self,
        settings: Mapping[str, Any],
        also: tuple[str, ...] = (),
        inputs: Mapping[str, str] = MappingProxyType({}),
        without: Sequence[str] = (),
    ) -> "Fingerprint":
        """Return the fingerprint of the job with these settings, as plain values by their names.

        They are all settings in its identity; settings that were added later have their neutral
        values. `also` are further definitions to include, such as "models:block". `inputs` are the
        digests of the jobs that this one is derived from, by their ids. It is `without` some parts,
        and what only these use, if only the rest is of interest.
        """
        # Two jobs have the same fingerprint if they have the same values of the settings that
        # conditions ask for, and of those that may be keys of registries or names of files.
        asked = [repr(settings.get(name, KeyError)) for name in self.code.values.conditions]
        words = [f"{name}={value}" for name, value in settings.items() if self._is_word(value)]
        key = (*asked, *sorted(words)), frozenset(settings), also, tuple(inputs.items()), *without
        if key not in self._known:
            self._known[key] = Fingerprint(self, settings, also, inputs, without)
        return self._known[key]

    def _is_word(self, value: object) -> bool:
        if isinstance(value, str):
            is_key = value in self._keys or value.removeprefix("val_") in self._keys
            return is_key or "." in value or bool(special_word(value))
        return isinstance(value, list | tuple) and bool(value)

    def lacking(self, code: "Fingerprint", ran: set[CodeType]) -> list[str]:
        """Return the definitions of the project that have run and that a fingerprint lacks."""
        found = set()
        for each in ran.copy():  # threads may add to it
            name, line = self.symbols.name_of(Path(each.co_filename)), each.co_firstlineno - 1
            if not name or any(line in lines for lines in code.lines.get(name, ())):
                continue
            module = self.symbols.get(name)
            definitions = module.definitions.items() if module else ()
            around = (n for n, ss in definitions for s in ss if line in range(*extent(s)))
            found.add(f"{name}:{next(around, WHOLE)}")
        return sorted(found)

    @cached_property
    def files(self) -> list[Path]:
        """All files with code in the project's folder."""
        found: list[Path] = []
        for folder, folders, files in os.walk(self.symbols.folder):
            is_root = Path(folder) == self.symbols.folder
            if layout.ENVIRONMENT in files and not is_root:  # libraries: recorded, never stale
                folders.clear()
                continue
            without = NO_CODE if is_root else ()
            folders[:] = sorted(n for n in folders if not n.startswith(".") and n not in without)
            found += [Path(folder, name) for name in sorted(files) if _is_source(name)]
        return found

    @cached_property
    def python_files(self) -> dict[Path, str]:
        """All files with Python code in the project's folder, each with the name of its module,
        which is empty if it cannot be part of a job."""
        return {file: self.symbols.name_of(file) for file in self.files if file.suffix == ".py"}

    def _programs(self, word: str) -> set[str]:
        """The programs in the project that a word may name, by its ending or their first bytes.
        Paths are put together, so it may be the end of one; in Python, other rules find these."""
        root, name, found = self.symbols.folder, word.rpartition("/")[2], set[str]()
        if _is_source(name) and not name.endswith(".py"):
            named = (file for file in self.files if file.name == name and file != root / GRID)
            found = {file.relative_to(root).as_posix() for file in named}
        if word.startswith(("/", "..")) or not (_is_source(name) or "/" in word) or len(word) > 200:
            return found
        with suppress(OSError, ValueError):  # the word cannot be a name of a file
            is_other = (root / word).is_file() and root / word != root / GRID
            if is_other and (_is_source(name) or _bytes(root / word)[:2] in (b"#!", b"\x7fE")):
                found.add(word)
        return found

    def order(self, module: Module) -> list[ast.stmt]:
        """Return the statements of a module that do more than define names, its imports of modules
        that have such statements, and that of `annotations` if it may matter."""
        return [
            statement
            for statement in module.statements
            if statement in self.code.effects(module).statements
            or any(map(self.acts, module.modules_of(statement)))
            or ("__future__" in module.modules_of(statement) and self._looks_at_types(module))
        ]

    def _looks_at_types(self, module: Module) -> bool:
        """Whether it may matter if types are evaluated: on import, or as fields of dataclasses."""
        kinds = (ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        acting = self.code.effects(module).statements
        return self.code.values.looks_at_fields or any(isinstance(s, kinds) for s in acting)

    def _acts(self, name: str) -> bool:
        """Whether importing a module does something besides defining names."""
        waiting = parents(name)
        seen = {*waiting}
        while waiting:
            if module := self.symbols.get(waiting.pop()):
                if self.code.effects(module).statements:
                    return True
                imported = {part for each, _ in module.imports for part in parents(each)} - seen
                waiting.extend(imported)
                seen |= imported
        return False

    def _direction(self, module: Module, node: ast.AST) -> ast.AST:
        """Return a metric's declaration with what decides which weights are kept: its direction."""
        if not isinstance(node, ast.Call):
            return node
        if self.symbols.path_of(module, node.func) != "labjobs.settings.Metric":
            return node
        better = [each for each in node.keywords if each.arg == "better"]
        return ast.copy_location(ast.Call(node.func, node.args[:1], better), node)

    def written(self, module: Module, node: ast.AST, settings: Mapping[str, Any]) -> Written:
        """Return the text of a node, reused from another job if its settings lead to the same
        text."""
        known = self._texts.setdefault(node, [])
        for written in known:
            asked = written.asked.items()
            if all(repr(settings.get(name, Undecided)) == repr(value) for name, value in asked):
                return written
        try:
            written = Writer(self.code, module, settings).written(node)
        except RecursionError:
            why = f"{module.name}.py is nested too deeply"
            written = Written(module.source, [Use("everything", why=why)], set(), {})
        known.append(written)
        return written


class Part(NamedTuple):
    """A part of the code: its canonical text, or a hash if it has no text; a function that returns
    the source for people to read; and the part through which it was reached first."""

    text: str
    source: Callable[[], str]
    by: str


class Fingerprint:
    """The code that a job's results depend on, as `Project.fingerprint` finds it.

    Parts are named "models:ConvNet" (a definition), "models:MODELS[mlp]" (an entry of a registry),
    "models:<module>" (what importing a module does), "models:<file>" (the text of a module that
    counts as a whole), "file:kernels/a.cu", "input:1872aa178ea7" (the code of a job that this one
    is derived from) and "labjobs.training.optim" (its results version, or a hash if it was edited).
    """

    def __init__(
        self,
        project: Project,
        settings: Mapping[str, Any],
        also: tuple[str, ...],
        inputs: Mapping[str, str],
        without: Sequence[str],
    ) -> None:
        self._project, self._symbols, self._without = project, project.symbols, without
        self._registries, self._folder = project.code.registries, project.symbols.folder
        self._settings, self._inputs = settings, inputs
        self._words = {word for value in settings.values() for word in _words(value)}
        self._entered: set[str] = set()
        self._imports: defaultdict[str, set[str]] = defaultdict(set)  # modules, by their importer
        self._unseen: list[tuple[Use, str]] = []
        self._runs_programs = False  # perhaps
        self._engine: dict[str, str] = {}
        self._asked: dict[Name, tuple[str, set[Key]]] = {}
        self._waiting: deque[tuple[Use, str]] = deque()
        self._reached: dict[str, Part] = {}
        self._advice: dict[str, str] = {}  # for each module that counts as a whole
        self.unread: list[str] = []
        """The parts that are files which cannot be read as Python."""
        self.lines: dict[str, list[range]] = {}
        """The lines of each module that are in a part, counted from 0."""
        self._find(also)
        self.advice = [*self._advice.values()]
        """A line for each module that counts as a whole, with the reason and where it stands."""
        for job, code in inputs.items():
            self._put(f"input:{job}", code, partial("code {}".format, code), "")
        self.parts = {
            name: short(part.text.encode()) if ":" in name else part.text
            for name, part in self._reached.items()  # of the engine: a version, or already a hash
        }
        """The hash of each part."""
        lines = sorted(f"{part} {found}" for part, found in self.parts.items())
        text = "\n".join([f"scheme {SCHEME}", *lines])
        self.digest = " ".join([hashlib.sha256(text.encode()).hexdigest(), *also])
        """SHA-256 over the scheme's number and the parts; followed by the names of the definitions
        that the fingerprint was widened by."""

    @cached_property
    def unseen(self) -> dict[str, str]:
        """Functions of libraries that read files without Python, and where the code uses them, in
        modules that the job imports; others count only since it cannot be known what is used."""
        imported, further = set[str](), {"", self._symbols.entry}
        while further:
            imported |= further
            further = {each for name in further for each in self._imports[name]} - imported
        every = [use for use, module in self._unseen if module in imported]
        return {use.name: use.why for use in reversed(every)}

    def source(self, part: str) -> str:
        """Return the source text of a part; KeyError if the job has no such part."""
        return self._reached[part].source()

    def widened(self, also: Iterable[str]) -> "Fingerprint":
        """Return the fingerprint of the same job with more definitions, such as "models:block", and
        what these depend on; definitions that no longer exist are left out."""
        names = tuple(sorted({*also, *self.digest.split()[1:]}))
        return self._project.fingerprint(self._settings, names, self._inputs) if names else self

    def why(self, part: str) -> str:
        """Return the way by which a part was reached: "models:block <- models:ConvNet <-
        run:main"."""
        path = [part]
        while path[-1] in self._reached and (by := self._reached[path[-1]].by) not in ("", *path):
            path.append(by)
        return " <- ".join(path)

    def _find(self, also: Sequence[str]) -> None:
        """Reach everything, beginning with what importing the entry does, and `also` these."""
        for word in filter(special_word, sorted(self._words)):
            self._take_everything("", f"a setting is {word!r}")
        self._enter(self._symbols.entry, "")
        for part in also:
            name, _, definition = part.partition(":")
            module = self._symbols.get(name)
            self._imports[""].update(parents(name))
            if definition == WHOLE:
                self._take_whole(name, "", "code has run there that no definition has")
            elif module and definition in module.definitions:
                self._reach(Use("definition", name, definition), "")
        before = -1
        while self._waiting or len(self._reached) > before:
            before = len(self._reached)
            while self._waiting:
                self._follow(*self._waiting.popleft())
            # what these take depends on all code that was reached before
            self._take_entries()
            self._take_programs()
        engine = self._project.engine
        for path, evidence in engine.reached(set(self._engine)).items():
            users = [by for used, by in self._engine.items() if used.startswith(f"{path}.")]
            self._put(path, evidence, partial(engine.source, path), (users or [""])[0])

    def _put(self, part: str, text: str, source: Callable[[], str], by: str) -> None:
        """Take a part with a text, unless it was taken before."""
        self._reached.setdefault(part, Part(text, source, by))

    def _take(self, part: str, pieces: Sequence[Piece], by: str) -> None:
        """Take a part that stands in some places, and note what it uses."""
        if part in self._reached or part in self._without:
            return
        written = [self._project.written(*piece, self._settings) for piece in pieces]
        text = "\n".join(each.text for each in written)
        self._put(part, text, lambda: "\n".join(m.segment(node) for m, node in pieces), by)
        for each, (module, node) in zip(written, pieces, strict=True):
            self._words |= each.words
            self._waiting.extend((use, part) for use in each.uses)
            self.lines.setdefault(module.name, []).append(range(*extent(node)))

    def _follow(self, use: Use, by: str) -> None:
        module = by.partition(":")[0]
        self._imports[module].update(parents(use.module))
        match use.how:
            case "definition":
                self._reach(use, by)
            case "import":
                self._import(use.module, by)
            case "whole":
                self._take_whole(use.module, by, use.why)
            case "everything":
                self._take_everything(by, use.why)
            case "engine":
                self._engine.setdefault(use.module, by)
            case "unseen":
                self._unseen.append((use, module))

    # Modules

    def _import(self, name: str, by: str) -> None:
        for package in parents(name):
            self._enter(package, by)

    def _enter(self, name: str, by: str) -> None:
        """Take what importing a module does, and the modules that it imports."""
        if name in self._entered:
            return
        self._entered.add(name)
        if name not in self._symbols:
            if self._symbols.is_folder(name):
                self._put(f"file:{name.replace('.', '/')}/", "a folder", str, by)
            return
        module = self._symbols.get(name)
        if module is None:
            path = self._symbols.path(name)
            self._advice[name] = f"{path} cannot be read as Python: any change of the file counts"
            self.unread.append(f"{name}:{WHOLE}")
            self._put_file(self.unread[-1], self._folder / path, by)
            self.lines[name] = [EVERY_LINE]
            return
        for imported, line in module.imports:
            if self._symbols.is_unknown(imported):
                why = f"{module.path}:{line} imports {imported}, which is not known"
                self._take_everything(by, why)
            self._imports[name].update(parents(imported))
            self._import(imported, by)
        for definition in filter(is_special, module.definitions):
            self._take_everything(by, f"{module.path} sets {definition}")
        for star in module.stars:
            why = f"{module.path}: from {star} import * takes names that are not clear"
            if self._symbols.is_unclear(star, module):
                self._take_everything(by, why)
            elif star not in self._symbols:
                self._take_whole(name, by, why)
        if effects := self._project.order(module):
            self._take(f"{name}:<module>", [(module, each) for each in effects], by)

    def _take_everything(self, by: str, why: str) -> None:
        """Take all modules of the project, if it cannot be known which are used."""
        self._runs_programs = True
        for file, name in self._project.python_files.items():
            if name:
                self._take_whole(name, by, why)
            else:
                self._put_file(f"file:{file.relative_to(self._folder).as_posix()}", file, by)

    def _take_whole(self, name: str, by: str, why: str) -> None:
        """Take the text of a module and all that it uses, if it cannot be known what is used."""
        module, part = self._symbols.get(name), f"{name}:{WHOLE}"
        if name not in self._symbols or part in self._reached:
            return
        self._put_file(part, self._folder / self._symbols.path(name), by)
        self._import(name, by)
        self.lines.setdefault(name, []).append(EVERY_LINE)
        for inner in self._project.python_files.values():
            if inner.startswith(f"{name}."):
                self._take_whole(inner, part, why)
        self._advice.setdefault(name, f"{self._symbols.path(name)} counts as a whole: {why}")
        if module is None:
            return
        for statement in module.statements:
            written = self._project.written(module, statement, {})
            self._words |= written.words
            self._waiting.extend((use, part) for use in written.uses)
        for target in (self._symbols.resolve(module, [alias]) for alias in module.aliases):
            if target.kind == "definition":
                self._reach(Use("definition", target.module, target.name), part)
            elif target.kind == "module":
                self._take_whole(target.module, part, why)
        for star in module.stars:
            self._take_whole(star, part, why)

    # Definitions, registries and subclasses

    def _reach(self, use: Use, by: str) -> None:
        """Take a definition; of a registry, all but its entries, and note which are asked for."""
        self._import(use.module, by)
        module, name = self._symbols.get(use.module), (use.module, use.name)
        if not module:
            return
        part, definition = f"{use.module}:{use.name}", module.definitions[use.name]
        if name not in self._registries.entries:
            self._take(part, [(module, node) for node in definition], by)
            return
        key = use.key
        if key.kind == "setting":
            value = self._settings.get(key.value, Undecided)  # a setting that is in no identity
            key = ALL if value is Undecided else Key("constant", str(value))
        _, asked = self._asked.setdefault(name, (by, set()))
        asked.add(key)
        if key == ALL:
            keys = "\n".join(entry.key for entry in self._registries.entries[name])
            self._put(f"{part}[*]", keys, lambda: keys, by)

    def _take_entries(self) -> None:
        """Take the entries of registries that have been asked for so far."""
        words = self._words | {word.removeprefix("val_") for word in self._words}  # of --monitor
        for (module, name), (by, asked) in self._asked.items():
            keys = {key.value for key in asked if key.kind == "constant"}
            taken: dict[str, list[Piece]] = {}
            for entry in self._registries.entries[module, name]:
                part = f"{module}:{name}[{entry.key}]"
                if ALL in asked or entry.key in keys:
                    taken.setdefault(part, []).append((entry.module, entry.node))
                elif ENGINES in asked and module == MODULE and entry.key in words:
                    node = self._project.direction(entry.module, entry.node)
                    taken.setdefault(f"{part} better", []).append((entry.module, node))
            for part, pieces in taken.items():
                self._take(part, pieces, by)

    # Files that a job depends on and Python does not open for it. Those that Python opens are
    # recorded by labjobs.job.data_evidence.

    def _take_programs(self) -> None:
        """Take the programs that constants and settings name."""
        scripts = self._scripts() if self._runs_programs else set[str]()
        for word in sorted(self._words - scripts):
            named = self._project.programs(word)
            scripts |= named
            if not named and word.lower().endswith(".py") and not re.search(r"\s", word):
                self._take_everything("", f"{word!r} in the code is no file of the project")
        for word in sorted(scripts):
            file, why = self._folder / word, f"{word} is named in the code"
            self._put_file(f"file:{file.relative_to(self._folder).as_posix()}", file, "")
            if word.endswith(".py"):  # perhaps run in a separate process
                module = self._symbols.name_of(file)
                if not self._runs_programs:  # else modules that are not imported name files too
                    self._imports[""].update(parents(module))
                self._take_whole(module, "", why) if module else self._take_everything("", why)

    def _scripts(self) -> set[str]:
        """Return the files that commands such as "sh ./a.sh" name, and those that they name, also
        without an ending; and what `make` reads."""
        found, waiting = set[str](), [*self._words]
        in_shells = any(SHELLS.intersection(word.split()) for word in waiting)
        while waiting:
            words = {*re.split(r"[^\w./+-]+", waiting.pop())} - found
            words |= MAKEFILES - found if "make" in words else set()
            plain = {w for w in words - MAKEFILES if re.fullmatch(r"\w{1,99}", w)}
            named = {file for w in words - plain for file in self._project.programs(w)} - found
            files = (w for w in plain if in_shells and (self._folder / w).is_file())
            named |= {w for w in files if _bytes(self._folder / w)}  # others only mark something
            found |= named
            texts = (_bytes(self._folder / name) for name in named if not name.endswith(".py"))
            waiting.extend(text.decode(errors="replace") for text in texts)
        return found

    def _put_file(self, part: str, file: Path, by: str) -> None:
        self._put(part, short(_bytes(file)), lambda: _bytes(file).decode(errors="replace"), by)


def _is_source(name: str) -> bool:
    return name.lower().endswith(SOURCES)


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _words(value: object) -> Iterator[str]:
    """Yield the texts in the value of a setting."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _words(part)


# Which functions of a project really run in a job. From Python 3.12 on, finding out costs next to
# nothing: Python reports the first call of each (docs.python.org, sys.monitoring). Python 3.11
# would have to report every call.

TOOLS = (4, 3)
"""Tool ids for Python's monitoring that are not reserved for any kind of tool."""


_ran = set[CodeType]()


def begin(folder: Path) -> set[CodeType]:
    """Note from now on which functions below a folder run, in all threads of this process, and
    return the set that grows; on Python 3.11 it stays empty."""
    _report_calls(folder)
    _ran.clear()
    if sys.version_info >= (3, 12):
        sys.monitoring.restart_events()
    return _ran


def is_below(folder: Path, called: CodeType) -> bool:
    """Return whether code is that of a function in a file below a folder."""
    is_function = called.co_flags & inspect.CO_OPTIMIZED  # not the body of a module or class
    file = called.co_filename  # of generated code: <string>, <frozen …>
    is_file = bool(is_function) and file[:1] != "<"
    return is_file and os.path.abspath(file).startswith(os.path.join(folder, ""))


@cache  # once for all attempts of this process
def _report_calls(folder: Path) -> None:
    """Have Python tell which functions are called."""
    if sys.version_info < (3, 12):
        return
    monitoring = sys.monitoring
    free = next((tool for tool in TOOLS if monitoring.get_tool(tool) is None), None)
    if free is None:  # debuggers or profilers use them all
        return

    def started(called: CodeType, _offset: int) -> Any:
        """Note a function at its first call, and ask for no further ones."""
        if is_below(folder, called):
            _ran.add(called)
        return monitoring.DISABLE  # for this function only

    monitoring.use_tool_id(free, __name__)
    monitoring.register_callback(free, monitoring.events.PY_START, started)
    monitoring.set_events(free, monitoring.events.PY_START)
    atexit.register(monitoring.set_events, free, monitoring.events.NO_EVENTS)
