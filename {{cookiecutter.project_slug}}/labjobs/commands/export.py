"""The command `jobs.py export-model`: a job's network in a folder, to use without the project.

The network becomes a program that needs no code of the project: torch.export's and, from it, ONNX.
Sources: docs.pytorch.org/docs/stable/user_guide/torch_compiler/export.html,
docs.pytorch.org/docs/stable/onnx_export.html.
"""

import importlib
import inspect
import io
import json
import logging
import math
import re
import shutil
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from labjobs import exit_status, layout
from labjobs.cli.flags import as_text
from labjobs.errors import JobError, SettingsError, cause, first_line
from labjobs.files import CODE, shown
from labjobs.job import attempts, code_evidence, data_evidence, journal
from labjobs.job.terminal import Interrupted, Interruption, leave
from labjobs.sources import fault
from labjobs.training import state

MODEL, WEIGHTS, ONNX, CARD = "model.pt2", "weights.safetensors", "model.onnx", "README.md"

TRACED, OTHER = 4, 3
"""Numbers of examples to tell by which dimensions grow with it. torch.export would take 1 for a
constant, and an even and an odd number have no factor in common."""

COUNTS = (1, 2, 3, 8)  # numbers of examples for which outputs are compared
TOLERANCE = 1e-4
"""The largest difference that is allowed, as a fraction of the largest number in an output."""

LARGEST_ONNX = 1_500_000_000
"""Bytes of weights above which they are written next to the model: a protobuf holds 2 GB."""

Make = Callable[[int], Any]
"""Returns inputs for a number of examples: `example_input` of the student's models.py."""

Inputs = tuple[Tensor, ...] | dict[str, Tensor]
"""What a network is called with: by position, or by the names of its parameters."""


def export(
    job: str,
    kind: type,
    runs_root: Path,
    out: Path,
    onnx: bool,
    as_json: bool,
    interruption: Interruption,
) -> int:
    """Write the network of a job with settings of a kind into a new folder; return the exit status.

    `interruption` holds signals back until everything is imported, since many libraries cannot be
    interrupted while they are. Raises SettingsError if the folder exists, JobError if the network
    cannot be exported.
    """
    if out.exists():
        raise SettingsError(f"{shown(out)} exists already: remove it, or choose another --out")
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if not find_spec(name)]
    if onnx and missing:
        raise JobError(f"--onnx: {', '.join(missing)} missing; type uv sync --group onnx")
    try:
        attempt = state.attempt_to_load(job, kind, runs_root)
        loaded, example, change = _loaded(job, runs_root, interruption)
        if change:
            leave(exit_status.FAILED, f"jobs.py: {change}")
        if attempts.status_of(attempt) != "finished":
            line = f"jobs.py: job {job} has not finished; these are its best weights so far"
            leave(exit_status.FAILED, line)
        model, classes = loaded.model.eval(), getattr(loaded.spec, "classes", ())
        with _whole(out) as folder:
            apart = _write(folder, model, example, onnx)
            said = {name: in_words(fraction) for name, fraction in apart.items()}
            checked = "\n".join(f"- `{name}`: {words}" for name, words in said.items())
            card = _card(attempt, change, classes, _described(model, example), checked)
            (folder / CARD).write_text(card, encoding="utf-8")
    except (SettingsError, JobError, Interrupted):
        raise
    except OSError as error:
        raise JobError(cause(error)) from error
    except Exception as error:  # of the student's code, or of torch
        at = fault(error)
        line = f"job {job} cannot be exported: {cause(error)}" + (f" ({at})" if at else "")
        raise JobError(line) from error
    if as_json:
        about: dict[str, Any] = {
            "folder": str(out),
            "files": sorted(path.name for path in out.iterdir()),
            "difference": apart,
            "tolerance": TOLERANCE,
            "examples": COUNTS,
        }
        print(json.dumps(about, indent=2))
    else:
        for name, words in said.items():
            print(f"{name}: {words}")
        print(f"exported: {shown(out)}")
    return exit_status.DONE


def _loaded(job: str, runs_root: Path, interruption: Interruption) -> tuple[Any, Make, str]:
    """A job as jobs.load of the project returns it, what makes inputs for its network, and how the
    code has changed since.

    Raises JobError if its weights do not fit the present code, or if nothing says what inputs are.
    """
    jobs, models = map(importlib.import_module, ("jobs", "models"))
    interruption.release()
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
    """A folder to write into; at the end it becomes `out`, after an error it is removed. Raises
    SettingsError if another export has made `out` by then."""
    new = [folder for folder in out.parents if not folder.exists()]
    part = out.with_name(f".{out.name}.{uuid4().hex}")
    part.mkdir(parents=True)
    try:
        yield part
        try:
            part.rename(out)
        except OSError as error:
            if not out.exists():
                raise
            line = "has been made meanwhile, perhaps by another export of this job"
            raise SettingsError(f"{shown(out)} {line}; it was left as it is") from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):  # another export has begun there since
            for folder in new:
                folder.rmdir()
        raise


