"""The functions of torch's Python code that make tensors past its dispatcher.

Facts of torch that this relies on (2.15; files of github.com/pytorch/pytorch):
- aten/src/ATen/native/native_functions.yaml: operations that make tensors have an argument `device`
  and no tensor; they end at the kernel of the device, in any thread.
- torch/nn/modules/module.py, `to`: with `set_swap_module_params_on_conversion` a parameter becomes
  one of another class and stays the same object.
- torch/optim/optimizer.py, `_foreach_supported_types`: what `foreach` is the default for on a GPU.
- torch/serialization.py, `map_location`: puts storages on a device, not tensors.
"""

from collections.abc import Iterable, Iterator
from functools import wraps
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.optim.optimizer import _foreach_supported_types
from torch.profiler import ProfilerActivity
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from stand_in import autocast, graphs
from stand_in.driver import GENERATORS, driver
from stand_in.recording import Graph
from stand_in.tensors import BACKEND, HOST, OnGPU, aten, copy_from, made_by

LIBRARY = torch.library.Library("aten", "IMPL")


class Generator(torch.Generator):
    """A generator of a GPU, which is one of the CPU's; and the CPU's own."""

    def __new__(cls, device: Any = HOST) -> "Generator":
        made: Generator = super().__new__(cls)
        made._device = torch.device(device)
        if made._device.type != "cpu":
            GENERATORS[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device


class Profiler(torch.profiler.profile):
    """torch's profiler, of the host alone: of a GPU it would ask the driver at each operation."""

    def __init__(self, *, activities: Iterable[ProfilerActivity], **options: Any) -> None:
        kept = [one for one in activities if one is not ProfilerActivity.CUDA]
        super().__init__(activities=kept, **options)


def replace() -> None:
    """Have torch make such tensors wherever one is to be on a GPU."""
    _setup_privateuseone_for_python_backend(BACKEND)
    autocast.replace(BACKEND)
    for op in _makers():
        for key in ("CUDA", "PrivateUse1"):
            LIBRARY.impl(op, made_by(op), key, allow_override=True)
    LIBRARY.impl(aten._copy_from.default, copy_from, "PrivateUse1")
    torch.Generator = Generator  # type: ignore[misc]
    torch.compile = _compiling(torch.compile)
    torch.compiler.cudagraph_mark_step_begin = graphs.mark_step_begin
    torch.load = _loading(torch.load)
    torch.autograd.backward = _on_its_streams(torch.autograd.backward)
    torch.cuda.CUDAGraph = Graph  # type: ignore[misc, assignment]
    torch.profiler.profile = Profiler  # type: ignore[misc]
    torch.__future__.set_swap_module_params_on_conversion(True)
    _foreach_supported_types.append(OnGPU)
    Tensor.is_pinned = _is_pinned  # type: ignore[assignment]
    Tensor.pin_memory = lambda self, device=None: _pin(self.clone())  # type: ignore
    for name in ("empty", "zeros", "ones", "full", "tensor"):
        setattr(torch, name, _pinning(getattr(torch, name)))


def _makers() -> Iterator[Any]:
    """Yield the operations that make a tensor of none."""
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and torch._C._dispatch_has_kernel(name):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            op = getattr(getattr(aten, packet), overload or "default")
            arguments = {argument.name: str(argument.type) for argument in op._schema.arguments}
            makes = "device" in arguments and "Tensor" not in " ".join(arguments.values())
            if makes and not op.has_kernel_for_dispatch_key("CompositeImplicitAutograd"):
                yield op


PINNED: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
"""Tensors in pinned memory, by its address: views of them are in it too."""


def _pin(tensor: Tensor) -> Tensor:
    PINNED[tensor.untyped_storage().data_ptr()] = tensor
    return tensor


def _is_pinned(tensor: Tensor, device: Any = None) -> bool:
    return not tensor.is_cuda and tensor.untyped_storage().data_ptr() in PINNED


def _pinning(make: Any) -> Any:
    """Return a function of torch that can make pinned tensors without CUDA."""

    @wraps(make)
    def pinning(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        made: Tensor = make(*args, **kwargs)
        return _pin(made) if pin_memory else made

    return pinning


def _compiling(compile: Any) -> Any:
    """Return torch.compile without inductor, whose code is a GPU's; CUDA graphs run as they are."""

    def compiling(function: Any, mode: str | None = None, **how: Any) -> Any:
        if mode in graphs.MODES:
            return graphs.graphed(function)
        if driver.late:  # which would not see what compiled code reads
            return function
        return compile(function, backend="aot_eager", **how)

    return compiling


def _on_its_streams(backward: Any) -> Any:
    """Return torch's backward pass, on the streams of the thread that asks for it; torch itself
    takes those of the forward pass (torch/csrc/autograd/engine.cpp), here the same ones."""

    @wraps(backward)
    def run(*args: Any, **kwargs: Any) -> Any:
        driver.of_backward = dict(driver.thread.streams)
        return backward(*args, **kwargs)

    return run


def _loading(load: Any) -> Any:
    """Return torch.load, for tensors that are to be on a GPU too."""

    @wraps(load)
    def loading(*args: Any, map_location: Any = None, **kwargs: Any) -> Any:
        to = torch.device(map_location) if isinstance(map_location, str) else map_location
        if not isinstance(to, torch.device) or to.type == "cpu":
            return load(*args, map_location=map_location, **kwargs)
        found = load(*args, map_location=HOST, **kwargs)
        return tree_map(lambda value: value.to(to) if isinstance(value, Tensor) else value, found)

    return loading
