"""What a sweep is told: the flags of run.sh, and what cluster.toml says of clusters."""

import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labjobs.cli.flags import option
from labjobs.cli.parser import parse
from labjobs.errors import SettingsError, did_you_mean
from labjobs.files import PROJECT, shown
from labjobs.settings import setting
from labjobs.sweeps.clusters import SYSTEMS, WARNING, Cluster, expanded
from labjobs.sweeps.containers import SIF

HERE = "local"  # for --on


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What to do with the jobs of the grid that are not finished."""

    # Without starting any
    list: bool = False
    """Print each job: id, state, settings."""

    json: bool = False
    """With --list: print the jobs as JSON."""

    cost: bool = False
    """With --list: forecast the hours and energy that jobs will still take, and when they end."""

    watch: bool = False
    """Keep printing the progress of the jobs."""

    # Which jobs
    only: str | None = None
    """Run only jobs in this state: failed, interrupted, pending or unsent. With --list: print only
    jobs in this state, whichever it is."""

    redo_stale: bool = False
    """Run again the jobs that were finished or begun with other code or data."""

    retries: int = setting(0, at_least=0)
    """Retry a job up to this many times if it ran out of memory or was killed."""

    fail_fast: bool = False
    """Stop all jobs when one fails."""

    budget: float | None = setting(None, above=0)
    """Hours that the jobs may take, on all GPUs together, or on the CPU. Jobs that would need more
    are not started; if the hours run out, running jobs write a checkpoint and stop."""

    # Where
    gpus: str | None = None
    """GPUs by nvidia-smi's numbers, such as 0,2. none: CUDA_VISIBLE_DEVICES, else all."""

    per_gpu: int | None = setting(None, at_least=1)
    """Jobs at once on each GPU, or on the CPU. none: one on a GPU; on the CPU one per core, fewer
    where memory is short."""

    gpus_per_job: int = setting(1, at_least=1)
    """GPUs for each job, which trains with a process on each of them. `python jobs.py docs
    several-gpus` says when not to."""

    on: str = HERE
    """Submit the jobs to a cluster that cluster.toml describes; words after -- go to its sbatch,
    qsub or bsub. local: this machine. hyades,local: both, whichever is free. `python jobs.py docs
    clusters` says more."""

    hosts: str | None = None
    """Run the jobs on these workstations, over ssh, such as gpu1,gpu2:0-3 with some GPUs of gpu2.
    local: this machine. With --on: on the cluster too. `python jobs.py docs clusters` says what
    they need."""

    slurm: bool = False
    """Submit the jobs to Slurm, with sbatch's options after -- and no cluster.toml."""

    at_most: int | None = setting(None, at_least=1)
    """With --on or --slurm: run at most this many jobs at once."""

    piece: str | None = None
    """With --on or --slurm: divide jobs into pieces of this length, such as 2h or 90m, which start
    sooner where clusters fill gaps. Each continues the one before exactly."""


@dataclass(frozen=True)
class Nothing:
    """No other flags."""


ONLY_HERE = ("gpus", "per_gpu", "retries", "fail_fast")
"""Flags of a sweep that does not end before its jobs."""


def from_environment(variable: str, usual: float) -> float:
    """Return the number in an environment variable, or the usual one. Raises SettingsError."""
    given = os.environ.get(variable) or usual
    with suppress(ValueError):
        if float(given) >= 0:
            return float(given)
    raise SettingsError(f"{variable} {given}: must be a number, at least 0")


