"""Which entries of registries a job uses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labjobs.evidence.keys import Key
from labjobs.evidence.registries import Entry, Registries
from labjobs.evidence.uses import Use

Name = tuple[str, str]


@dataclass
class Taken:
    """What is known about the keys with which a job uses a registry."""

    by: str
    """The part that used the registry first."""

    everything: bool = False
    words: bool = False
    keys: set[str] = field(default_factory=set)


class Wanted:
    """The registries that a job uses, and the keys with which it uses them."""

    def __init__(self, registries: Registries, settings: Mapping[str, Any]) -> None:
        self._registries, self._settings = registries, settings
        self._taken: dict[Name, Taken] = {}

    def add(self, use: Use, by: str) -> None:
        """Note that a registry is used, and with it the registries that it includes by `**`."""
        name = (use.module, use.name)
        taken = self._taken.setdefault(name, Taken(by))
        before = (taken.everything, taken.words, len(taken.keys))
        if use.how == "definition":
            taken.everything = True
        elif use.how == "words":
            taken.words = True
        elif use.key:
            self._ask(taken, use.key)
        if before != (taken.everything, taken.words, len(taken.keys)):
            for other in self._registries.included.get(name, []):
                self.add(use._replace(module=other.module, name=other.name), by)

    def _ask(self, taken: Taken, key: Key) -> None:
        if key.kind == "constant":
            taken.keys.add(key.value)
        elif key.kind == "words":
            taken.words = True
        elif key.value in self._settings:
            taken.keys.add(str(self._settings[key.value]))
        else:  # a setting that is not part of the identity
            taken.everything = True

    def entries(self, words: set[str]) -> dict[str, tuple[list[Entry], str]]:
        """Return the entries that are used, by the names of their parts, and the parts from which
        they are reached."""
        found: dict[str, tuple[list[Entry], str]] = {}
        for (module, name), taken in self._taken.items():
            keys = taken.keys | (words if taken.words else set())
            for entry in self._registries.of((module, name)):
                if taken.everything or entry.key in keys:
                    part = f"{module}:{name}[{entry.key}]"
                    found.setdefault(part, ([], taken.by))[0].append(entry)
        return found
