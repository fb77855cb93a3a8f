"""Tensors on a GPU that is not there: each computes with a tensor on the host.

Facts of torch that this relies on (2.15; files of github.com/pytorch/pytorch):
- torch/_tensor.py, torch/_subclasses/fake_tensor.py: a wrapper subclass says that it is on any
  device, autograd takes it at its word, and its `__torch_dispatch__` computes.
- torch/csrc/autograd/engine.cpp: each backward pass asks the driver about CUDA; so C++ code is told
  of another backend, PrivateUse1, which torch/utils/backend_registration.py makes in Python. Its
  device has no index but 0.
- torch/utils/_python_dispatch.py, `is_traceable_wrapper_subclass`: torch.compile traces what a
  subclass computes, if it has `__tensor_flatten__`.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from stand_in import late, recording, rules
from stand_in.driver import driver, key
from stand_in.rules import HOST, aten

BACKEND = "standin"
"""What torch's C++ code calls these GPUs."""

GPUS = ("cuda", BACKEND)


class OnGPU(Tensor):
    """A tensor on a GPU; `_host` has its numbers."""

    _host: Tensor
    _device: torch.device
    _block: late.Block | None

    @staticmethod
    def __new__(cls, host: Tensor, device: torch.device) -> "OnGPU":
        driver.check(device.index)
        made: OnGPU = Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device(BACKEND, 0),
        )
        made._host, made._device = host, device
        made._block = late.block(host, device.index)
        driver.latest = device.index
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return compute(op, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        """What torch.compile traces: the numbers on the host."""
        return ["_host"], self._device

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], device: torch.device, *_: Any) -> "OnGPU":
        return OnGPU(inner["_host"], device)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def is_cuda(self) -> bool:
        return True

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """An array of the numbers, if forced."""
        if not force:
            raise TypeError(f"can't convert {self.device} device type tensor to numpy")
        return self.detach().cpu().numpy()

    def __array__(self, *_: object, **__: object) -> Any:
        return self.numpy()

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"{self._host}, on {self._device}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A copy of the numbers; a parameter stays one."""
        copy = aten.clone.default(self.detach()).requires_grad_(self.requires_grad)
        copy.__dict__.update({k: v for k, v in self.__dict__.items() if k == "_is_param"})
        memo[id(self)] = copy
        return copy


def compute(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do an operation that has a tensor on a GPU, as far as a GPU would."""
    flat, form = tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, Tensor)]
    rules.one_device(op, tensors)
    if rules.waits(op, args, kwargs):
        recording.refuse_wait()
        driver.waited()
    rules.deterministic(op)
    if op is aten.record_stream.default:
        if args[0]._block:
            args[0]._block.used_by(key(args[1]))
        return None
    if op is aten._fused_sdp_choice.default:
        return 0  # attention by plain operations: the CPU's own kernel is not a GPU's
    gpu = next(tensor.device for tensor in tensors if isinstance(tensor, OnGPU))
    host_args, host_kwargs = tree_unflatten([_read(op, value) for value in flat], form)
    to = kwargs.get("device")
    device = gpu if to is None or to.type == BACKEND else meant(to)
    given = {id(on_host(tensor)): tensor for tensor in tensors}
    if driver.recording:
        generators = [value for value in flat if isinstance(value, torch._C.Generator)]
        numbers = partial(rules.random_numbers, op, generators, gpu)
        result = driver.recording.do(op, host_args, host_kwargs, numbers)
        flat, form = tree_flatten(result)
        return tree_unflatten([_back(value, given, device) for value in flat], form)
    with rules.random_numbers(op, flat, gpu) as generator:
        if driver.late is None:
            result = op(*host_args, **host_kwargs)
        elif op is aten.copy_.default:
            result, source = host_args[:2]
            late.copy(result, source, not rules.waits(op, args, kwargs), gpu.index)
        elif device == HOST:
            result = late.to_host(op, *host_args, kwargs=host_kwargs, gpu=gpu.index)
        else:
            result = late.operate(op, host_args, host_kwargs, generator, gpu.index)
    flat, form = tree_flatten(result)
    return tree_unflatten([_back(value, given, device) for value in flat], form)


def copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy where torch does without subclasses, as in torch.tensor."""
    recording.refuse_wait()
    driver.waited()
    if driver.late:
        gpu = next(each.device for each in (to, source) if each.is_cuda)
        late.copy(on_host(to), on_host(source), non_blocking=False, gpu=gpu.index)
    else:
        on_host(to).copy_(on_host(source))
    return to


def made_by(op: Any) -> Any:
    """Return an operation that makes a tensor of none, for a GPU."""

    def make(*args: Any, device: torch.device, **kwargs: Any) -> Tensor:
        gpu = meant(device)
        numbers = partial(rules.random_numbers, op, kwargs.values(), gpu)
        if driver.recording:
            made = driver.recording.do(op, args, {**kwargs, "device": HOST}, numbers)
            return OnGPU(made, gpu)
        with numbers():
            values = op(*args, **kwargs, device=HOST)
        return OnGPU(late.made(values, gpu.index) if driver.late else values, gpu)

    return make


def meant(device: torch.device) -> torch.device:
    """Return the GPU that is meant by a device, if it is one."""
    if device.type not in GPUS:
        return device
    current = driver.latest if device.type == BACKEND else driver.thread.device
    known = device.index is not None and device.type != BACKEND
    return torch.device("cuda", device.index if known else current)


def on_host(value: Any) -> Any:
    """Return the numbers of a tensor on a GPU, the CPU for a GPU, anything else as it is."""
    if isinstance(value, OnGPU):
        return value._host
    return HOST if isinstance(value, torch.device) and value.type in GPUS else value


def _read(op: Any, value: Any) -> Any:
    """What an operation computes with: what is on the host is read at once, but for copies."""
    if isinstance(value, Tensor) and not value.is_cuda and op is not aten.copy_.default:
        return value.clone() if driver.late else value
    return on_host(value)


def _back(value: Any, given: dict[int, Tensor], device: torch.device) -> Any:
    """Return a result as what it was given as, else on its device."""
    if id(value) in given:
        same = given[id(value)]
        if same.shape != value.shape:
            raise NotImplementedError("the stand-in keeps the shape of a tensor in place")
        return same
    return OnGPU(value, device) if isinstance(value, Tensor) and device.type == "cuda" else value
