"""From the words of a command to settings and runtime, on the standard library's argparse.

It does not use tyro, the usual library for this, whose errors are framed boxes instead of one line,
and which takes milliseconds for a command line, while a sweep reads thousands.
"""

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from labjobs.cli import flags
from labjobs.cli.flags import Flag, Flags, as_plain, as_text, option
from labjobs.errors import SettingsError, did_you_mean
from labjobs.files import shown
from labjobs.settings import JobId, Weights

S = TypeVar("S")
R = TypeVar("R")


def parse(
    kind: type[S],
    runtime: type[R],
    argv: Sequence[str],
    like: Callable[[str, Path], Mapping[str, Any]] | None = None,
) -> tuple[S, R]:
    """Return the settings and the runtime that the words of a command name; `--help` ends the
    process. `like` returns the settings of the job that --like names, by its id and the folder of
    runs. Raises SettingsError for a wrong flag or value, or a mistake in either dataclass."""
    known, parser = _command(kind, runtime)  # type: ignore[arg-type] # mypy: no Hashable
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        raise SettingsError(_unknown(unknown[0], kind, known))
    settings, given = flags.of(kind), dict[str, str]()
    for name, texts in vars(found).items():
        if [] in texts:  # what argparse makes of `--note=--`
            raise SettingsError("'--' cannot be a value")
        first, *others = dict.fromkeys(texts)
        if others and name in settings:  # the engine's may stand in front of all jobs of a sweep
            line = f"given as {first} and as {others[0]}; give one of them"
            raise SettingsError(f"{option(name)}: {line}")
        given[name] = texts[-1]
    runs = Path(given.get("runs_root", getattr(runtime, "runs_root", "runs"))).expanduser()
    values = {name: known[name].read(_whole(known[name], given[name], runs)) for name in given}
    own = {name: values.pop(name) for name in [*values] if name in settings}
    if like and values.get("like"):
        own = _on_top(settings, like(values["like"].job, runs), own)
    _choose_length(settings, own)
    for name, flag in settings.items():
        if flag.required and name not in own:
            raise SettingsError(f"{option(name)}: is missing; it must be {flag.reader.wanted}")
    try:
        idle = settings.idle(kind(**own))  # keep their defaults, so that no value has an effect
        counting = {name: own[name] for name in own if name not in idle or settings[name].required}
        return kind(**counting), runtime(**values)
    except ValueError as error:  # a rule in __post_init__
        raise SettingsError(str(error)) from None


def _whole(flag: Flag, text: str, runs: Path) -> str:
    """Return the id of the job of which a text is the beginning; another text as it is. Raises
    SettingsError unless it is that of one job alone."""
    begin, types = text.partition(":")[0], flag.reader.types
    if not (JobId in types or Weights in types) or not re.fullmatch("[0-9a-f]{4,11}", begin):
        return text
    found = [*runs.glob(f"{begin}*")]
    if len(found) != 1:
        several = f"{len(found)} job ids begin with it; give more digits"
        wrong = several if found else "no such job here"
        raise SettingsError(f"{option(flag.name)} {begin}: {wrong}")
    return text.replace(begin, found[0].name)


USUAL = {"--learning-rate": "--lr", "--wd": "--weight-decay", "--bs": "--batch-size"}
"""Flags of other programs, and what they are called here."""


class Parser(argparse.ArgumentParser):
    """A parser that raises SettingsError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise the message that argparse would print."""
        raise SettingsError(message.removeprefix("argument "))


def unknown_flag(word: str, known: Sequence[str]) -> str:
    """Return the error message for a word that is not a flag."""
    if not word.startswith("-"):
        return f"{word!r} is not a flag; see --help"
    name = word.split("=")[0]
    usual = USUAL.get(name, "")
    hint = did_you_mean(usual if usual in known else name, known, "see --help")
    return f"{name}: no such flag; {hint}"


def _unknown(word: str, kind: type, known: Mapping[str, Flag]) -> str:
    name = word.split("=")[0]  # which may have been a flag in the past
    for now, before in flags.of(kind).formerly.items():
        if name == option(before):
            return f"{name}: is now {option(now)}"
    if name in map(option, flags.of(kind).former):
        return f"{name}: was deleted; see FORMER in {kind.__name__}"
    return unknown_flag(word, [*map(option, known)])


def _on_top(settings: Flags, other: Mapping[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A job's own settings on top of another's, which lack those that its own replace."""
    either = [{replaced, *names} for replaced, names in settings.replacing.items()]
    gone = {name for names in either if any(map(own.get, names)) for name in names}
    return {name: value for name, value in other.items() if name not in gone} | own


def _choose_length(settings: Flags, values: dict[str, Any]) -> None:
    """Turn off the settings that would replace a setting named by the command."""
    for replaced, names in settings.replacing.items():
        given = [name for name in (replaced, *names) if values.get(name)]
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(map(option, given))}: give only one of them")
        if given:
            off = [name for name in names if name not in given]
            values |= {name: settings[name].reader("0") for name in off}


@cache
def _command(kind: type, runtime: type) -> tuple[Mapping[str, Flag], Parser]:
    """All flags and their parser, made once for the thousands of lines of a sweep."""
    own, engines = flags.of(kind), flags.of(runtime)
    for name in own:
        if name in engines or name == "help":
            taken = f"{option(name)} is a flag of the engine"
            raise SettingsError(f"{kind.__name__}.{name}: {taken}; choose another name")
    offered = {
        name: flag
        for name, flag in engines.items()
        if not flag.rules.get("only_with") or own.keys() & {*flag.rules["only_with"]}
    }
    known = {**own, **offered}
    return known, _parser(known, flags.of_fields(kind) | flags.of_fields(runtime))


def _parser(known: Mapping[str, Flag], written: Mapping[str, tuple[str, str]]) -> Parser:
    script = Path(sys.argv[0])
    parser = Parser(
        usage=f"{'bash' if script.suffix == '.sh' else 'python'} {script.name} [flags]",
        formatter_class=argparse.RawTextHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    # As from Python 3.14 on; older ones would read `-1e-3` as a flag.
    parser._negative_number_matcher = re.compile(r"-\.?\d")
    groups: dict[str, Any] = {}
    for name, flag in known.items():
        heading, text = written.get(name, ("Settings", ""))
        group = groups.get(heading) or parser.add_argument_group(heading)
        groups[heading] = group
        alone = True if bool in flag.reader.types else flag.rules.get("alone")
        how: dict[str, Any] = {} if alone is None else {"nargs": "?", "const": as_text(alone)}
        how["metavar"] = "NAME" if flag.names else flag.reader.metavar
        group.add_argument(option(name), action="append", help=_help(flag, text), **how)
    return parser


def _help(flag: Flag, text: str) -> str:
    is_path = isinstance(flag.default, Path)
    default = shown(flag.default) if is_path else as_text(as_plain(flag.default)) or "empty"
    said = "(required)" if flag.required else f"(default: {default})"
    names, others = flag.names, flag.rules.get("others")
    either = f"One of {', '.join(names)}{f', or {others}' if others else ''}." if names else ""
    words = " ".join(filter(None, [text, either, said]))
    width = min(shutil.get_terminal_size().columns, 100) - 26
    return textwrap.fill(words.replace("%", "%%"), max(width, 30), break_on_hyphens=False)
