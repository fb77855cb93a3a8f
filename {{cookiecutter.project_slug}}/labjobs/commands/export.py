"""The command `jobs.py export-model`, from its arguments to a folder."""

import importlib
import inspect
import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from labjobs import exit_status, layout
from labjobs.cli.flags import as_text
from labjobs.commands import exported_program
from labjobs.errors import JobError, SettingsError, cause, first_line
from labjobs.files import CODE, shown
from labjobs.job import attempts, code_evidence, data_evidence, journal
from labjobs.job.terminal import Interrupted, Interruption, leave
from labjobs.sources import fault
from labjobs.training import state

# The model card, README.md, as Hugging Face has them: a YAML header, then Markdown.
#
# Source: huggingface.co/docs/hub/model-cards.

RESULTS = ("test_", "best_")
"""How the metrics begin that a job logs at its end."""

TAGS = ("commit", "dirty", "versions", "device", "threads", "precision")
"""What is said of how the job ran."""


class About(NamedTuple):
    """What is known of the job that a network is from."""

    job: str
    script: str
    settings: Mapping[str, Any]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    data: data_evidence.Summary | None
    code: str
    attempt: str
    status: str
    change: str
    classes: Sequence[str]


def read_card(attempt: Path, change: str, classes: Sequence[str]) -> About:
    """Return what an attempt has left; `change` says how the code has changed since, `classes` are
    those of its data.

    Raises JobError for a damaged journal, OSError if it cannot be read.
    """
    recorded = journal.record_of(attempt, layout.SETTINGS)
    tags: dict[str, str] = {}
    metrics: dict[str, float] = {}
    with (attempt / layout.JOURNAL).open("rb") as file:
        for line in journal.Reader(file).read():
            tags |= line.get("tags", {})
            metrics |= {k: v for k, v in line.get("metrics", {}).items() if k.startswith(RESULTS)}
    return About(
        job=attempt.parent.name,
        script=recorded.get("script", ""),
        settings=recorded.get("settings", {}),
        metrics=metrics,
        tags={name: tags[name] for name in TAGS if name in tags},
        data=data_evidence.summary(attempt),
        code=code_evidence.digest(attempt),
        attempt=attempt.name,
        status=attempts.status_of(attempt) or "not finished",
        change=change,
        classes=classes,
    )


def described(
    model: nn.Module, given: exported_program.Inputs, shapes: list[dict[int, Any]]
) -> str:
    """Return how to load and call the network, what it takes and returns, in Markdown."""
    names = [*given.kwargs] or [*inspect.signature(model.forward).parameters]
    rows, made = [], []
    for name, tensor, dynamic in zip(names, given.tensors, shapes, strict=False):
        sizes = ["any" if place in dynamic else str(n) for place, n in enumerate(tensor.shape)]
        rows.append(f"| `{name}` | {_kind(tensor)} | ({', '.join(sizes)}) |")
        made.append(f"{name} = torch.zeros({tuple(tensor.shape)}, dtype={tensor.dtype})")
    names = names[: len(made)]  # forward may have more parameters, with defaults
    call = ", ".join(f"{name}={name}" if given.kwargs else name for name in names)
    weights = sum(weight.numel() for weight in model.parameters())
    with torch.no_grad():
        outputs = exported_program.tensors(model(*given.args, **given.kwargs))
    returned = ", ".join(f"{_kind(each)} {tuple(each.shape)}" for each in outputs)
    return "\n".join(
        [
            "```python",
            "import torch",
            "",
            'model = torch.export.load("model.pt2").module()',
            *made,
            f"outputs = model({call})",
            "```",
            "",
            "| input | type | shape |",
            "|---|---|---|",
            *rows,
            "",
            f"With these inputs it returns {returned}.",
            "",
            f"A {type(model).__name__} with {weights:,} parameters, in evaluation mode. "
            "`weights.safetensors` has its weights by name.",
        ]
    )


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def as_markdown(about: About, use: str, apart: Mapping[str, float]) -> str:
    """Return the card; `apart` is by file how far its outputs are from the network's."""
    title = _cited("title")
    license = _cited("license")
    named = f"license: {license.lower().removesuffix('-or-later')}\n" if license else ""
    changed = f"\n\nExported with code that had changed since: {about.change}." * bool(about.change)
    ran = {"script": f"{about.script}.py", "attempt": about.attempt, "code": about.code}
    checked = "\n".join(
        f"- `{name}`: {exported_program.in_words(found)}" for name, found in apart.items()
    )
    return f"""---
library_name: pytorch
{named}tags:
- torch.export
---

# {title}, job {about.job}

{_cited("abstract")}

The best weights of the job `{about.job}` ({about.status}) of the project {title}.{changed}

## Use

{use}

Compared with the network that was exported:

{checked}

## Data

{_data(about.data)}
{_classes(about.classes)}
## Results

As measured by the job.

{_table("metric", about.metrics)}

## Settings

{_table("setting", about.settings)}

## Code

{_table("what", {**ran, **about.tags})}

## Licence

{license or "The project names no licence."}
"""


