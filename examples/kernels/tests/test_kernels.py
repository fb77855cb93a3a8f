"""Kernels: the same values and gradients as plain torch, on the CPU, interpreted, and on a GPU."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import HERE
from torch.autograd import gradcheck
from torch.library import opcheck

import kernels

SHAPES = [(64, 256), (3, 5, 257), (33, 7), (0, 4)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
needs_triton = pytest.mark.skipif(not kernels.HAS_TRITON, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(autouse=True)
def prepared():
    kernels.prepare()


def made(shape, dtype, device="cpu"):
    """Inputs and weights, with numbers on both sides of 0, and the gradient of the result."""
    torch.manual_seed(0)
    x, gradient = torch.randn(2, *shape, dtype=dtype, device=device)
    weight = torch.randn(shape[-1], dtype=max(dtype, torch.float32, key=lambda t: t.itemsize))
    return x.requires_grad_(), weight.to(device).requires_grad_(), gradient


def results(function, x, weight, gradient):
    y = function(x, weight)
    return y, *torch.autograd.grad(y, (x, weight), gradient)


def check(function, plain, shape, dtype, device="cpu"):
    inputs = made(shape, dtype, device)
    found, wanted = results(function, *inputs), results(plain, *inputs)
    # A weight's gradient is a sum over all rows, here of numbers that have 8 bits.
    close = {"rtol": 2e-2, "atol": 0.2} if dtype == torch.bfloat16 else {}
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **close)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_relu_squared(shape, dtype):
    check(kernels.relu_squared, kernels.plain_relu_squared, shape, dtype)


def test_relu_squared_of_what_does_not_lie_in_order():
    x, bias, gradient = made((8, 6), torch.float32)
    both = [results(f, x.t(), bias[:4].repeat(2), gradient.t()) for f in functions()]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


def functions():
    return kernels.relu_squared, kernels.plain_relu_squared


def test_relu_squared_has_the_right_gradient():
    x, bias, _ = made((5, 3), torch.float64)
    assert gradcheck(kernels.relu_squared, (x, bias))
    opcheck(torch.ops.kernels.relu_squared.default, (x, bias))


def test_relu_squared_can_be_compiled_as_one_graph():
    compiled = torch.compile(kernels.relu_squared, fullgraph=True, backend="aot_eager")
    check(compiled, kernels.plain_relu_squared, (64, 256), torch.float32)


def test_relu_squared_refuses_a_bias_of_another_size():
    with pytest.raises(RuntimeError, match="takes"):
        kernels.relu_squared(torch.zeros(2, 3), torch.zeros(2))


INTERPRETED = """
import torch
from torch.autograd import gradcheck
import kernels
from test_kernels import check, made

assert kernels.INTERPRETED
kernels.prepare()
for shape in [(64, 256), (3, 5, 257), (33, 7), (0, 4)]:
    check(kernels.rms_norm, kernels.plain_rms_norm, shape, torch.float32)
check(kernels.rms_norm, kernels.plain_rms_norm, (33, 7), torch.bfloat16)
x, weight, _ = made((4, 3), torch.float64)
assert gradcheck(kernels.rms_norm, (x, weight))
"""


@needs_triton
def test_rms_norm_in_triton_s_interpreter():
    """Triton reads its variable when it is imported, so this needs a process of its own."""
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{HERE}:{HERE / 'tests'}"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=env, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr


@needs_gpu
@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_on_a_gpu(shape, dtype):
    check(kernels.rms_norm, kernels.plain_rms_norm, shape, dtype, "cuda")
    compiled = torch.compile(kernels.rms_norm, fullgraph=True)
    check(compiled, kernels.plain_rms_norm, shape, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_rms_norm_is_torch_s(dtype):
    """The reference of the others."""
    x, weight, _ = made((8, 5), dtype)
    wanted = torch.nn.functional.rms_norm(x.to(weight.dtype), (5,), weight, kernels.EPS)
    torch.testing.assert_close(kernels.plain_rms_norm(x, weight), wanted.to(dtype))
