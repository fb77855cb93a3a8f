"""The fields of a settings dataclass as flags: each with its reader and its rules.

A mistake in settings.py raises SettingsError here, with a line that names the field.
"""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from operator import ge, gt, le, lt
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from labjobs import settings
from labjobs.errors import SettingsError, did_you_mean
from labjobs.files import CODE
from labjobs.settings import JobId, Span, Weights

# Values of settings are read by their type annotation, and written in one form.


def _text(text: str) -> str:
    text.encode()  # bytes that are not UTF-8 could not be stored
    return text


SCALARS: dict[type, tuple[Callable[[str], Any], str]] = {  # in the order in which a text is tried
    bool: ({"on": True, "off": False}.__getitem__, "on or off"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    Span: (Span, Span.WANTED),
    JobId: (JobId, JobId.WANTED),
    Weights: (Weights, Weights.WANTED),
    Path: (lambda text: Path(_text(text)), "a path in UTF-8"),
    str: (_text, "text in UTF-8"),
}
"""The types that a setting may have: how a value is read, and its name in messages."""


class Reader:
    """Reads a value of an annotated type from its text: first the `words` that are values, those of
    a Literal and `none` for None, then the other `types`, in the order of SCALARS. Raises TypeError
    if a type is not supported."""

    def __init__(self, annotation: Any) -> None:
        united = get_origin(annotation) in (Union, UnionType)
        self.words: dict[str, Any] = {}
        self.types: list[Any] = []
        for part in get_args(annotation) if united else (annotation,):
            if get_origin(part) is Literal:
                self.words |= {as_text(word): word for word in get_args(part)}
            elif part is NoneType:
                self.words["none"] = None
            elif part in SCALARS or _is_tuple(part):
                self.types.append(part)
            else:
                names = ", ".join(kind.__name__ for kind in SCALARS)
                raise TypeError(f"its type must be {names}, Literal, a tuple, a union or None")
        order = [*SCALARS]
        self.types.sort(key=lambda kind: order.index(kind if kind in SCALARS else Path))

    def __call__(self, text: str) -> Any:
        """Return the value. Raises ValueError if the text cannot be read."""
        if text in self.words:
            return self.words[text]
        for kind in self.types:
            with suppress(ValueError, KeyError):
                return _read(kind, text)
        raise ValueError(f"must be {self.wanted}")

    def is_word(self, stored: str) -> bool:
        """Return whether a stored text is a value as it is, even if it is `None`, `True` or `1`."""
        text = self.types in ([str], [Path]) and not (stored == "None" and "none" in self.words)
        return stored in self.words or text

    @property
    def wanted(self) -> str:
        """What the text must be, in words."""
        called = (SCALARS[kind][1] if kind in SCALARS else _short(kind) for kind in self.types)
        *most, last = [*self.words, *called]
        return f"{', '.join(most)} or {last}" if most else last

    @property
    def metavar(self) -> str:
        """What stands for the value in --help."""
        return "|".join([*self.words, *map(_short, self.types)])


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
    if type(value) in (str, int, bool):  # most are, of thousands of jobs
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, tuple | list):
        return [as_plain(element) for element in value]
    return str(value) if isinstance(value, Path | str) else value


def _is_tuple(annotation: Any) -> bool:
    elements = {*get_args(annotation)} - {Ellipsis}
    plain = bool(elements) and elements <= {int, float, JobId, str}
    return get_origin(annotation) is tuple and plain


def _read(kind: Any, text: str) -> Any:
    if kind in SCALARS:
        return SCALARS[kind][0](text)
    texts = text.split(",") if text else []
    kinds = get_args(kind)
    if Ellipsis in kinds:
        kinds = kinds[:1] * len(texts)
    return tuple(_read(kind, text) for kind, text in zip(kinds, texts, strict=True))


def _short(kind: Any) -> str:
    if kind in SCALARS:
        return "on|off" if kind is bool else str(kind.__name__.upper())
    return ",".join("…" if part is Ellipsis else _short(part) for part in get_args(kind))


RANGE = {"above": gt, "at_least": ge, "below": lt, "at_most": le}


