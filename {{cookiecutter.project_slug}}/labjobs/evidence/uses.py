"""What a definition uses, and its text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from labjobs.evidence.keys import Key

TOKEN = "\x01{}:{}\x02"
"""Placeholder in a text for a definition of the project, until its name in the digest is known."""


class Use(NamedTuple):
    """Something that a definition uses.

    how         what is used
    definition  `name` in `module`; of a registry, all entries
    key         the entry of a registry under `key`
    words       the entries of a registry whose keys are constants in reached code, or settings
    names       the keys of a registry
    whole       all that a module defines; `why` is said to the user
    everything  all modules
    import      what importing a module does
    engine      a name of the engine
    subclasses  the subclasses of a class
    """

    how: str
    module: str = ""
    name: str = ""
    key: Key | None = None
    why: str = ""


class Written(NamedTuple):
    """A definition's text, what it uses, its constants, and the settings that decided branches."""

    text: str
    uses: Sequence[Use]
    words: frozenset[str]
    asked: Mapping[str, Any]
