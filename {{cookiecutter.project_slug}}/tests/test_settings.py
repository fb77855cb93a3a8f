"""The settings: flags, the job's identity, and what is refused."""

import ast
import re
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from engine import cli, settings
from engine.settings import JobSettings, Runtime, SettingsError, added, as_words, identity, job_id

DEFAULT = JobSettings()
RUNTIME = [field.name for field in fields(Runtime)]
IDENTITY = [field.name for field in fields(JobSettings) if field.name not in RUNTIME]


def parse(*words):
    return cli.parse(JobSettings, words)


def other(name):
    """A value of a setting that is not its default."""
    default, kind = getattr(DEFAULT, name), get_type_hints(JobSettings)[name]
    words = [word for part in (kind, *get_args(kind)) for word in get_args(part)]
    if get_origin(kind) is Literal:
        return next(word for word in words if word != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        return default / 2 or 0.5
    return default + 1 if isinstance(default, int) else 


def flag(name):
    return "--" + name.replace("_", "-")
