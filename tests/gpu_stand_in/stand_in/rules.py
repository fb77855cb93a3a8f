"""What a GPU asks of an operation: one device, CUDA's random numbers, determinism, and who waits.

Facts of torch that this relies on (2.15; files of github.com/pytorch/pytorch):
- aten/src/ATen/TensorIterator.cpp: an elementwise operation takes a number on the CPU, any
  other operation wants all tensors on one device, but for copies and indices.
- aten/src/ATen/native/cuda/Copy.cu: a copy between host and GPU is waited for unless it is
  `non_blocking`, from or into pinned memory.
- aten/src/ATen/native/TensorConversions.cpp, `_to_copy`: a `non_blocking` copy from a GPU to the
  host is made in pinned memory, and the host goes on.
- torch/csrc/autograd/python_variable_indexing.cpp: a list is an index on the CPU; what indexes a
  GPU's tensor from there is copied, which is waited for; a mask is turned into indices, whose
  number the host reads.
- torch/csrc/utils/tensor_new.cpp: numbers of Python's become a tensor on the host, which is copied.
- c10/cuda/CUDAFunctions.cpp: after `set_sync_debug_mode` each such wait is a warning or an error.
- torch/__init__.py, `use_deterministic_algorithms`: what is refused on a GPU; cuBLAS wants
  CUBLAS_WORKSPACE_CONFIG (aten/src/ATen/Context.cpp).
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from stand_in.driver import GENERATORS, driver

HOST = torch.device("cpu")

aten = torch.ops.aten

WAITS = {
    aten._linalg_check_errors.default,
    aten._local_scalar_dense.default,
    aten._unique2.default,
    aten.allclose.default,
    aten.bincount.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
}
"""Operations whose result, or its shape, the host has to read."""

INDEXED = {
    aten._index_put_impl_.default,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
}
"""Operations with tensors as indices."""

MIXES = {
    aten._index_put_impl_.default,
    aten.copy_.default,
    aten.fill_.Tensor,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten.masked_fill.Tensor,
    aten.masked_fill_.Tensor,
}
"""Operations that take tensors from several devices."""

NOT_DETERMINISTIC = {
    *("_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "histc", "put_"),
    *("nll_loss2d_forward", "upsample_bilinear2d_backward", "grid_sampler_2d_backward"),
}
"""Some of the operations that are refused where all has to be deterministic."""

CUBLAS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"}


def one_device(op: Any, tensors: Iterable[Tensor]) -> None:
    """Raise RuntimeError, as torch does, for tensors of several devices."""
    if op in MIXES:
        return
    number = torch.Tag.pointwise in op.tags or op.name().startswith("aten::_foreach")
    found = {t.device for t in tensors if t.is_cuda or not (number and t.ndim == 0)}
    if len(found) > 1:
        names = " and ".join(sorted(map(str, found)))
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{names}! ({op})"
        )


def waits(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if op is aten.copy_.default:
        to, source = args[:2]
        told = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        host = source if to.is_cuda else to
        return to.is_cuda != source.is_cuda and not (told and host.is_pinned())
    if op in INDEXED:
        found = [index for index in args[1] if index is not None]
        masks = op is aten.index.Tensor and any(index.dtype is torch.bool for index in found)
        return masks or any(not index.is_cuda for index in found)
    if op is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None
    copied = op is aten._to_copy.default and kwargs.get("device") == HOST
    return op in WAITS or (copied and not kwargs.get("non_blocking"))


def deterministic(op: Any) -> None:
    """Raise RuntimeError for an operation that is not deterministic, where all has to be."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    name = op.overloadpacket.__name__
    if name in NOT_DETERMINISTIC:
        raise RuntimeError(f"{name} does not have a deterministic implementation")
    if name in CUBLAS and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        raise RuntimeError(f"{name} needs CUBLAS_WORKSPACE_CONFIG to be deterministic")


@contextmanager
def random_numbers(op: Any, args: Iterable[Any], gpu: torch.device) -> Iterator[Any]:
    """Take an operation's random numbers from the GPU's stream, not from the CPU's; yields the
    generator that the operation draws from, or None."""
    given = [value for value in args if isinstance(value, torch._C.Generator)]
    if any(generator._cdata not in GENERATORS for generator in given):
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    if given or torch.Tag.nondeterministic_seeded not in op.tags:
        yield given[0] if given else None
        return
    own, cpu = torch.cuda.default_generators[gpu.index], torch.default_generator
    with driver.late.lock if driver.late else nullcontext():  # other threads draw for it too
        before = cpu.get_state()
        cpu.set_state(own.get_state())
        try:
            yield cpu
        finally:
            own.set_state(cpu.get_state())
            cpu.set_state(before)