def read(words: list[str]) -> tuple[Flags, Cluster | None]:
    """Return run.sh's flags, and the cluster that runs the jobs, None for this machine. Raises
    SettingsError if they are wrong; `--help` ends the process."""
    cut = words.index("--") if "--" in words else len(words)
    own, more = words[:cut], words[cut + 1 :]
    try:
        flags, _ = parse(Flags, Nothing, own)
    except SettingsError as error:
        is_sbatchs = "--slurm" in own and "no such flag" in str(error)
        raise SettingsError(f"{error}{'; options of sbatch go after --' * is_sbatchs}") from None
    places = flags.on.split(",")
    clusters = [name for name in places if name != HERE]
    away, shares = flags.slurm or clusters, flags.hosts or len(places) > 1
    here = [option(name) for name in ONLY_HERE if getattr(flags, name)]
    wrong = {
        "--json: only with --list": flags.json and not flags.list,
        "--cost: only with --list": flags.cost and not flags.list,
        "--only: not with --watch": flags.only and flags.watch,
        "--budget: not with --list or --watch": flags.budget and (flags.list or flags.watch),
        "--at-most: only with --on or --slurm": flags.at_most and not away,
        "--piece: only with --on or --slurm": flags.piece and not away,
        "--: only with --on or --slurm": more and not away,
        f"--on {flags.on}: one cluster at a time, and local": len(clusters) > 1,
        "--budget: not with --on or --slurm": flags.budget and away,
        "--gpus: not with --hosts; write --hosts local:0-3": flags.gpus and flags.hosts,
        "--slurm: not with --on": flags.slurm and flags.on != HERE,
        f"{', '.join(here)}: not with --on or --slurm alone": here and away and not shares,
        "--gpus-per-job: not with --per-gpu": flags.per_gpu and flags.gpus_per_job > 1,
    }
    for line in filter(wrong.get, wrong):
        raise SettingsError(line)
    if not away:
        return flags, None
    if HERE in places and clusters:
        hosts = ",".join(filter(None, [HERE, flags.hosts]))
        flags = replace(flags, on=clusters[0], hosts=hosts)
    piece = _seconds(flags.piece) if flags.piece else 0
    found = Cluster() if flags.slurm else cluster(flags.on)
    count, submits = flags.gpus_per_job, found.batch.submits
    chosen_by = "--slurm" if flags.slurm else f"--on {flags.on}"
    if taken := _wrong("options", more, vars(found)):
        raise SettingsError(taken)
    if not shutil.which(submits):
        raise SettingsError(f"{chosen_by}: there is no {submits} on this machine")
    if found.container and flags.hosts:
        raise SettingsError(f"{chosen_by}: its container is not for local and --hosts")
    gpus, options = count if found.gpus or count > 1 else 0, [*found.options, *more]
    found = replace(found, gpus=gpus, options=options, at_most=flags.at_most)
    if piece:
        found = replace(found, time="", piece=piece)
        if limit := found.given("time"):
            raise SettingsError(f"--piece: not with {limit}, an option of {submits}")
    return flags, found


def _seconds(piece: str) -> int:
    units = {"h": 3600, "m": 60}
    seconds = int(piece[:-1]) * units[piece[-1]] if re.fullmatch(r"\d+[hm]", piece) else 0
    if seconds < 2 * WARNING:
        raise SettingsError(f"--piece {piece}: must be at least two minutes, such as 2h or 90m")
    return seconds


# cluster.toml has a table for each cluster: `[hyades]`, then keys and values. A person's own file,
# ~/.config/labjobs/cluster.toml, adds to the project's or replaces it, key by key.

FILE = "cluster.toml"
HOSTS, HOST_KEYS = "hosts", ("folder", "python")  # [hosts.gpu2], a table for a host of --hosts

OWN = ("at_most", "piece", "pieces")  # what cluster.toml does not say

KEYS = {key: type(of) for key, of in vars(Cluster()).items() if key not in OWN}

FORMS = SYSTEMS["slurm"].forms.keys()
"""Keys for which a system can be asked."""

KINDS: dict[type, str] = {
    **{str: "a string on one line", int: "a whole number", bool: "true or false"},
    **{list: "a list of strings", dict: 'options by key, such as { gpus = "--gres=gpu:a100:{}" }'},
}

