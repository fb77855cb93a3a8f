"""The command `jobs.py export-model`: a job's network in a folder, to use without the project.

torch.export turns the network into a program that needs no code of the project.
Source: docs.pytorch.org/docs/stable/user_guide/torch_compiler/export.html.
"""

import importlib
import inspect
import io
import json
import logging
import re
import shutil
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from labjobs import exit_status, layout
from labjobs.commands.inventory import Job
from labjobs.errors import JobError, SettingsError, cause, first_line
from labjobs.files import PROJECT, read_json, shown
from labjobs.job import attempts, journal
from labjobs.job.terminal import Interruption, leave
from labjobs.sources import fault
from labjobs.training import state

MODEL, WEIGHTS, ABOUT, README = "model.pt2", "weights.safetensors", "job.json", "README.md"

TRACED, OTHER = 4, 3
"""Numbers of examples to tell by which dimensions grow with it. torch.export would take 1 for a
constant, and an even and an odd number have no factor in common."""

COUNTS = (1, 2, 3, 8)  # numbers of examples for which outputs are compared
TOLERANCE = 1e-4
"""The largest difference that is allowed, as a fraction of the largest number in an output."""

Make = Callable[[int], Any]
"""Returns inputs for a number of examples: `example_input` of the student's models.py."""

Inputs = tuple[Tensor, ...] | dict[str, Tensor]
"""What a network is called with: by position, or by the names of its parameters."""


