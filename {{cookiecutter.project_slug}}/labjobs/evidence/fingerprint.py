"""The code fingerprint of a job: which definitions its results depend on, and their hashes."""

import atexit
import hashlib
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType
from typing import Any

from labjobs.evidence.closure import WHOLE, Cache, Closure
from labjobs.evidence.engine_code import EngineCode
from labjobs.evidence.modules import Files, Modules
from labjobs.evidence.names import ProjectCode
from labjobs.evidence.syntax import SCHEME, short

TOKEN = re.compile("\x01([^\x02]*)\x02")


@dataclass(frozen=True)
class Fingerprint:
    """The code that a job's results depend on.

    Parts are named "models:ConvNet" (a definition), "models:MODELS[mlp]" (an entry of a registry),
    "models:<module>" (what importing a module does), "models:<file>" (a module that cannot be
    read), "file:kernels/a.cu", "input:1872aa178ea7" (the code of a job that this one is derived
    from) and "labjobs.training.optim" (its results version, or a hash if it was edited).
    """

    digest: str
    """SHA-256 over the scheme's number and the parts, without the names of their modules; followed
    by the names of the definitions that the fingerprint was widened by."""

    parts: Mapping[str, str]
    """The hash of each part."""

    labels: Mapping[str, str]
    """The name of each part in the digest: without the module, if it is then unique."""

    advice: Sequence[str]
    """A line for each module that had to be taken whole, with the reason."""

    lines: Mapping[str, Sequence[range]] = field(repr=False, compare=False)
    """The lines of each module that are in a part, counted from 0."""

    _widened: Callable[[tuple[str, ...]], "Fingerprint"] = field(repr=False, compare=False)
    _sources: Mapping[str, Callable[[], str]] = field(repr=False, compare=False)
    _reached_from: Mapping[str, str] = field(repr=False, compare=False)

    def source(self, part: str) -> str:
        """Return the source text of a part; KeyError if the job has no such part."""
        return self._sources[part]()

    def widened(self, also: Iterable[str]) -> "Fingerprint":
        """Return the fingerprint of the same job with more definitions, such as "models:block", and
        what these depend on; definitions that no longer exist are left out."""
        names = tuple(sorted({*also, *self.digest.split()[1:]}))
        return self._widened(names) if names else self

    def why(self, part: str) -> str:
        """Return the way by which a part was reached: "models:block <- models:ConvNet <-
        run:main"."""
        path = [part]
        while (by := self._reached_from.get(path[-1])) and by not in path:
            path.append(by)
        return " <- ".join(path)


