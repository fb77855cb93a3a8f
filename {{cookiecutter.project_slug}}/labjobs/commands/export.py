"""The command `jobs.py export-model`: a job's network in a folder, to use without the project.

torch.export turns the network into a program that needs no code of the project.
Source: docs.pytorch.org/docs/stable/user_guide/torch_compiler/export.html.
"""

import importlib
import io
import logging
import re
import textwrap
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_leaves

from labjobs import exit_status, layout
from labjobs.commands.inventory import Project
from labjobs.errors import JobError, SettingsError, first_line
from labjobs.files import PROJECT, json_of, shown, write_json, write_text
from labjobs.job import attempts, journal
from labjobs.job.terminal import Interruption, leave
from labjobs.sources import described
from labjobs.training import checkpoints

MODEL, WEIGHTS, ABOUT, README = "model.pt2", "weights.safetensors", "job.json", "README.md"

TRACED, OTHER = 4, 3
"""Numbers of examples to tell by which dimensions grow with it. torch.export would take 1 for a
constant, and an even and an odd number have no factor in common."""

COUNTS = (1, 2, 3, 8)  # numbers of examples for which outputs are compared
TOLERANCE = 1e-4
"""The largest difference that is allowed, as a fraction of the largest number in an output."""

Make = Callable[[int], Any]
"""Returns inputs for a number of examples: `example_input` of the student's models.py."""


def export(project: Project, given: Namespace) -> None:
    """Write the network of a job into a new folder, by default in exported/. Raises SettingsError
    if the folder exists, JobError if the network cannot be exported."""
    found = project.one(given.job)
    if not found.folder:
        raise JobError(f"job {found.id}: {found.problem}")
    out: Path = (given.out or PROJECT / layout.EXPORTED / found.id).expanduser().absolute()
    if out.exists():
        raise SettingsError(f"{shown(out)} exists already: remove it, or choose another --out")
    try:
        _export(found.id, found.folder.runs_root, out)
    except (SettingsError, JobError, OSError):
        raise
    except Exception as error:  # of the student's code, or of torch
        raise JobError(f"job {found.id} cannot be exported: {described(error)}") from error
    if given.json:
        print(json_of({"folder": str(out), "files": sorted(path.name for path in out.iterdir())}))
    else:
        *first, last = COUNTS
        counts = f"{', '.join(map(str, first))} and {last} examples"
        print(f"{MODEL}: gives the network's outputs for {counts}")
        print(f"exported: {shown(out)}")


def _export(job: str, runs_root: Path, out: Path) -> None:
    attempt, evidence = checkpoints.attempt_to_load(job, runs_root)
    loaded, example = _loaded(job, runs_root)
    status = attempts.status_of(attempt) or "not finished"
    if remark := evidence.remark:
        leave(exit_status.FAILED, f"jobs.py: job {job}: {remark}")
    if status != "finished":
        line = f"jobs.py: job {job} has not finished; these are its best weights so far"
        leave(exit_status.FAILED, line)
    about = journal.record_of(attempt, layout.SETTINGS) | {
        "status": status,
        "exported_with": remark or "the same code",
        "metrics": loaded.metrics,
    }
    Interruption().listen()  # not while libraries are imported, which many do not survive
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        folder = Path(temporary) / out.name
        folder.mkdir()
        _write(folder, loaded.model.eval(), example)
        write_json(folder / ABOUT, about)
        write_text(folder / README, _readme(job, make_inputs(example, TRACED)))
        folder.rename(out)  # the whole folder, or nothing


def _loaded(job: str, runs_root: Path) -> tuple[Any, Make]:
    """A job as jobs.load of the project returns it, and what makes inputs for its network. Raises
    JobError if its weights do not fit the present code, or if nothing says what inputs are."""
    jobs, models = map(importlib.import_module, ("jobs", "models"))
    with warnings.catch_warnings(action="ignore"):  # of changed code, of which a line is printed
        try:
            found = jobs.load(job, runs_root)
        except (RuntimeError, TypeError, KeyError) as error:
            line = f"job {job} cannot be loaded with the present code ({first_line(error)})"
            cure = "check out the commit that it ran with"
            if isinstance(error, KeyError):
                cure += ", or name in load() of jobs.py weights that it has kept"
            raise JobError(f"{line}; {cure}") from error
    if not hasattr(models, "example_input"):
        raise JobError(
            "models.py has no example_input(settings, spec, examples), which makes inputs for the "
            "network; `python jobs.py docs export` shows one"
        )
    return found, partial(models.example_input, found.settings, found.spec)