def _data(found: data_evidence.Summary | None) -> str:
    if not found:
        return "The job has recorded no files; the settings below name the data."
    return f"`{found.name}`: {found.files} files, {found.bytes} bytes, fingerprint `{found.digest}`"


def _classes(names: Sequence[str]) -> str:
    """The names of classes by their numbers, with an empty line after them; empty without any."""
    return f"\n{_table('class', dict(enumerate(names)), 'name')}\n" if names else ""


def _table(what: str, values: Mapping[Any, Any], called: str = "value") -> str:
    """A table with two columns."""
    if not values:
        return "None were recorded."
    rows = [f"| {name} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join([f"| {what} | {called} |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else as_text(value)
    return " ".join(text.replace("|", "\\|").splitlines())


def _cited(field: str) -> str:
    """A field of the project's CITATION.cff, a line of YAML; empty if it has none."""
    try:
        text = (CODE / "CITATION.cff").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(rf"^{field}:[ ]*(.*)$", text, re.MULTILINE)
    value = found[1].strip() if found else ""
    return value[1:-1].replace("''", "'") if value[:1] in ("'", '"') else value


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
    example: exported_program.Make
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
        exported_program.check_onnx()
    attempt = state.attempt_to_load(job, wanted.kind, wanted.runs_root)
    loaded = _loaded(wanted)
    if loaded.change:
        leave(exit_status.FAILED, f"jobs.py: {loaded.change}")
    if attempts.status_of(attempt) != "finished":
        leave(
            exit_status.FAILED,
            f"jobs.py: job {job} has not finished; these are its best weights so far",
        )
    with _whole(out) as folder:
        apart = _write(folder, loaded, onnx)
        about = read_card(attempt, loaded.change, loaded.classes)
        given = exported_program.make_inputs(loaded.example, exported_program.TRACED)
        shapes = exported_program.dynamic_shapes(loaded.example)
        text = as_markdown(about, described(loaded.model, given, shapes), apart)
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
            "network; `python jobs.py docs export` shows one"
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
    network: exported_program.Call = lambda given: model(*given.args, **given.kwargs)  # noqa: E731
    traced = exported_program.traced(model, example)
    exported_program.save(traced, folder / MODEL)
    save_model(model, str(folder / WEIGHTS), {"format": "pt"})
    (folder / WEIGHTS).chmod((folder / MODEL).stat().st_mode)  # only its owner may read it
    saved = {MODEL: exported_program.opened(folder / MODEL)}
    if onnx:
        exported_program.save_onnx(traced, folder / ONNX)
        saved[ONNX] = exported_program.opened_onnx(folder / ONNX)
    return {
        name: exported_program.difference(network, call, example, name)
        for name, call in saved.items()
    }


def _say(out: Path, apart: dict[str, float], as_json: bool) -> None:
    if as_json:
        about: dict[str, Any] = {
            "folder": str(out),
            "files": sorted(path.name for path in out.iterdir()),
            "difference": apart,
            "tolerance": exported_program.TOLERANCE,
            "examples": exported_program.COUNTS,
        }
        print(json.dumps(about, indent=2))
        return
    for name, fraction in apart.items():
        print(f"{name}: {exported_program.in_words(fraction)}")
    print(f"exported: {shown(out)}")