class Project:
    """A project's code, read once; answers for thousands of jobs.

    `folder` is the project's, `entry` the module whose `main` does the job. Never raises an error
    about the code: a file that cannot be read counts as a whole.
    """

    def __init__(self, folder: Path, entry: str = "run") -> None:
        self._entry = entry
        self._files = Files(folder)
        self._code = ProjectCode(Modules(folder, entry), EngineCode(folder))
        self._written: Cache = {}
        self._known: dict[tuple[Any, ...], Fingerprint] = {}

    def fingerprint(
        self,
        settings: Mapping[str, Any],
        also: tuple[str, ...] = (),
        inputs: Mapping[str, str] = MappingProxyType({}),
    ) -> Fingerprint:
        """Return the fingerprint of the job with these settings, as plain values by their names.

        They are all settings in its identity; settings that were added later have their neutral
        values. `also` are further definitions to include, such as "models:block". `inputs` are the
        digests of the jobs that this one is derived from, by their ids.
        """
        key = self._key(settings), also, tuple(inputs.items())
        if key not in self._known:
            self._known[key] = self._find(settings, also, inputs)
        return self._known[key]

    def lacking(self, code: Fingerprint, ran: Iterable[CodeType]) -> list[str]:
        """Return the definitions of the project that have run and that a fingerprint lacks."""
        return sorted({name for each in ran if (name := self._outside(code, each))})

    def _outside(self, code: Fingerprint, ran: CodeType) -> str:
        """The definition that contains some code, if the code is not in any part of a
        fingerprint."""
        name, line = self._code.modules.name_of(Path(ran.co_filename)), ran.co_firstlineno - 1
        if not name or any(line in lines for lines in code.lines.get(name, ())):
            return ""
        module = self._code.modules.get(name)
        return f"{name}:{(module and module.definition_at(line)) or WHOLE}"

    @cached_property
    def _conditions(self) -> list[str]:
        """The settings whose values may decide a branch."""
        return sorted(self._code.use.conditions)

    @cached_property
    def _keys(self) -> set[str]:
        return self._code.registries.keys()

    def _key(self, settings: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the settings that matter: two jobs with the same values have the same
        fingerprint."""
        values = [repr(settings.get(name, KeyError)) for name in self._conditions]
        words = [f"{name}={value}" for name, value in settings.items() if self._is_word(value)]
        return (*values, *sorted(words), *sorted(self._code.use.fields - settings.keys()))

    def _is_word(self, value: object) -> bool:
        """Whether a setting's value may be the key of a registry or the name of a file."""
        if isinstance(value, str):
            keys = self._keys
            return value in keys or value.removeprefix("val_") in keys or "." in value
        return isinstance(value, list | tuple) and bool(value)

    def _find(
        self, settings: Mapping[str, Any], also: tuple[str, ...], inputs: Mapping[str, str]
    ) -> Fingerprint:
        closure = Closure(self._code, self._files, settings, self._written)
        closure.find(self._entry, also)
        for job, code in inputs.items():
            closure.take_input(job, code)
        labels = _labels(closure.texts)
        parts = {part: short(_named(text, labels).encode()) for part, text in closure.texts.items()}
        for part in parts:
            if ":" not in part:  # of the engine: a version, or already a hash
                parts[part] = closure.texts[part]
        lines = sorted(f"{labels[part]} {found}" for part, found in parts.items())
        text = "\n".join([f"scheme {SCHEME}", *lines])
        return Fingerprint(
            digest=" ".join([hashlib.sha256(text.encode()).hexdigest(), *also]),
            parts=parts,
            labels={part: labels[part] for part in parts},
            advice=tuple(closure.advice.values()),
            lines=closure.lines,
            _widened=partial(self.fingerprint, settings, inputs=inputs),
            _sources=closure.sources,
            _reached_from=closure.reached_from,
        )


def _labels(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the names of parts for the hash: without their module, so that moving a
    definition changes nothing, unless another one that the job reaches has the same name."""
    named = {name for text in texts.values() for name in TOKEN.findall(text)}
    modules: dict[str, set[str]] = {}
    for part in {*texts, *named}:
        module, _, name = part.partition(":")
        modules.setdefault(name.partition("[")[0], set()).add(module)
    labels = {}
    for part in {*texts, *named}:
        module, _, name = part.partition(":")
        is_alone = len(modules[name.partition("[")[0]]) == 1
        labels[part] = name if name and module != "file" and is_alone else part
    return labels


def _named(text: str, labels: Mapping[str, str]) -> str:
    return TOKEN.sub(lambda token: labels[token.group(1)], text)


# Which functions of a project really run in a job.
#
# From Python 3.12 on, finding out costs next to nothing: Python reports the first call of each
# (docs.python.org, sys.monitoring). Python 3.11 would have to report every call.

TOOLS = (4, 3)
"""Tool ids for Python's monitoring that are not reserved for any kind of tool."""


class Watch:
    """Collects the functions below a folder that have run, in all threads of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.join(folder, "")
        self._ran: set[CodeType] = set()

    @property
    def ran(self) -> set[CodeType]:
        """The code of those functions so far."""
        return self._ran.copy()  # other threads go on

    def note(self, called: CodeType) -> None:
        """Note that a function was called."""
        is_function = called.co_flags & inspect.CO_OPTIMIZED  # not the body of a module or class
        if is_function and os.path.abspath(called.co_filename).startswith(self._folder):
            self._ran.add(called)

    def forget(self) -> None:
        """Begin anew."""
        self._ran.clear()


def begin(folder: Path, on_any_python: bool = False) -> Watch:
    """Note from now on which functions below a folder run, and return the notes.

    On Python 3.11, the collection stays empty unless the first call has `on_any_python`, which
    slows the process down.
    """
    global _watch
    if _watch is None:
        _watch = Watch(folder)
        _report_calls(_watch, on_any_python)
    _watch.forget()
    if sys.version_info >= (3, 12):
        sys.monitoring.restart_events()
    return _watch


_watch: Watch | None = None


def _report_calls(watch: Watch, on_any_python: bool) -> None:
    """Have Python tell the watch which functions are called."""
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        free = next((tool for tool in TOOLS if monitoring.get_tool(tool) is None), None)
        if free is None:  # debuggers or profilers use them all
            return

        def started(called: CodeType, _offset: int) -> Any:
            """Note a function at its first call, and ask for no further ones."""
            watch.note(called)
            return monitoring.DISABLE  # for this function only

        monitoring.use_tool_id(free, __name__)
        monitoring.register_callback(free, monitoring.events.PY_START, started)
        monitoring.set_events(free, monitoring.events.PY_START)
        atexit.register(monitoring.set_events, free, monitoring.events.NO_EVENTS)
    elif on_any_python:

        def called(frame: FrameType, event: str, _about: Any) -> None:
            """Note a function each time that it is called."""
            if event == "call":
                watch.note(frame.f_code)

        threading.setprofile(called)
        sys.setprofile(called)
        atexit.register(sys.setprofile, None)