def _write(folder: Path, model: nn.Module, example: Make) -> None:
    """Write the network as a program and its weights by name; read the program back and check it.
    Raises JobError if its outputs are not the network's, OSError."""
    content = io.BytesIO()  # on a full disk, torch's writer, in C++, would end the process
    with _quiet():
        torch.export.save(traced(model, example), content)
    (folder / MODEL).write_bytes(content.getbuffer())
    save_model(model, str(folder / WEIGHTS), {"format": "pt"})
    (folder / WEIGHTS).chmod((folder / MODEL).stat().st_mode)  # only its owner may read it
    check(model, torch.export.load(folder / MODEL).module(), example)


def make_inputs(example: Make, examples: int) -> tuple[Tensor, ...]:
    """Return inputs, the same each time. Raises JobError if they are not tensors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(examples)
        made = example(examples)
    found = made if isinstance(made, tuple) else (made,)
    if not found or not all(isinstance(each, Tensor) for each in found):
        raise JobError("example_input in models.py: must return a tensor or a tuple of tensors")
    return found


def dynamic_shapes(example: Make) -> tuple[dict[int, Any], ...]:
    """Return for each tensor the dimensions that grow with the number of examples, as torch.export
    takes them. Raises JobError if none do."""
    one, other = (make_inputs(example, count) for count in (TRACED, OTHER))
    shapes = tuple(
        {place: Dim.DYNAMIC for place in range(a.dim()) if a.shape[place] != b.shape[place]}
        for a, b in zip(one, other, strict=True)
    )
    if not any(shapes):
        raise JobError(
            "example_input in models.py: must return the number of examples that it is asked for"
        )
    return shapes


def traced(model: nn.Module, example: Make) -> ExportedProgram:
    """Return the network as a program, for any number of examples. Raises JobError if torch.export
    cannot follow its code."""
    shapes, given = dynamic_shapes(example), make_inputs(example, TRACED)
    try:
        with torch.no_grad():
            return torch.export.export(model, given, dynamic_shapes=shapes)
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
    nowhere, disabled = io.StringIO(), logging.root.manager.disable
    logging.disable()
    try:
        ignored = warnings.catch_warnings(action="ignore")
        with redirect_stdout(nowhere), redirect_stderr(nowhere), ignored:
            yield
    finally:
        logging.disable(disabled)


@torch.no_grad()
def check(network: Callable[..., Any], exported: Callable[..., Any], example: Make) -> None:
    """Raise JobError unless an exported network gives the network's outputs for all COUNTS."""
    for count in COUNTS:
        given, counted = make_inputs(example, count), f"{count} example{'s' * (count > 1)}"
        wanted = tensors(network(*given))
        try:
            found = tensors(exported(*given))
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


def tensors(output: Any) -> list[Tensor]:
    """Return the tensors of an output. Raises JobError if it is no nesting of tensors."""
    found = tree_leaves(output)
    for each in found:
        if not isinstance(each, Tensor):
            kind = type(each).__name__
            raise JobError(f"the network returns {kind}; only tensors can be compared")
    return found


def _readme(job: str, given: tuple[Tensor, ...]) -> str:
    """How to load and call the network, in Markdown."""
    inputs = [f"torch.zeros({tuple(each.shape)}, dtype={each.dtype})" for each in given]
    return f"""# The network of job {job}

```python
import torch

model = torch.export.load("{MODEL}").module()
outputs = model({", ".join(inputs)})
```

`{WEIGHTS}` has the weights by name; `{ABOUT}` says where they come from.
"""