def export(found: Job, out: Path | None, as_json: bool) -> int:
    """Write the network of a job into a new folder, by default in exported/; return the exit
    status.

    Raises SettingsError if the folder exists, JobError if the network cannot be exported.
    """
    if not found.folder:
        raise JobError(f"job {found.id}: {found.problem}")
    job, runs_root = found.id, found.folder.runs_root
    out = (out or PROJECT / layout.EXPORTED / job).expanduser().absolute()
    if out.exists():
        raise SettingsError(f"{shown(out)} exists already: remove it, or choose another --out")
    try:
        attempt = state.attempt_to_load(job, runs_root)
        loaded, example, change = _loaded(job, runs_root)
        if change:
            leave(exit_status.FAILED, f"jobs.py: {change}")
        if attempts.status_of(attempt) != "finished":
            line = f"jobs.py: job {job} has not finished; these are its best weights so far"
            leave(exit_status.FAILED, line)
        Interruption().listen()  # not while libraries are imported, which many do not survive
        with _whole(out) as folder:
            model = loaded.model.eval()
            _write(folder, model, example)
            about = _about(attempt, loaded.metrics, change)
            (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
            (folder / README).write_text(
                _readme(job, model, make_inputs(example, TRACED)), encoding="utf-8"
            )
    except (SettingsError, JobError):
        raise
    except OSError as error:
        raise JobError(cause(error)) from error
    except Exception as error:  # of the student's code, or of torch
        at = fault(error)
        line = f"job {job} cannot be exported: {cause(error)}" + (f" ({at})" if at else "")
        raise JobError(line) from error
    if as_json:
        files = sorted(path.name for path in out.iterdir())
        print(json.dumps({"folder": str(out), "files": files}, indent=2))
    else:
        *first, last = COUNTS
        counts = f"{', '.join(map(str, first))} and {last} examples"
        print(f"{MODEL}: gives the network's outputs for {counts}")
        print(f"exported: {shown(out)}")
    return exit_status.DONE


def _loaded(job: str, runs_root: Path) -> tuple[Any, Make, str]:
    """A job as jobs.load of the project returns it, what makes inputs for its network, and how the
    code has changed since.

    Raises JobError if its weights do not fit the present code, or if nothing says what inputs are.
    """
    jobs, models = map(importlib.import_module, ("jobs", "models"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found = jobs.load(job, runs_root)
        except (RuntimeError, TypeError, KeyError) as error:
            line = f"job {job} cannot be loaded with the present code ({first_line(error)})"
            raise JobError(f"{line}; check out the commit that it ran with") from error
    if not hasattr(models, "example_input"):
        raise JobError(
            "models.py has no example_input(settings, spec, examples), which makes inputs for the "
            "network; `python jobs.py docs export` shows one"
        )
    changes = [str(each.message) for each in warned if str(each.message).startswith(f"job {job} ")]
    example = partial(models.example_input, found.settings, found.spec)
    return found, example, "".join(changes[:1])


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `out` at the end; after an error, it is removed."""
    part = out.with_name(f".{out.name}.{uuid4().hex}")
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _write(folder: Path, model: nn.Module, example: Make) -> None:
    """Write the network as a program and its weights by name; read the program back and check it.

    Raises JobError if its outputs are not the network's, OSError.
    """
    content = io.BytesIO()  # on a full disk, torch's writer, in C++, would end the process
    program = traced(model, example)
    with _quiet():
        torch.export.save(program, content)
    (folder / MODEL).write_bytes(content.getbuffer())
    save_model(model, str(folder / WEIGHTS), {"format": "pt"})
    (folder / WEIGHTS).chmod((folder / MODEL).stat().st_mode)  # only its owner may read it
    check(model, torch.export.load(folder / MODEL).module(), example)


def make_inputs(example: Make, examples: int) -> Inputs:
    """Return inputs for a number of examples, the same each time.

    Raises JobError if they are not tensors.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(examples)
        made = example(examples)
    found: Inputs = made if isinstance(made, dict | tuple) else (made,)
    every = [*found.values()] if isinstance(found, dict) else [*found]
    if not every or not all(isinstance(each, Tensor) for each in every):
        raise JobError(
            "example_input in models.py: must return a tensor, a tuple or a dict of tensors"
        )
    return found


def dynamic_shapes(example: Make) -> list[dict[int, Any]]:
    """Return for each tensor the dimensions that grow with the number of examples, as torch.export
    takes them. Raises JobError if none do."""
    one, other = (tensors(make_inputs(example, count)) for count in (TRACED, OTHER))
    shapes = [
        {
            place: Dim.DYNAMIC
            for place, (size, other_size) in enumerate(zip(a.shape, b.shape, strict=True))
            if size != other_size
        }
        for a, b in zip(one, other, strict=True)
    ]
    if not any(shapes):
        raise JobError(
            "example_input in models.py: must return the number of examples that it is asked for"
        )
    return shapes


def traced(model: nn.Module, example: Make) -> ExportedProgram:
    """Return the network as a program, for any number of examples.

    Raises JobError if torch.export cannot follow its code.
    """
    shapes, given = dynamic_shapes(example), make_inputs(example, TRACED)
    try:
        with torch.no_grad(), _quiet():
            if isinstance(given, dict):
                named = dict(zip(given, shapes, strict=True))
                return torch.export.export(model, (), given, dynamic_shapes=named)
            return torch.export.export(model, given, dynamic_shapes=tuple(shapes))
    except Exception as error:  # torch has dozens of kinds
        # Its reason is the first thing that it lists, or the first sentence of all; in one colour.
        listed = [line[2:] for line in map(str.strip, str(error).splitlines()) if line[:2] == "- "]
        reason = re.sub("\x1b\\[[0-9;]*m", "", (listed or [first_line(error)])[0].split(". ")[0])
        raise JobError(
            f"torch.export cannot follow the network "
            f"({textwrap.shorten(reason, 200, placeholder=' …')}); "
            "`python jobs.py docs export` shows what to write instead"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch reports of its work to itself: graphs, and what it leaves as it is."""
    nowhere = io.StringIO()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@torch.no_grad()
def check(network: Callable[..., Any], exported: Callable[..., Any], example: Make) -> None:
    """Raise JobError unless an exported network gives the network's outputs for all COUNTS."""
    for count in COUNTS:
        given, counted = make_inputs(example, count), f"{count} example{'s' * (count > 1)}"
        wanted = tensors(_call(network, given))
        try:
            found = tensors(_call(exported, given))
        except Exception as error:
            raise JobError(f"{MODEL} fails for {counted}: {first_line(error)}") from error
        try:
            for one, other in zip(wanted, found, strict=True):
                allowed = TOLERANCE * _largest(one)
                torch.testing.assert_close(other, one, rtol=0, atol=allowed, equal_nan=True)
        except (AssertionError, ValueError) as error:
            raise JobError(
                f"{MODEL} gives other outputs than the network for {counted}: "
                f"differences up to {TOLERANCE:g} of the largest number are allowed"
            ) from error


def _largest(output: Tensor) -> float:
    """The largest finite number in an output; 0 for whole numbers, which must be equal."""
    if not (output.is_floating_point() or output.is_complex()):
        return 0.0
    numbers = output.abs()
    return max(numbers[numbers.isfinite()].tolist(), default=0.0)


def _call(function: Callable[..., Any], given: Inputs) -> Any:
    return function(**given) if isinstance(given, dict) else function(*given)


def tensors(output: Any) -> list[Tensor]:
    """Return the tensors of an output. Raises JobError if it is no nesting of tensors."""
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, dict) else output
    if not isinstance(output, dict | tuple | list):
        raise JobError(f"the network returns {type(output).__name__}; only tensors can be compared")
    return [tensor for part in parts for tensor in tensors(part)]


def _about(attempt: Path, metrics: dict[str, float], change: str) -> dict[str, Any]:
    """Where the network comes from: what job.json holds."""
    return journal.record_of(attempt, layout.SETTINGS) | {
        "status": attempts.status_of(attempt) or "not finished",
        "exported_with": change or "the same code",
        "spec": read_json(attempt / layout.SPEC),
        "metrics": metrics,
    }


def _readme(job: str, model: nn.Module, given: Inputs) -> str:
    """How to load and call the network, in Markdown."""
    by_name = isinstance(given, dict)
    names = [*(given if by_name else inspect.signature(model.forward).parameters)]
    made, call = [], []
    # forward may have more parameters, with defaults
    for name, tensor in zip(names, tensors(given), strict=False):
        made.append(f"{name} = torch.zeros({tuple(tensor.shape)}, dtype={tensor.dtype})\n")
        call.append(f"{name}={name}" if by_name else name)
    return f"""# The network of job {job}

```python
import torch

model = torch.export.load("{MODEL}").module()
{"".join(made)}outputs = model({", ".join(call)})
```

`{WEIGHTS}` has the weights by name; `{ABOUT}` says where they come from.
"""
