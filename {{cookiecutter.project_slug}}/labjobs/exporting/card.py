"""The model card, README.md, as Hugging Face has them: a YAML header, then Markdown.

Source: huggingface.co/docs/hub/model-cards.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labjobs.cli.values import as_text
from labjobs.exporting import check, inputs
from labjobs.job import attempts, code, data, lines
from labjobs.paths import CODE

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
    data: data.Summary | None
    code: str
    attempt: str
    status: str
    change: str
    classes: Sequence[str]


def read(attempt: Path, change: str, classes: Sequence[str]) -> About:
    """Return what an attempt has left; `change` says how the code has changed since, `classes` are
    those of its data.

    Raises JobError for a damaged journal, OSError if it cannot be read.
    """
    recorded = lines.record_of(attempt, "settings.json")
    tags: dict[str, str] = {}
    metrics: dict[str, float] = {}
    with (attempt / lines.FILE).open("rb") as file:
        for line in lines.Reader(file).read():
            tags |= line.get("tags", {})
            metrics |= {k: v for k, v in line.get("metrics", {}).items() if k.startswith(RESULTS)}
    return About(
        job=attempt.parent.name,
        script=recorded.get("script", ""),
        settings=recorded.get("settings", {}),
        metrics=metrics,
        tags={name: tags[name] for name in TAGS if name in tags},
        data=data.summary(attempt),
        code=code.digest(attempt),
        attempt=attempt.name,
        status=attempts.status(attempt) or "not finished",
        change=change,
        classes=classes,
    )


def described(model: nn.Module, given: inputs.Inputs, shapes: list[dict[int, Any]]) -> str:
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
        outputs = check.tensors(model(*given.args, **given.kwargs))
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
    checked = "\n".join(f"- `{name}`: {check.in_words(found)}" for name, found in apart.items())
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


def _data(found: data.Summary | None) -> str:
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
