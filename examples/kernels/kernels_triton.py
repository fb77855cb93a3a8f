"""RMSNorm in Triton: forward and backward, each in one pass over a row.

Imported where Triton is installed (kernels.py). With TRITON_INTERPRET=1 it runs on the CPU, slowly,
in Python: that is how tests check it without a GPU.

Sources: arxiv.org/abs/1910.07467 (RMSNorm), triton-lang.org (tutorial on layer normalization).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from kernels import INTERPRETED

ROWS = 32
"""Number of rows over which one program sums the weight's gradient."""


def _forward(  # type: ignore[no-untyped-def]
    x, weight, y, scale, features, eps, BLOCK: tl.constexpr, NUMBER: tl.constexpr
):
    """Normalize one row of x (R, C). The row's 1/rms goes to `scale`, for the backward pass."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < features
    values = tl.load(x + row * features + column, inside, 0.0).to(NUMBER)
    rms = 1 / tl.sqrt(tl.sum(values * values, 0) / features + eps)
    gain = tl.load(weight + column, inside, 0.0).to(NUMBER)
    tl.store(scale + row, rms)
    tl.store(y + row * features + column, values * rms * gain, inside)


def _backward(  # type: ignore[no-untyped-def]
    dy,
    x,
    weight,
    scale,
    dx,
    dweight,
    rows,
    features,
    BLOCK: tl.constexpr,
    NUMBER: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The gradients of ROWS rows: of x, and summed over these rows, of the weight."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < features
    gain = tl.load(weight + column, inside, 0.0).to(NUMBER)
    total = tl.zeros((BLOCK,), NUMBER)
    first = program * ROWS
    for row in range(first, tl.minimum(first + ROWS, rows)):
        place = row * features + column
        gradient = tl.load(dy + place, inside, 0.0).to(NUMBER)
        rms = tl.load(scale + row)
        normal = tl.load(x + place, inside, 0.0).to(NUMBER) * rms
        total += gradient * normal
        scaled = gradient * gain
        mean = tl.sum(scaled * normal, 0) / features
        tl.store(dx + place, (scaled - normal * mean) * rms, inside)
    tl.store(dweight + program * features + column, total, inside)


forward_kernel, backward_kernel = triton.jit(_forward), triton.jit(_backward)


def forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the normalized x (..., C), and each row's 1/rms."""
    x = x.contiguous()
    features = x.shape[-1]
    rows = x.numel() // features
    y, scale = torch.empty_like(x), x.new_empty(rows, dtype=number(x))
    if rows:
        block = triton.next_power_of_2(features)
        args = (x, weight.contiguous(), y, scale, features, eps)
        launched(forward_kernel)[(rows,)](*args, BLOCK=block, NUMBER=triton_number(x))
    return y, scale


def backward(dy: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the weight."""
    dy, x = dy.contiguous(), x.contiguous()
    features = x.shape[-1]
    rows = x.numel() // features
    programs = (rows + ROWS - 1) // ROWS
    dx, parts = torch.empty_like(x), x.new_empty(programs, features, dtype=number(x))
    if rows:
        block = triton.next_power_of_2(features)
        args = (dy, x, weight.contiguous(), scale, dx, parts, rows, features)
        launch = launched(backward_kernel)[(programs,)]
        launch(*args, BLOCK=block, NUMBER=triton_number(x), ROWS=ROWS)
    return dx, parts.sum(0).to(weight.dtype)


def number(x: Tensor) -> torch.dtype:
    """Return the type to compute in: at least float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def triton_number(x: Tensor) -> Any:
    """Return Triton's name for it."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def launched(kernel: Any) -> Any:
    """Return a kernel that torch.compile can trace into."""
    return kernel if INTERPRETED else wrap_triton(kernel)