def option(name: str) -> str:
    """Return what a field is called on the command line."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Flag:
    """A field as a flag: `rules` as for `setting`, and all allowed `names`, if not any text."""

    name: str
    default: Any
    rules: Mapping[str, Any]
    reader: Reader
    names: tuple[str, ...]

    @property
    def required(self) -> bool:
        """Whether the flag must be given."""
        return self.default is MISSING

    def read(self, text: str, stored: bool = False) -> Any:
        """Return the value of a text. Raises SettingsError if it cannot be read, or breaks a rule;
        those of today do not matter for a text that was `stored`."""
        try:
            value = self.reader(text)
            if not stored:
                self.check(value)
        except ValueError as error:
            raise SettingsError(f"{option(self.name)} {text}: {error}") from None
        return value

    def check(self, value: Any) -> None:
        """Raise ValueError for a value that breaks a rule."""
        for element in value if isinstance(value, tuple) else (value,):
            number = element.number if isinstance(element, Span) else element
            if isinstance(number, int | float) and not isinstance(number, bool):
                _check_number(number, self.rules)
        known = (*self.names, *self.reader.words.values())
        if self.names and value not in known and not self.rules["others"]:
            if self.rules["metric"] is not None:
                raise ValueError(settings.no_monitor(str(value), self.rules["metric"]))
            what = self.name.replace("_", " ")
            raise ValueError(f"no such {what}; {did_you_mean(str(value), self.names)}")


def _check_number(number: float, rules: Mapping[str, Any]) -> None:
    if not math.isfinite(number):
        raise ValueError("must be finite")
    bounds = {rule: rules[rule] for rule in RANGE if rules.get(rule) is not None}
    if not all(RANGE[rule](number, bound) for rule, bound in bounds.items()):
        words = (f"{rule.replace('_', ' ')} {bound:,}" for rule, bound in bounds.items())
        raise ValueError(f"must be {' and '.join(words)}")
    if isinstance(number, int) and abs(number) >= 2**63:  # for torch's seeds and most files
        raise ValueError("must be below 2**63")


class Flags(dict[str, Flag]):
    """The flags of a settings dataclass, by the names of its fields.

    `former` has the deleted settings, with the values that match what the code does today;
    `neutral` what the code did before a setting was added, as plain values; `formerly` the former
    names of the renamed settings; `replacing` the settings that replace another, by its name;
    `when` the values of others that a setting needs to count.
    """

    def __init__(self, flags: Mapping[str, Flag], former: Mapping[str, Any]) -> None:
        super().__init__(flags)
        self.former = former
        rules = [(name, flag.rules) for name, flag in flags.items()]
        self.neutral = {n: as_plain(each["neutral"]) for n, each in rules if "neutral" in each}
        self.formerly = {n: each["formerly"] for n, each in rules if each.get("formerly")}
        self.when = {
            n: {key: v if isinstance(v, list) else [v] for key, v in each["when"].items()}
            for n, each in rules
            if each.get("when")
        }
        self.replacing: dict[str, list[str]] = {}
        for name, each in rules:
            if replaced := each.get("replaces"):
                self.replacing.setdefault(replaced, []).append(name)

    def is_word(self, name: str, stored: str) -> bool:
        """Return whether the stored text of a setting is its value, even if it is `None` or `1`."""
        return name in self and self[name].reader.is_word(stored)

    def idle(self, settings: Any) -> set[str]:
        """Return which settings do not count: those that others replace, and those whose `when`
        does not hold, or names a setting that does not count itself."""
        found = {
            old for old, new in self.replacing.items() if any(getattr(settings, n) for n in new)
        }
        for _ in self.when:  # until a chain of them has come to its end
            found |= {
                name
                for name, wanted in self.when.items()
                for key, values in wanted.items()
                if key in found or getattr(settings, key) not in values
            }
        return found


COLUMNS = {"job_id", "run_id", "job_folder", "state", "stale", "unchecked", "diverged", "ended"}
COLUMNS |= {"hardware", "step", "value", "at", "row", "moment", "reached", "lasted"}
"""Columns of the tables that figures are made of, beside those of the settings."""


@cache
def _of(kind: type) -> Flags:
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise SettingsError(f"{kind.__name__}: must be a @dataclass(frozen=True, kw_only=True)")
    try:
        hints = get_type_hints(kind)
    except (NameError, TypeError) as error:
        raise SettingsError(f"{kind.__name__}: a type cannot be read: {error}") from None
    for name, value in vars(kind).items():
        plain = isinstance(value, bool | int | float | str | tuple | Path)
        if plain and name not in hints and not name.startswith("_"):  # no field without a type
            raise SettingsError(f"{kind.__name__}.{name}: needs a type, such as `{name}: int = …`")
    found = {}
    for field in fields(kind):
        try:
            found[field.name] = _flag(field, hints[field.name])
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{kind.__name__}.{field.name}: {error}") from None
    flags = Flags(found, getattr(kind, "FORMER", {}))
    for name in COLUMNS & found.keys():
        wrong = "tables of results have a column of this name; choose another"
        raise SettingsError(f"{kind.__name__}.{name}: {wrong}")
    for name, wrong in _contradictions(flags):
        raise SettingsError(f"{kind.__name__}.{name}: {wrong}")
    return flags


def of(kind: type | None) -> Flags:
    """Return the flags of a settings dataclass; none if there is no class, as of a script that is
    gone. Raises SettingsError if it cannot have any."""
    return _of(kind) if kind else Flags({}, {})  # through a cache, whose type mypy does not know


def _flag(field: Field[Any], annotation: Any) -> Flag:
    """The flag of a field. Raises TypeError or ValueError if it cannot be one."""
    rules, default = field.metadata, field.default
    if field.default_factory is not MISSING:
        raise ValueError("a default_factory makes no flag; give a default such as a tuple")
    if default is MISSING and annotation not in (JobId, Weights):
        raise ValueError("needs a default")
    if not field.init:
        raise ValueError("a value computed from other settings must be a property, not a field")
    if rules.get("role") not in (None, *get_args(settings.Role)):
        raise ValueError(f'role="{rules["role"]}": must be "repeat", "task" or "method"')
    names: tuple[str, ...] = ()
    if (declared := rules.get("metric")) is not None:
        settings.check(declared)
        names = settings.monitors(declared)
    elif rules.get("names"):
        names = registered(rules["names"])
    flag = Flag(field.name, default, rules, Reader(annotation), names)
    if not flag.required:
        _check_in_code(flag, "default", default)
    if "neutral" in rules:
        _check_in_code(flag, "neutral value", rules["neutral"])
    return flag


def _check_in_code(flag: Flag, what: str, value: object) -> None:
    """Raise ValueError for a value in the code that the command line would refuse."""
    try:
        read = flag.reader(as_text(value))
        kinds = (int, float) if isinstance(read, float) else type(read)
        if read != value or not isinstance(value, kinds):
            raise ValueError(f"must be {flag.reader.wanted}")
        flag.check(read)
    except ValueError as error:
        raise ValueError(f"its {what} {value!r}: {error}") from None


def _contradictions(flags: Flags) -> Iterator[tuple[str, str]]:
    """The settings whose rules contradict those of others, and how."""
    for name in flags.keys() & flags.former.keys():
        yield name, "is in FORMER as well, among the deleted settings"
    for name, before in flags.formerly.items():
        if before in flags or before in flags.former:
            yield name, f'formerly="{before}" is the name of a setting, or is in FORMER'
    for name, wanted in flags.when.items():
        for key, values in wanted.items():
            if key not in flags:
                yield name, f"when={flags[name].rules['when']!r}, but there is no setting {key}"
                continue
            try:
                for value in values:
                    _check_in_code(flags[key], f"value in when of {name}", value)
            except ValueError as error:
                yield key, str(error)
    for replaced, names in flags.replacing.items():
        on = [name for name in names if flags[name].default]
        if replaced not in flags:
            yield names[0], f'replaces="{replaced}", but there is no such setting'
        elif len(on) > 1:
            yield on[0], f"only one of {' and '.join(on)} may have a default above 0"


# Headings and help texts of a dataclass, read from its source.
#
# The docstring below a field is its help. A one-line comment between two fields, such as `# Data`,
# is the heading of the fields that follow, if it begins with a capital letter and has no full stop;
# other comments are ignored.

HEADING = re.compile(r"# ([A-Z][\w ,()/&'-]*)")


def of_fields(kind: type) -> dict[str, tuple[str, str]]:
    """Return the heading and the text of each field of a dataclass, inherited ones included."""
    bases = [base for base in kind.__mro__[::-1] if is_dataclass(base)]
    return {name: about for base in bases for name, about in _written_in(base).items()}


def _written_in(kind: type) -> dict[str, tuple[str, str]]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
        definition = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError):  # made by a function; changed since its import
        return {}
    found: dict[str, tuple[str, str]] = {}
    lines, body = source.splitlines(), definition.body  # type: ignore[attr-defined]
    heading, end = kind.__name__, definition.lineno
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        # Between two statements there can only be comments.
        for block in re.split(r"\n\s*\n", "\n".join(lines[end : node.lineno - 1])):
            if match := HEADING.fullmatch(block.strip()):
                heading = match[1]
        end = node.end_lineno
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ast.get_docstring(ast.Module([after], [])) or ""
            found[node.target.id] = heading, " ".join(text.split())
    return found


# The names in a registry, read from its source: --help and wrong names need not wait for torch.
#
# A registry is a dict with literal names, to which more can be added below it:
#
#     MODELS = {"mlp": MLP, **OTHERS}      # OTHERS being another one in the same file
#     MODELS["resnet"] = ResNet            # or MODELS |= {"resnet": ResNet}
#
#     @register("vit")                     # of the project's own, in a module with one registry
#     class ViT: ...

WRITTEN_OUT = "must be a dict with literal names, which are read without importing the module"


def registered(registry: str) -> tuple[str, ...]:
    """Return the names in a registry such as "models.MODELS", in the order of the source.

    Raises SettingsError if the project has no such module or if the names are not literal.
    """
    module, _, name = registry.rpartition(".")
    path = CODE.joinpath(*module.split("."))
    file = next(filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py")), None)
    if not file:
        raise SettingsError(f"{registry}: there is no {module.replace('.', '/')}.py in the project")
    found = tuple(dict.fromkeys(_names(name, parsed(file), registry)))
    if not found:
        raise SettingsError(f"{registry}: there is no such dict, or it is empty")
    return found


@cache
def parsed(file: Path) -> ast.Module:
    """Return the source of a file as a tree. Raises SettingsError if it is not Python."""
    try:
        return ast.parse(file.read_bytes())
    except SyntaxError as error:
        raise SettingsError(f"{file.name}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise SettingsError(f"{file.name}: {error}") from None


def _names(name: str, tree: ast.Module, registry: str) -> Iterator[str]:
    """The names that the statements of a module put into one of its registries."""
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=target)], value=value)
                | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
                | ast.AugAssign(target=ast.Name(id=target), value=value)
            ) if target == name:
                yield from _keys(name, value, tree, registry)
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=target), slice=ast.Constant(value=key))]
            ) if target == name:
                yield str(key)
            case ast.FunctionDef(decorator_list=calls) | ast.ClassDef(decorator_list=calls):
                for call in calls:
                    match call:
                        case ast.Call(ast.Name("register"), [ast.Constant(str(key)), *_]):
                            yield key


def _keys(name: str, value: ast.expr, tree: ast.Module, registry: str) -> Iterator[str]:
    """The keys of a dict that is written out."""
    if not isinstance(value, ast.Dict):
        raise SettingsError(f"{registry}: {WRITTEN_OUT}")
    for pair in zip(value.keys, value.values, strict=True):
        match pair:
            case (ast.Constant(str(key)), _):
                yield key
            case (None, ast.Name(other)):  # {**OTHER}; {**MODELS, …} has its own already
                yield from _names(other, tree, registry) if other != name else ()
            case _:
                raise SettingsError(f"{registry}: {WRITTEN_OUT}")
