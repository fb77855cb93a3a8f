"""Operations with custom kernels, which torch's autograd and torch.compile treat as built-in ones.

    relu_squared(x, bias)    C++ on the CPU (kernels.cpp), elsewhere plain torch
    rms_norm(x, weight)      Triton on a CUDA GPU (kernels_triton.py), elsewhere plain torch

The device of the tensors decides which kernel runs. This is not a setting, because the results are
the same except for their last digits, as on different devices. KERNELS=plain in the environment
switches the kernels off, to find out whether one is at fault, or for a machine without a compiler.

docs/example.md says how to write, test and measure such kernels. Source:
docs.pytorch.org/docs/stable/library.html.
"""

import hashlib
import logging
import os
import re
import shutil
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labjobs import CODE, PROJECT, SettingsError

SOURCE = "kernels.cpp"  # the engine counts a file that a constant names as code

EPS = 1e-6

KERNELS = os.environ.get("KERNELS", "")
PLAIN = KERNELS == "plain"
HAS_TRITON = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own variable: on the CPU too


def relu_squared(x: Tensor, bias: Tensor) -> Tensor:
    """Return max(x + bias, 0)² of x (..., C) and bias (C,), in x's type. Needs `prepare`."""
    if PLAIN or x.device.type != "cpu":
        return plain_relu_squared(x, bias)
    result: Tensor = torch.ops.kernels.relu_squared(x, bias)
    return result


def plain_relu_squared(x: Tensor, bias: Tensor) -> Tensor:
    """Return the same, computed by torch's own operations."""
    return (x + bias).relu().square().to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return x (..., C) divided by the root of the mean of its squares over C, times weight (C,).
    Needs `prepare`."""
    if PLAIN or not HAS_TRITON or not (x.is_cuda or INTERPRETED):
        return plain_rms_norm(x, weight)
    result: Tensor = torch.ops.kernels.rms_norm(x, weight, EPS)[0]
    return result


def plain_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return the same, computed by torch's own operations."""
    values = x if x.dtype == torch.float64 else x.float()
    scale = (values.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return (values * scale * weight).to(x.dtype)


@cache
def prepare() -> None:
    """Make the operations known to torch; compiles kernels.cpp if that has not been done.

    Raises SettingsError if it cannot be compiled.
    """
    if KERNELS not in ("", "plain"):
        raise SettingsError(f"KERNELS={KERNELS}: must be plain, or unset")
    if PLAIN:
        return
    _prepare_cpp()
    if HAS_TRITON:
        _prepare_triton()


# C++


def _prepare_cpp() -> None:
    """Load the library that is compiled from this source with this torch."""
    source = CODE / SOURCE
    about = hashlib.sha256(source.read_bytes() + torch.__version__.encode())
    library = PROJECT / ".cache" / "kernels" / about.hexdigest()[:16] / "kernels.so"
    if library.exists():
        torch.ops.load_library(library)
    else:
        _compile(source, library)
    torch.library.register_fake("kernels::relu_squared", lambda x, bias: torch.empty_like(x))
    torch.library.register_fake(
        "kernels::relu_squared_backward", lambda gradient, x, bias: torch.empty_like(x)
    )
    torch.library.register_autograd(
        "kernels::relu_squared",
        _relu_squared_backward,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )


def _relu_squared_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    x, bias = ctx.saved_tensors
    dx: Tensor = torch.ops.kernels.relu_squared_backward(gradient, x, bias)
    return dx, dx.to(bias.dtype).sum_to_size(bias.shape)


def _compile(source: Path, library: Path) -> None:
    """Compile in a folder beside the library's and move it there: other jobs may do so at once.

    Raises SettingsError with the compiler's first error.
    """
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # no GPU: no matter
    from torch.utils import cpp_extension  # takes a while to import

    library.parent.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=library.parent.parent))
    try:
        cpp_extension.load(
            "kernels",
            [str(source)],
            extra_cflags=["-O3"],  # not -march=native: machines may share this folder
            build_directory=str(folder),
            is_python_module=False,
        )
        folder.chmod(library.parent.parent.stat().st_mode)  # readable by the same users
        folder.rename(library.parent)
    except (RuntimeError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        if library.exists():  # another job was first; what this one has loaded is the same
            return
        lines = str(error).splitlines()
        why = next((line for line in lines if re.search(r"\berror\b", line)), lines[0])
        needs = "a C++ compiler, such as g++, and ninja; KERNELS=plain works without them"
        raise SettingsError(f"{SOURCE} cannot be compiled: {why.strip()} ({needs})") from error


# Triton


def _prepare_triton() -> None:
    """Define the operation of kernels_triton.py, so that torch.compile can see into it."""
    import kernels_triton

    forward, backward = kernels_triton.forward, kernels_triton.backward
    op: Any = torch.library.triton_op("kernels::rms_norm", forward, mutates_args=())
    back: Any = torch.library.triton_op("kernels::rms_norm_backward", backward, mutates_args=())

    def keep(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the backward pass needs: both inputs, and one number per row."""
        ctx.save_for_backward(*inputs[:2], output[1])
        ctx.mark_non_differentiable(output[1])

    def differentiate(ctx: Any, dy: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of x and weight; eps has none."""
        return *back(dy, *ctx.saved_tensors), None

    op.register_autograd(differentiate, setup_context=keep)
