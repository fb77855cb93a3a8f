"""Values of settings and their texts: values are read by their type annotation, and written in one
form."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from labjobs.cli import job_ids
from labjobs.cli.job_ids import JobId, Weights
from labjobs.cli.spans import Span

SWITCH = {"on": True, "off": False}


def _text(text: str) -> str:
    text.encode()  # bytes that are not UTF-8 could not be stored
    return text


SCALARS: dict[type, tuple[Callable[[str], Any], str]] = {  # in the order in which a text is tried
    bool: (SWITCH.__getitem__, "on or off"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    Span: (Span, "a number of steps such as 500, or of epochs such as 2e or 0.5e"),
    JobId: (JobId, job_ids.WANTED),
    Weights: (Weights, job_ids.WEIGHTS_WANTED),
    Path: (lambda text: Path(_text(text)), "a path"),
    str: (_text, "text in UTF-8"),
}
"""The types that a setting may have: how a value is read, and what the type is called in
messages."""

MANY = {int: "whole numbers", float: "numbers", JobId: "ids of jobs", str: "words"}
"""The types that the elements of a tuple may have, and what several such elements are called."""

SUPPORTED = (
    "bool, int, float, str, Path, Span, JobId, Weights, Literal, tuple[int, ...], a union of these "
    "or None"
)


@dataclass(frozen=True)
class Reader:
    """Reads a value of an annotated type from its text."""

    words: dict[str, Any]
    """Words that are values themselves: those of a Literal, and `none` for None."""

    types: tuple[Any, ...]
    """The other types, in the order in which they are tried."""

    def __call__(self, text: str) -> Any:
        """Return the value. Raises ValueError if the text cannot be read."""
        if text in self.words:
            return self.words[text]
        for kind in self.types:
            try:
                return _read(kind, text)
            except (ValueError, KeyError):
                continue
        raise ValueError(f"must be {self.wanted}")

    @property
    def wanted(self) -> str:
        """What the text must be, in words."""
        *most, last = [*self.words, *map(_called, self.types)]
        return f"{', '.join(most)} or {last}" if most else last

    @property
    def metavar(self) -> str:
        """What stands for the value in --help."""
        return "|".join([*self.words, *map(_short, self.types)])


def reader(annotation: Any) -> Reader:
    """Return the reader of an annotated field. Raises TypeError if the type is not supported."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    words: dict[str, Any] = {}
    types = []
    for part in parts:
        if get_origin(part) is Literal:
            words |= {as_text(word): word for word in get_args(part)}
        elif part is NoneType:
            words["none"] = None
        elif part in SCALARS or _is_tuple(part):
            types.append(part)
        else:
            raise TypeError(f"its type must be {SUPPORTED}")
    order = [*SCALARS]
    types.sort(key=lambda kind: order.index(kind if kind in SCALARS else Path))
    return Reader(words, tuple(types))


def as_text(value: Any) -> str:
    """Return a value as it is written on the command line."""
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case tuple() | list():
            return ",".join(map(as_text, value))
    return str(value)


def as_plain(value: Any) -> Any:
    """Return a value as JSON can hold it, in one form: 1.0 is 1, -0.0 is 0, a path is its text."""
    if type(value) in (str, int, bool):  # the common case, for thousands of jobs
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, tuple | list):
        return [as_plain(element) for element in value]
    return str(value) if isinstance(value, Path | Span | JobId | Weights) else value


def _is_tuple(annotation: Any) -> bool:
    elements = {*get_args(annotation)} - {Ellipsis}
    return get_origin(annotation) is tuple and bool(elements) and elements <= MANY.keys()


def _read(kind: Any, text: str) -> Any:
    if kind in SCALARS:
        return SCALARS[kind][0](text)
    texts = text.split(",") if text else []
    kinds = get_args(kind)
    if Ellipsis in kinds:
        kinds = kinds[:1] * len(texts)
    return tuple(_read(kind, text) for kind, text in zip(kinds, texts, strict=True))


def _called(kind: Any) -> str:
    if kind in SCALARS:
        return SCALARS[kind][1]
    kinds = get_args(kind)
    many = f"{MANY[kinds[0]]} separated by commas"
    return many if Ellipsis in kinds else f"{len(kinds)} {many}"


def _short(kind: Any) -> str:
    if kind in SCALARS:
        return "on|off" if kind is bool else str(kind.__name__.upper())
    return ",".join("…" if part is Ellipsis else _short(part) for part in get_args(kind))