def _write(folder: Path, model: nn.Module, example: Make, onnx: bool) -> dict[str, float]:
    """Write and check the network; return by file how far its outputs are from the network's."""
    program = traced(model, example)
    save(program, folder / MODEL)
    save_model(model, str(folder / WEIGHTS), {"format": "pt"})
    (folder / WEIGHTS).chmod((folder / MODEL).stat().st_mode)  # only its owner may read it
    saved: dict[str, Callable[..., Any]] = {MODEL: torch.export.load(folder / MODEL).module()}
    if onnx:
        _save_onnx(program, folder / ONNX)
        saved[ONNX] = _opened_onnx(folder / ONNX)
    return {name: difference(model, opened, example, name) for name, opened in saved.items()}


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
        # Its reason is the first thing that it lists, or the first sentence of all.
        listed = [line[2:] for line in map(str.strip, str(error).splitlines()) if line[:2] == "- "]
        reason = _short((listed or [first_line(error)])[0].split(". ")[0])
        raise JobError(
            f"torch.export cannot follow the network ({reason}); "
            "`python jobs.py docs export` shows what to write instead"
        ) from error


def _short(reason: str) -> str:
    """A reason of whole words, in one colour."""
    return textwrap.shorten(re.sub("\x1b\\[[0-9;]*m", "", reason), 200, placeholder=" …")


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


def save(program: ExportedProgram, path: Path) -> None:
    """Write a program, for torch.export.load. Raises OSError if it cannot be written."""
    content = io.BytesIO()  # on a full disk, torch's writer, in C++, would end the process
    with _quiet():
        torch.export.save(program, content)
    path.write_bytes(content.getbuffer())


def _save_onnx(program: ExportedProgram, path: Path) -> None:
    """Write a program as ONNX. Raises JobError if it has no such operation."""
    large = sum(weight.nbytes for weight in program.state_dict.values()) > LARGEST_ONNX
    try:
        with _quiet():
            torch.onnx.export(program, f=path, dynamo=True, external_data=large, verbose=False)
    except Exception as error:
        first: BaseException = error
        while first.__cause__:  # torch.onnx's own errors say in which of its steps it was
            first = first.__cause__
        if isinstance(first, OSError):  # such as a full disk
            raise first from None
        raise JobError(f"--onnx: torch.onnx says: {_short(first_line(first))}") from error


def _opened_onnx(path: Path) -> Callable[..., list[Tensor]]:
    """A function that runs an ONNX model on the CPU with onnxruntime."""
    import onnxruntime  # slow to import

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def call(*args: Tensor, **kwargs: Tensor) -> list[Tensor]:
        arrays = (tensor.numpy() for tensor in (*args, *kwargs.values()))
        found = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(array) for array in found]

    return call


@torch.no_grad()
def difference(
    network: Callable[..., Any], exported: Callable[..., Any], example: Make, name: str
) -> float:
    """Return the largest difference between the outputs of a network and of what was exported, as
    a fraction of the largest number in an output.

    Raises JobError if it is above TOLERANCE.
    """
    worst = 0.0
    for count in COUNTS:
        given, counted = make_inputs(example, count), f"{count} example{'s' * (count > 1)}"
        wanted = tensors(_call(network, given))
        try:
            found = tensors(_call(exported, given))
        except Exception as error:
            raise JobError(f"{name} fails for {counted}: {first_line(error)}") from error
        apart = _apart(wanted, found)
        if apart > TOLERANCE:
            raise JobError(
                f"{name} gives other outputs than the network for {counted}: "
                f"they differ by {apart:.2g} of the largest number, and {TOLERANCE:g} is allowed"
            )
        worst = max(worst, apart)
    return worst


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


def _apart(wanted: list[Tensor], found: list[Tensor]) -> float:
    """The largest difference; infinite if shapes, types or which numbers are finite differ."""
    kinds = [[(each.shape, each.dtype) for each in output] for output in (wanted, found)]
    if kinds[0] != kinds[1]:
        return math.inf
    worst = 0.0
    for one, other in zip(wanted, found, strict=True):
        same = (one == other) | (one.isnan() & other.isnan())
        if same.all():
            continue
        if not (one.is_floating_point() or one.is_complex()):
            return math.inf
        largest = one[one.isfinite()].abs()
        if not largest.any():
            return math.inf
        apart = (one - other).abs()[~same].nan_to_num(nan=math.inf).max()
        worst = max(worst, float(apart / largest.max()))
    return worst


