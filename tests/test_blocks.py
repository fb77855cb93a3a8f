"""The code blocks of all pages, each in the way that scripts/blocks.py counts it."""

import ast
import configparser
import json
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar, Literal

import blocks
import pytest
from faults import succeeded
from labjobs import settings as declared
from labjobs.cli import flags
from labjobs.cli.parser import parse
from labjobs.commands import command
from labjobs.job.runtime import Runtime
from labjobs.results import plotting
from labjobs.sweeps import options
from repository import REPOSITORY
from test_recipes import add_analysis

BLOCKS = [*blocks.blocks()]
ACTIONS = {"--help", "--like", "--force", "--continue-anyway", "--check", "--scratch"}
INNER = REPOSITORY / blocks.INNER


def of(kind: str) -> list[Any]:
    """The blocks of a kind, as parameters of a test."""
    return [
        pytest.param(block, id=f"{block.page.parent.name}-{block.page.stem}-{number}")
        for number, block in enumerate(BLOCKS)
        if block.kind == kind
    ]


def test_the_page_has_the_numbers():
    assert blocks.table() in (REPOSITORY / "docs" / "blocks.md").read_text()


def test_tests_name_the_headings_whose_blocks_they_run():
    headings = {(block.page.name, block.heading) for block in BLOCKS}
    for page, tests in blocks.RUN.items():
        for heading, test in tests.items():
            assert (page, heading) in headings
            assert page == "adopt.md" or heading in (REPOSITORY / "tests" / test).read_text()


def settings_of(example: Path) -> set[str]:
    """The flags of the settings of all scripts of a project made from an example."""
    spec = spec_from_file_location(f"settings_of_{example.name}", example / "settings.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    kinds = [kind for name, kind in vars(module).items() if name.endswith("Settings")]
    return {flags.option(field.name) for kind in kinds for field in fields(kind)}


KNOWN = {example: settings_of(example) for example in (INNER, *REPOSITORY.glob("examples/[a-z]*/"))}


def flags_of_scripts(page: Path) -> set[str]:
    """The flags that commands on a page may give to run.py and the like: on an example's own page
    those of its settings, on a page of all projects those that all have, else any."""
    if page.parent in KNOWN and page.parent != INNER:
        found = KNOWN[page.parent]
    else:
        found = (set.intersection if page.parent == INNER else set.union)(*KNOWN.values())
    return found | ACTIONS | {flags.option(name) for name in flags.of(Runtime)}


def commands(text: str) -> Iterator[list[str]]:
    """Yield each command as a list of words, but for placeholders such as an ellipsis."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\||;", line.partition(" #")[0]):
            with_quotes = part.count("'") % 2 == 0 and part.count('"') % 2 == 0
            words = shlex.split(part, comments=True) if with_quotes else []
            yield [word for word in words if word not in ("…", "...")]


@pytest.mark.parametrize("block", of("commands"))
def test_its_commands_and_flags_exist(block):
    for words in commands(block.text):
        script = next((word for word in words if word.endswith((".py", "run.sh"))), "")
        given = words[words.index(script) + 1 :] if script else []
        cut = given.index("--") if "--" in given else len(given)
        if script == "jobs.py":
            with suppress(SystemExit):  # --help
                command._read(given)
        elif script == "plot.py":
            plotting._parsed(given)
        elif script == "run.sh":
            parse(options.Flags, options.Nothing, given[:cut])
        elif script == "run.py":
            own = {word.partition("=")[0] for word in given if word.startswith("--")}
            assert own <= flags_of_scripts(block.page)


@pytest.mark.parametrize("block", of("declared"))
def test_the_engine_takes_its_settings_and_metrics(block):
    names = {**vars(declared), "Any": Any, "ClassVar": ClassVar, "Literal": Literal}
    if "Metric(" in block.text:
        lines = block.text.splitlines()
        entries = [line for line in lines if line.startswith('"')]
        declared.check(eval("\n".join(["{", *entries, "}"]), names))
        ast.parse("\n".join(line for line in lines if line not in entries))
    else:
        exec(f"class Settings:\n{textwrap.indent(block.text, '    ')}", names)
        flags.of(dataclass(frozen=True, kw_only=True)(names["Settings"]))


@pytest.mark.parametrize("block", of("code"))
def test_its_code_compiles(block):
    ast.parse(f"def function():\n{textwrap.indent(block.text, '    ')}")


@pytest.mark.parametrize("block", of("data"))
def test_its_data_is_read(block):
    several = block.language == "toml" and block.text.startswith("ask = ")  # one a line
    for text in block.text.splitlines() if several else [block.text]:
        read(block.language, text)


def read(language: str, text: str) -> None:
    """Raises an error for a text that is not in this language."""
    if language == "ini":
        configparser.ConfigParser(interpolation=None).read_string(text)
    else:
        {"toml": tomllib.loads, "json": json.loads}[language](text)


@pytest.mark.full
@pytest.mark.parametrize("block", of("grids"))
def test_its_grid_is_read(fresh, block):
    path = fresh.root / "run.sh"
    if "analyse.py" in block.text:
        add_analysis(fresh)
    path.write_text(re.sub(r"(?ms)^grid\(\) \{.*?^\}\n", lambda _: block.text, path.read_text()))
    succeeded(fresh.do("bash", "run.sh", "--list"))
