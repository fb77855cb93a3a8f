"""Whether an exported program gives the outputs of the network that it was made from."""

import io
import logging
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from labjobs.errors import JobError, first_line

# Example inputs of a network, as example_input() in the student's models.py makes them.

Make = Callable[[int], Any]
"""Returns inputs for a number of examples."""

NAME = "example_input"

TRACED, OTHER = 4, 3
"""Numbers of examples to tell by which dimensions grow with it. torch.export would take 1 for a
constant, and an even and an odd number have no factor in common."""


class Inputs(NamedTuple):
    """Tensors that a network is called with: by position, or by the names of its parameters."""

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, in order."""
        return [*self.args, *self.kwargs.values()]


def make_inputs(example: Make, examples: int) -> Inputs:
    """Return inputs for a number of examples, the same each time.

    Raises JobError if they are not tensors.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(examples)
        made = example(examples)
    by_name = made if isinstance(made, dict) else {}
    by_place = made if isinstance(made, tuple) else () if isinstance(made, dict) else (made,)
    found = Inputs(by_place, by_name)
    if not found.tensors or not all(isinstance(each, Tensor) for each in found.tensors):
        raise JobError(f"{NAME} in models.py: must return a tensor, a tuple or a dict of tensors")
    return found


def dynamic_shapes(example: Make) -> list[dict[int, Any]]:
    """Return for each tensor the dimensions that grow with the number of examples, as torch.export
    takes them. Raises JobError if none do."""
    one, other = (make_inputs(example, count).tensors for count in (TRACED, OTHER))
    shapes = [
        {
            place: Dim.DYNAMIC
            for place, sizes in enumerate(zip(a.shape, b.shape, strict=True))
            if len({*sizes}) > 1
        }
        for a, b in zip(one, other, strict=True)
    ]
    if not any(shapes):
        raise JobError(
            f"{NAME} in models.py: must return the number of examples that it is asked for"
        )
    return shapes


# A network as a program that needs no code of the project: torch.export's and, from it, ONNX.
#
# Sources: docs.pytorch.org/docs/stable/user_guide/torch_compiler/export.html,
# docs.pytorch.org/docs/stable/onnx_export.html.

Call = Callable[[Inputs], Any]
"""Returns the outputs of some inputs."""

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")

LARGEST_ONNX = 1_500_000_000
"""Bytes of weights above which they are written next to the model: a protobuf holds 2 GB."""

SHORT = 200
"""Characters of a reason, about."""

COLOURS = re.compile("\x1b\\[[0-9;]*m")


def traced(model: nn.Module, example: Make) -> ExportedProgram:
    """Return the network as a program, for any number of examples.

    Raises JobError if torch.export cannot follow its code.
    """
    shapes = dynamic_shapes(example)
    given = make_inputs(example, TRACED)
    named = dict(zip(given.kwargs, shapes, strict=True)) if given.kwargs else tuple(shapes)
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(model, given.args, given.kwargs, dynamic_shapes=named)
    except Exception as error:  # torch has dozens of kinds
        raise JobError(
            f"torch.export cannot follow the network ({_reason(error)}); "
            "`python jobs.py docs export` shows what to write instead"
        ) from error


def _reason(error: Exception) -> str:
    """torch's reason: the first sentence of the first thing that it lists, or of all."""
    listed = [line[2:] for line in map(str.strip, str(error).splitlines()) if line[:2] == "- "]
    return _short((listed or [first_line(error)])[0].split(". ")[0])


def _short(reason: str) -> str:
    """A reason of whole words, in one colour."""
    return textwrap.shorten(COLOURS.sub("", reason), SHORT, placeholder=" …")


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
    with _quiet(), _File(path, "w") as file:
        torch.export.save(program, file)
    if file.error:
        raise file.error


class _File(io.FileIO):
    """A file that keeps its error to itself: torch's writer, in C++, would end the process."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all data, if there was no error; returns its length."""
        left = memoryview(data)
        try:
            while left and not self.error:
                left = left[super().write(left) :]
        except OSError as error:
            self.error = error
        return len(data)


def opened(path: Path) -> Call:
    """Return a program as torch alone reads it."""
    module = torch.export.load(path).module()
    return lambda given: module(*given.args, **given.kwargs)


def check_onnx() -> None:
    """Raise JobError if a package is missing that ONNX needs."""
    if missing := [name for name in ONNX_PACKAGES if not find_spec(name)]:
        raise JobError(f"--onnx: {', '.join(missing)} missing; type uv sync --group onnx")


def save_onnx(program: ExportedProgram, path: Path) -> None:
    """Write a program as ONNX. Raises JobError if it has no such operation."""
    size = sum(weight.nbytes for weight in program.state_dict.values())
    try:
        with _quiet():
            torch.onnx.export(
                program, f=path, dynamo=True, external_data=size > LARGEST_ONNX, verbose=False
            )
    except Exception as error:
        first = _first(error)
        if isinstance(first, OSError):  # such as a full disk
            raise first from None
        raise JobError(f"--onnx: torch.onnx says: {_short(first_line(first))}") from error


def _first(error: BaseException) -> BaseException:
    """The error that an error comes from: torch.onnx's own say in which of its steps it was."""
    return _first(error.__cause__) if error.__cause__ else error


def opened_onnx(path: Path) -> Call:
    """Return a function that runs an ONNX model on the CPU with onnxruntime."""
    import onnxruntime  # slow to import

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def call(given: Inputs) -> list[Tensor]:
        """Return the model's outputs for these inputs."""
        arrays = (tensor.numpy() for tensor in given.tensors)
        found = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(array) for array in found]

    return call


COUNTS = (1, 2, 3, 8)
"""Numbers of examples to compare."""

TOLERANCE = 1e-4
"""The largest difference that is allowed, as a fraction of the largest number in an output."""


@torch.no_grad()
def difference(network: Call, exported: Call, example: Make, name: str) -> float:
    """Return the largest difference between the outputs of a network and of what was exported, as
    a fraction of the largest number in an output.

    Raises JobError if it is above TOLERANCE.
    """
    worst = 0.0
    for count in COUNTS:
        given, counted = make_inputs(example, count), f"{count} example{'s' * (count > 1)}"
        wanted = tensors(network(given))
        try:
            found = tensors(exported(given))
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
    return max(map(_fraction, wanted, found), default=0.0)


def _fraction(wanted: Tensor, found: Tensor) -> float:
    same = (wanted == found) | (wanted.isnan() & found.isnan())
    if same.all():
        return 0.0
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return math.inf
    apart = (wanted - found).abs()[~same].nan_to_num(nan=math.inf).max().item()
    largest = wanted[wanted.isfinite()].abs()
    return float(apart / largest.max().item()) if largest.any() else math.inf


def in_words(fraction: float) -> str:
    """Return a difference that was found as a sentence."""
    *first, last = COUNTS
    counts = f"{', '.join(map(str, first))} and {last} examples"
    found = f"differ by {fraction:.2g} of the largest one" if fraction else "are equal bit for bit"
    return f"the outputs for {counts} {found} ({TOLERANCE:g} is allowed)"