def in_words(fraction: float) -> str:
    """Return a difference that was found as a sentence."""
    *first, last = COUNTS
    counts = f"{', '.join(map(str, first))} and {last} examples"
    found = f"differ by {fraction:.2g} of the largest one" if fraction else "are equal bit for bit"
    return f"the outputs for {counts} {found} ({TOLERANCE:g} is allowed)"


# The model card, README.md, as Hugging Face has them: a YAML header, then Markdown.
#
# Source: huggingface.co/docs/hub/model-cards.

RAN = ("commit", "dirty", "versions", "device", "threads", "precision")
"""Tags that say how a job ran."""


def _card(attempt: Path, change: str, classes: Sequence[str], use: str, checked: str) -> str:
    """The card. Raises JobError for a damaged journal, OSError if it cannot be read."""
    recorded = journal.record_of(attempt, layout.SETTINGS)
    ran = {"script": f"{recorded.get('script', '')}.py", "attempt": attempt.name}
    ran["code"] = code_evidence.digest(attempt)
    results: dict[str, float] = {}
    with (attempt / layout.JOURNAL).open("rb") as file:
        for line in journal.Reader(file).read():
            metrics, tags = line.get("metrics", {}), line.get("tags", {})
            results |= {k: v for k, v in metrics.items() if k.startswith(("test_", "best_"))}
            ran |= {name: tags[name] for name in RAN if name in tags}
    data = "The job has recorded no files; the settings below name the data."
    if read := data_evidence.summary(attempt):
        data = f"`{read.name}`: {read.files} files, {read.bytes} bytes, fingerprint `{read.digest}`"
    if classes:
        data += f"\n\n{_table('class', dict(enumerate(classes)), 'name')}"
    job, status = attempt.parent.name, attempts.status_of(attempt) or "not finished"
    title, license = _cited("title"), _cited("license")
    named = f"license: {license.lower().removesuffix('-or-later')}\n" if license else ""
    changed = f"\n\nExported with code that had changed since: {change}." if change else ""
    return f"""---
library_name: pytorch
{named}tags:
- torch.export
---

# {title}, job {job}

{_cited("abstract")}

The best weights of the job `{job}` ({status}) of the project {title}.{changed}

## Use

{use}

Compared with the network that was exported:

{checked}

## Data

{data}

## Results

As measured by the job.

{_table("metric", results)}

## Settings

{_table("setting", recorded.get("settings", {}))}

## Code

{_table("what", ran)}

## Licence

{license or "The project names no licence."}
"""


def _described(model: nn.Module, example: Make) -> str:
    """How to load and call the network, what it takes and returns, in Markdown."""
    given = make_inputs(example, TRACED)
    by_name = isinstance(given, dict)
    names = [*(given if by_name else inspect.signature(model.forward).parameters)]
    rows, made, call = [], [], []
    # forward may have more parameters, with defaults
    for name, tensor, dynamic in zip(names, tensors(given), dynamic_shapes(example), strict=False):
        sizes = ["any" if place in dynamic else str(n) for place, n in enumerate(tensor.shape)]
        rows.append(f"| `{name}` | {_kind(tensor)} | ({', '.join(sizes)}) |")
        made.append(f"{name} = torch.zeros({tuple(tensor.shape)}, dtype={tensor.dtype})\n")
        call.append(f"{name}={name}" if by_name else name)
    with torch.no_grad():
        returned = [f"{_kind(each)} {tuple(each.shape)}" for each in tensors(_call(model, given))]
    lines = "\n".join(rows)
    return f"""```python
import torch

model = torch.export.load("model.pt2").module()
{"".join(made)}outputs = model({", ".join(call)})
```

| input | type | shape |
|---|---|---|
{lines}

With these inputs it returns {", ".join(returned)}.

A {type(model).__name__} with {sum(weight.numel() for weight in model.parameters()):,} parameters, \
in evaluation mode. `weights.safetensors` has its weights by name."""


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _table(what: str, values: Mapping[Any, Any], called: str = "value") -> str:
    """A table with two columns."""
    if not values:
        return "None were recorded."
    rows = [f"| {what} | {called} |", "|---|---|"]
    for name, value in values.items():
        text = f"{value:.6g}" if isinstance(value, float) else as_text(value)
        rows.append(f"| {name} | {' '.join(text.replace('|', chr(92) + '|').splitlines())} |")
    return "\n".join(rows)


def _cited(field: str) -> str:
    """A field of the project's CITATION.cff, a line of YAML; empty if it has none."""
    try:
        text = (CODE / "CITATION.cff").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(rf"^{field}:[ ]*(.*)$", text, re.MULTILINE)
    value = found[1].strip() if found else ""
    return value[1:-1].replace("''", "'") if value[:1] in ("'", '"') else value
