"""A network as a program that needs no code of the project: torch.export's and, from it, ONNX.

Sources: docs.pytorch.org/docs/stable/user_guide/torch_compiler/export.html,
docs.pytorch.org/docs/stable/onnx_export.html.
"""

import io
import logging
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from labjobs.errors import JobError, first_line
from labjobs.exporting import inputs

Call = Callable[[inputs.Inputs], Any]
"""Returns the outputs of some inputs."""

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")

LARGEST_ONNX = 1_500_000_000
"""Bytes of weights above which they are written next to the model: a protobuf holds 2 GB."""

SHORT = 200
"""Characters of a reason, about."""

COLOURS = re.compile("\x1b\\[[0-9;]*m")


def traced(model: nn.Module, example: inputs.Make) -> ExportedProgram:
    """Return the network as a program, for any number of examples.

    Raises JobError if torch.export cannot follow its code.
    """
    shapes = inputs.dynamic_shapes(example)
    given = inputs.make(example, inputs.TRACED)
    named = dict(zip(given.kwargs, shapes, strict=True)) if given.kwargs else tuple(shapes)
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(model, given.args, given.kwargs, dynamic_shapes=named)
    except Exception as error:  # torch has dozens of kinds
        raise JobError(
            f"torch.export cannot follow the network ({_reason(error)}); "
            "docs/export.md shows what to write instead"
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

    def call(given: inputs.Inputs) -> list[Tensor]:
        """Return the model's outputs for these inputs."""
        arrays = (tensor.numpy() for tensor in given.tensors)
        found = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(array) for array in found]

    return call