PATTERNS = {
    "gpus": ("[01]", "1, or 0 for none"),
    "cores": (r"\d+", "at least 0"),
    "memory": (r"\d+[KMGT]", "a number and its unit, such as 32G"),
    "time": (r"(?!0+:0[01]:)\d+:[0-5]\d:[0-5]\d", "at least two minutes, such as 4:00:00"),
}


def cluster(name: str) -> Cluster:
    """Return the cluster with a name. Raises SettingsError if there is none, or it is wrong."""
    files = _files()
    known = sorted({each for tables in files.values() for each in tables} - {HOSTS})
    if name not in known:
        how = "jobs.py docs clusters shows how to write one"
        hint = did_you_mean(name, known) if known else how
        raise SettingsError(f"{name}: no such cluster in {FILE}; {hint}")
    values = {key: value for each in files.values() for key, value in each.get(name, {}).items()}
    if values.get("system") not in [*SYSTEMS]:
        raise SettingsError(f"{FILE}: [{name}] system: must be one of {', '.join(SYSTEMS)}")
    for path, tables in files.items():
        for key, value in tables.get(name, {}).items():
            if wrong := _wrong(key, value, values):
                raise SettingsError(f"{shown(path)}: [{name}] {key}: {wrong}")
    return Cluster(**values)


def host(name: str) -> dict[str, str]:
    """Return what is said of a host. Raises SettingsError if it is wrong."""
    found: dict[str, str] = {}
    for path, tables in _files().items():
        for key, value in tables.get(HOSTS, {}).get(name, {}).items():
            if key not in HOST_KEYS or not isinstance(value, str):
                keys = " or ".join(f'{each} = "…"' for each in HOST_KEYS)
                raise SettingsError(f"{shown(path)}: [{HOSTS}.{name}] {key}: must be {keys}")
            found[key] = value
    return found


def _files() -> dict[Path, dict[str, dict[str, Any]]]:
    """The tables of the project's file, and of the person's own."""
    own = Path(expanded(os.environ.get("XDG_CONFIG_HOME") or "~/.config"), "labjobs", FILE)
    return {path: _tables(path) for path in (PROJECT / FILE, own)}


def _tables(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a file, if there is one."""
    try:
        tables = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{shown(path)}: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict) or name == HERE:
            raise SettingsError(f"{shown(path)}: {name}: must be in a table such as [hyades]")
    return tables


def _wrong(key: str, value: Any, values: Mapping[str, Any]) -> str:
    """What is wrong with the value of a key, among all of a cluster; empty if nothing is."""
    if key not in KEYS:
        return f"no such key; {did_you_mean(key, KEYS)}"
    within = [*value.values()] if isinstance(value, dict) else value
    texts = within if isinstance(within, list) else [str(value)]
    fine = all(isinstance(text, str) and text.isprintable() for text in texts)
    if type(value) is not KEYS[key] or not fine:
        return f"must be {KINDS[KEYS[key]]}"
    pattern, wanted = PATTERNS.get(key, (".*", ""))
    if not re.fullmatch(pattern, str(value)):
        return f"{value} must be {wanted}"
    if key == "container" and value.endswith(SIF) and not (PROJECT / expanded(value)).is_file():
        return f"{value}: there is no such file"
    if key in ("runs", "data") and (unset := re.search(r"\$(\w+|\{\w+\})", expanded(str(value)))):
        return f"{value}: {unset[0]} is not set"
    system, asked = SYSTEMS[values["system"]], values.get("ask")
    asked = asked if isinstance(asked, dict) else {}
    if key in FORMS - {*system.forms, *asked}:
        return f'say how {system.title} is asked for it: ask = {{ {key} = "-… {{}}" }}'
    if key == "ask" and (unknown := sorted(asked.keys() - FORMS)):
        return f"{unknown[0]}: no such key; {did_you_mean(unknown[0], FORMS)}"
    taken = ", ".join(w for w in texts if key == "options" and re.fullmatch(system.taken, w))
    return taken and f"{taken}: run.sh sets this option of {system.submits}"
