"""The command line of a settings dataclass, on the standard library's argparse.

Not on tyro, the usual library for this: its errors are framed boxes where one line is wanted, and
it takes milliseconds for a command line, of which a sweep reads thousands.
"""

import argparse
import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from engine.cli.settings import JobSettings
from engine.errors import SettingsError, did_you_mean

S = TypeVar("S", bound=JobSettings)

TYPES = "bool, int, float, str, Path, Literal of words, or a union of these"
WANTED = {int: "a whole number", float: "a number", str: "text", Path: "a path"}


def parse(kind: type[S], argv: Sequence[str]) -> S:
    """The settings that a command line names; `--help` prints them by group and ends the process.

    Raises SettingsError for an unknown flag, a value that cannot be read or one out of range.
    """
    parser = _parser(kind)  # type: ignore[arg-type]
    values, unknown = parser.parse_known_args(argv)
    if unknown:
        raise SettingsError(unknown_flag(unknown[0], [_flag(f.name) for f in fields(kind)]))
    if [] in vars(values).values():  # what argparse makes of `--note=--`
        raise SettingsError("'--' cannot be a value")
    return kind(**vars(values))


class Parser(argparse.ArgumentParser):
    """One that raises SettingsError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        raise SettingsError(message.removeprefix("argument "))


@cache
def _parser(kind: type[JobSettings]) -> Parser:
    parser = Parser(
        usage="python run.py [flags]",
        formatter_class=argparse.RawTextHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    hints, defaults = get_type_hints(kind), {f.name: f.default for f in fields(kind)}
    alone = {f.name: f.metadata["alone"] for f in fields(kind) if "alone" in f.metadata}
    for name, default in defaults.items():
        if default is MISSING or not {*_alternatives(hints[name])[1]} <= {bool, *WANTED}:
            raise SettingsError(f"Settings.{name}: needs a default, and one of the types {TYPES}")
    for group in reversed(kind.__mro__[:-1]):
        section = parser.add_argument_group((group.__doc__ or group.__name__).splitlines()[0])
        for name, doc in _field_docs(group).items():
            text = textwrap.fill(f"{doc} (default: {_shown(defaults[name])})", width=72)
            number = {"nargs": "?", "const": alone[name]} if name in alone else {}
            how = {**_kind(hints[name]), **number, "help": text.replace("%", "%%")}
            section.add_argument(_flag(name), **how)
    return parser


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return str(default) or "none"


def _kind(annotation: Any) -> dict[str, Any]:
    """How argparse is to read an annotated field."""
    if annotation is bool:
        return {"action": argparse.BooleanOptionalAction}
    words, types = _alternatives(annotation)
    metavar = "|".join([*words, *(kind.__name__.upper() for kind in types)])
    return {"type": _reader(words, types), "metavar": metavar}


def _alternatives(annotation: Any) -> tuple[list[str], list[type]]:
    """The words and the types that an annotation allows."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else [annotation]
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    return words, [part for part in parts if get_origin(part) is not Literal]


def _reader(words: list[str], types: list[type]) -> Callable[[str], Any]:
    """A function that reads one value from its text."""

    def read(text: str) -> Any:
        """A word as it is, else the first type that takes the text."""
        if text in words:
            return text
        for kind in types:
            try:
                return kind(text)
            except ValueError:
                continue
        if types:
            wanted = " or ".join([*words, *(WANTED[kind] for kind in types)])
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        raise argparse.ArgumentTypeError(f"no {text!r}; {did_you_mean(text, words)}")

    return read


def unknown_flag(word: str, flags: list[str]) -> str:
    """What to say about a word that is no flag."""
    if not word.startswith("-"):
        return f"{word!r} is not a flag; see --help"
    name = word.split("=")[0]
    hint = did_you_mean(name, flags)
    return f"{name}: no such flag; {hint if hint.startswith('did') else 'see --help'}"


def _field_docs(group: type) -> dict[str, str]:
    """The docstrings under the fields that a class itself defines, by field."""
    body = ast.parse(textwrap.dedent(inspect.getsource(group))).body[0].body  # type: ignore
    docs = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            doc = after.value.value if isinstance(after, ast.Expr) else ""  # type: ignore
            docs[node.target.id] = " ".join(str(doc).split())
    return docs
