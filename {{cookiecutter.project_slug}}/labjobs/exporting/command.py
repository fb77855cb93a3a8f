"""The command `jobs.py export-model`, from its arguments to a folder."""

import importlib
import json
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from safetensors.torch import save_model
from torch import nn

from labjobs.errors import JobError, SettingsError, cause, first_line
from labjobs.exporting import card, check, inputs, program
from labjobs.job import attempts
from labjobs.job.interruption import Interrupted, Interruption
from labjobs.job.terminal import leave
from labjobs.paths import shown
from labjobs.sources import fault
from labjobs.training import kept

MODEL, WEIGHTS, ONNX, CARD = "model.pt2", "weights.safetensors", "model.onnx", "README.md"


class Wanted(NamedTuple):
    """What to export: the network of a job with settings of a kind, into the folder `out`.

    `interruption` holds signals back until everything is imported, since many libraries cannot be
    interrupted while they are.
    """

    job: str
    kind: type
    runs_root: Path
    out: Path
    onnx: bool
    as_json: bool
    interruption: Interruption


class Loaded(NamedTuple):
    """A job's network, what makes inputs of it, how the code has changed since, and the names of
    the classes in its data; none if that has no classes."""

    model: nn.Module
    example: inputs.Make
    change: str
    classes: Sequence[str]


def export(wanted: Wanted) -> int:
    """Write the network of a job into a new folder; return the exit status.

    Raises SettingsError if the folder exists, JobError if the network cannot be exported.
    """
    try:
        return _export(wanted)
    except (SettingsError, JobError, Interrupted):
        raise
    except OSError as error:
        raise JobError(cause(error)) from error
    except Exception as error:  # of the student's code, or of torch
        at = fault(error)
        line = f"job {wanted.job} cannot be exported: {cause(error)}" + (f" ({at})" if at else "")
        raise JobError(line) from error


def _export(wanted: Wanted) -> int:
    job, out, onnx = wanted.job, wanted.out, wanted.onnx
    if out.exists():
        raise SettingsError(f"{shown(out)} exists already: remove it, or choose another --out")
    if onnx:
        program.check_onnx()
    attempt = kept.attempt(job, wanted.kind, wanted.runs_root)
    loaded = _loaded(wanted)
    if loaded.change:
        leave(1, f"jobs.py: {loaded.change}")
    if attempts.status(attempt) != "finished":
        leave(1, f"jobs.py: job {job} has not finished; these are its best weights so far")
    with _whole(out) as folder:
        apart = _write(folder, loaded, onnx)
        about = card.read(attempt, loaded.change, loaded.classes)
        given = inputs.make(loaded.example, inputs.TRACED)
        shapes = inputs.dynamic_shapes(loaded.example)
        text = card.as_markdown(about, card.described(loaded.model, given, shapes), apart)
        (folder / CARD).write_text(text, encoding="utf-8")
    _say(out, apart, wanted.as_json)
    return 0


def _loaded(wanted: Wanted) -> Loaded:
    """A job as jobs.load of the project returns it.

    Raises JobError if its weights do not fit the present code, or if nothing says what inputs are.
    """
    job = wanted.job
    jobs, models = map(importlib.import_module, ("jobs", "models"))
    wanted.interruption.release()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found = jobs.load(job, wanted.runs_root)
        except (RuntimeError, TypeError, KeyError) as error:
            line = f"job {job} cannot be loaded with the present code ({first_line(error)})"
            raise JobError(f"{line}; check out the commit that it ran with") from error
    if not hasattr(models, "example_input"):
        raise JobError(
            "models.py has no example_input(settings, spec, examples), which makes inputs for the "
            "network; docs/export.md shows one"
        )
    changes = [str(each.message) for each in warned if str(each.message).startswith(f"job {job} ")]
    example = partial(models.example_input, found.settings, found.spec)
    classes = getattr(found.spec, "classes", ())
    return Loaded(found.model.eval(), example, "".join(changes[:1]), classes)


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder to write into; at the end it becomes `out`, after an error it is removed."""
    new = [folder for folder in out.parents if not folder.exists()]
    part = out.with_name(f".{out.name}.{uuid4().hex}")
    part.mkdir(parents=True)
    try:
        yield part
        _rename(part, out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):  # another export has begun there since
            for folder in new:
                folder.rmdir()
        raise


def _rename(part: Path, out: Path) -> None:
    """Give a folder its name. Raises SettingsError if another export has it by now."""
    try:
        part.rename(out)
    except OSError as error:
        if out.exists():
            line = "has been made meanwhile, perhaps by another export of this job"
            raise SettingsError(f"{shown(out)} {line}; it was left as it is") from error
        raise


def _write(folder: Path, loaded: Loaded, onnx: bool) -> dict[str, float]:
    """Write and check the network; return by file how far its outputs are from the network's."""
    model, example = loaded.model, loaded.example
    network: program.Call = lambda given: model(*given.args, **given.kwargs)  # noqa: E731
    traced = program.traced(model, example)
    program.save(traced, folder / MODEL)
    save_model(model, str(folder / WEIGHTS), {"format": "pt"})
    (folder / WEIGHTS).chmod((folder / MODEL).stat().st_mode)  # only its owner may read it
    saved = {MODEL: program.opened(folder / MODEL)}
    if onnx:
        program.save_onnx(traced, folder / ONNX)
        saved[ONNX] = program.opened_onnx(folder / ONNX)
    return {name: check.difference(network, call, example, name) for name, call in saved.items()}


def _say(out: Path, apart: dict[str, float], as_json: bool) -> None:
    if as_json:
        about: dict[str, Any] = {
            "folder": str(out),
            "files": sorted(path.name for path in out.iterdir()),
            "difference": apart,
            "tolerance": check.TOLERANCE,
            "examples": check.COUNTS,
        }
        print(json.dumps(about, indent=2))
        return
    for name, fraction in apart.items():
        print(f"{name}: {check.in_words(fraction)}")
    print(f"exported: {shown(out)}")
