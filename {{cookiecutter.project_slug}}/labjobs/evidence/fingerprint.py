"""The code fingerprint of a job: which definitions its results depend on, and their hashes."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any

from labjobs.evidence.canonical import SCHEME, short
from labjobs.evidence.closure import WHOLE, Cache, Closure
from labjobs.evidence.engine_code import EngineCode
from labjobs.evidence.evidence_files import Files
from labjobs.evidence.project_code import ProjectCode
from labjobs.evidence.project_files import Modules

TOKEN = re.compile("\x01([^\x02]*)\x02")


@dataclass(frozen=True)
class Fingerprint:
    """The code that a job's results depend on.

    Parts are named "models:ConvNet" (a definition), "models:MODELS[mlp]" (an entry of a registry),
    "models:<module>" (what importing a module does), "models:<file>" (a module that cannot be
    read), "file:kernels/a.cu", "input:1872aa178ea7" (the code of a job that this one is derived
    from) and "labjobs.training.ema" (its results version, or a hash if it was edited).
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
