"""A job's identity: its id, computed from its settings and its script.

Settings that came later do not change the ids of older jobs, nor do renamed and deleted ones:
docs/settings.md says what to write for each kind of change.
"""

import hashlib
import json
import shlex
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from labjobs.cli import JobId, Weights, flags
from labjobs.cli.values import as_plain, as_text
from labjobs.errors import SettingsError

S = TypeVar("S")

LONGEST_NAME = 200
"""Characters of a job's name; MLflow's databases take 250 of a run's."""


def identity(settings: Any) -> dict[str, Any]:
    """Return the settings that count as plain values, each in one form. A setting does not count if
    another one that `replaces` it is above 0.
    """
    known = flags.of(type(settings))
    plain = {name: as_plain(getattr(settings, name)) for name in known}
    for replaced, names in known.replacing.items():
        if any(getattr(settings, name) for name in names):
            del plain[replaced]
    return plain


def job_id(settings: Any, script: str = "run") -> str:
    """Return 12 hex digits: SHA-256 over the script's name and the identity, as JSON.

    Settings that were added later are left out at their neutral value, renamed ones stand under
    their former names, deleted ones as FORMER has them.
    """
    known = flags.of(type(settings))
    hashed = {name: as_plain(value) for name, value in known.former.items()}
    for name, value in identity(settings).items():
        if name not in known.neutral or value != known.neutral[name]:
            hashed[known.formerly.get(name, name)] = value
    text = json.dumps([script, hashed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def inputs(settings: Any) -> dict[JobId, str]:
    """Return the jobs that a job is derived from: their ids, each with the flag that names it."""
    found: dict[JobId, str] = {}
    for name in flags.of(type(settings)):
        value = getattr(settings, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, JobId | Weights):
                job = each.job if isinstance(each, Weights) else each
                found.setdefault(job, flags.option(name))
    return found


def can_have_inputs(kind: type) -> bool:
    """Return whether jobs with settings of this class can be derived from others."""
    types = [each for flag in flags.of(kind).values() for each in flag.reader.types]
    return any({JobId, Weights} & {each, *get_args(each)} for each in types)


def neutral(settings: Any) -> dict[str, Any]:
    """Return, by name, the value to assume for a setting that a job does not have: an older job, if
    the setting was added later, or a newer job, if it was deleted."""
    known = flags.of(type(settings))
    return {**known.neutral, **known.former}


def formerly(kind: type) -> dict[str, str]:
    """Return the former names of the settings that were renamed, by their present ones."""
    return flags.of(kind).formerly


def changed(settings: Any) -> dict[str, str]:
    """Return the settings that differ from their defaults, as they are written as flags."""
    known, plain = flags.of(type(settings)), identity(settings)
    differ = (name for name, value in plain.items() if value != as_plain(known[name].default))
    return {name: as_text(plain[name]) for name in differ}


def as_command(settings: Any, script: str) -> str:
    """Return the command line that runs a job: `python run.py --lr=0.01 --seed=2`."""
    words = [f"{flags.option(name)}={text}" for name, text in changed(settings).items()]
    return shlex.join(["python", f"{script}.py", *words])


def as_words(settings: Any) -> str:
    """Return a job's name, one line that distinguishes it from others: `convnet seed=2 lr=0.01`.

    The model and the seed, where there are such settings, come first, because lists of runs and
    legends of charts cut off long names; then come the settings that differ from their defaults, as
    far as LONGEST_NAME allows.
    """
    first, rest = _first(settings), changed(settings)
    words = [f"{key}={value}" for key, value in rest.items() if key not in ("model", "seed")]
    words = [" ".join(word.split()) for word in (*first, *words)]
    while len(name := " ".join(words)) > LONGEST_NAME:
        words.remove(max(words, key=len))
    return name or "defaults"


def _first(settings: Any) -> list[str]:
    plain = identity(settings)
    model = [as_text(plain["model"])] if "model" in plain else []
    return [*model, f"seed={plain['seed']}"] if "seed" in plain else model


def restore(kind: type[S], stored: Mapping[str, Any]) -> S:
    """Return the settings of an identity that was stored, perhaps by older code.

    Settings that were added later have their neutral values. Raises SettingsError if today's
    settings cannot express them.
    """
    known = flags.of(kind)
    left = {name: as_plain(value) for name, value in stored.items()}
    for name, value in known.former.items():
        if left.get(name) == as_plain(value):
            del left[name]
    values = {}
    for name, flag in known.items():
        stored_as = name if name in left else known.formerly.get(name, name)
        if stored_as in left:
            values[name] = flag.stored(as_text(left.pop(stored_as)))
        elif name in known.neutral:
            values[name] = flag.rules["neutral"]
        elif name not in known.replacing:
            raise SettingsError(
                f"the job ran before the setting {name} existed, which has no neutral value"
            )
    for name, value in left.items():
        raise SettingsError(f"{name}={as_text(value)}: no longer a setting of this project")
    return kind(**values)
