"""Autocast for tensors on a GPU that is not there, as it is for those on a CUDA GPU.

torch's own casts are for tensors that C++ code knows to be CUDA's. Those of the stand-in it knows
to be of another backend, whose casts are made here, of the same operations: which ones torch says
itself, to what number format docs.pytorch.org/docs/stable/amp.html.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

IN_HALF = {
    *("_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "convolution"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "einsum", "linear"),
    *("linalg_multi_dot", "linalg_vecdot", "matmul", "mm", "mv", "prelu"),
    *("gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention"),
    *("_thnn_fused_gru_cell", "_thnn_fused_lstm_cell"),
}
"""Operations whose inputs are cast to 16 bits."""

IN_WIDEST = {
    *("addcdiv", "addcmul", "atan2", "bilinear", "cat", "cross", "dot", "grid_sampler"),
    *("index_put", "scatter_add", "stack", "tensordot", "vdot"),
}
"""Operations whose inputs are cast to the widest number format among them; all others that torch
casts for are computed in 32 bits."""

BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

ALL = torch.library.Library("_", "IMPL")
CAST = torch.library.Library("aten", "IMPL")


def replace(backend: str) -> None:
    """Have autocast for CUDA be that of a backend as well."""
    enable, set_dtype = torch.set_autocast_enabled, torch.set_autocast_dtype

    def enable_both(device_type: Any, enabled: bool | None = None) -> None:
        if device_type == "cuda":
            enable(backend, enabled)
        enable(*([device_type] if enabled is None else [device_type, enabled]))

    def set_both(device_type: str, dtype: torch.dtype) -> None:
        if device_type == "cuda":
            set_dtype(backend, dtype)
        set_dtype(device_type, dtype)

    torch.set_autocast_enabled = enable_both
    torch.set_autocast_dtype = set_both
    ALL.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in torch._C._dispatch_get_all_op_names():
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            CAST.impl(op, partial(_casting, op), "AutocastPrivateUse1")


def _casting(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operation on cast inputs."""
    with torch._C._ExcludeDispatchKeyGuard(BELOW):
        dtype = _dtype(op, (args, kwargs))
        args, kwargs = tree_map(lambda value: _cast(value, dtype), (args, kwargs))
        return op(*args, **kwargs)


def _dtype(op: Any, values: Any) -> torch.dtype:
    name = op.overloadpacket.__name__
    if name in IN_HALF:
        return torch.get_autocast_dtype("cuda")
    if name not in IN_WIDEST:
        return torch.float32
    dtype = torch.get_autocast_dtype("cuda")
    for value in torch.utils._pytree.tree_leaves(values):
        if _eligible(value):
            dtype = torch.promote_types(dtype, value.dtype)
    return dtype


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if _eligible(value) else value


def _eligible(value: Any) -> bool:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return floating and value.is_cuda and value.dtype != torch.float64
