"""Do training steps wait for the device, where the student's code reads a tensor's value?

On a GPU, the host then waits. On a CPU, nothing waits, but the same lines are found: a tensor
counts as being on the device if it was made from a batch, from weights, or with `device=`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from labjobs.checks import places
from labjobs.checks.answers import Answer, Finding
from labjobs.checks.operations import Operations, tensors
from labjobs.checks.places import text_at
from labjobs.sources import Place

READS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "numpy": ".numpy()",
    "cpu": ".cpu()",
    "to": '.to("cpu")',
    "__array__": "making a NumPy array of a tensor",
    "__bool__": "asking whether a tensor is true",
    "__contains__": "looking for a value in a tensor",
    "__float__": "float() of a tensor",
    "__format__": "formatting a tensor",
    "__index__": "a tensor as an index",
    "__int__": "int() of a tensor",
    "__repr__": "printing a tensor",
}
"""What reads a tensor's value, by the name of the function that torch calls for it."""

BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operations whose result, or its shape, the host has to know."""

DECLARED = "# waits"
"""The comment on a line that is meant to wait, as where an agent acts on what it has computed."""

LOGGED = "job.log(…) takes tensors and does not wait"

aten = torch.ops.aten


class Waits:
    """The lines of the student's code that read a tensor in a training step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marked = WeakIdKeyDictionary()
        self._found: dict[Place, str] = {}
        self._ignored = False

    def mark(self, tree: Any) -> None:
        """Treat the tensors in nested values as being on the device."""
        for tensor in tensors(tree):
            self._marked[tensor] = True

    @contextmanager
    def step(self, batch: Any) -> Iterator[None]:
        """Look at what is done with a batch."""
        self.mark(batch)
        with Operations(self._done), _Calls(self):
            yield

    def answer(self) -> Answer:
        """Return the lines that were found, except those whose comment says that they wait."""
        found = {
            place: what for place, what in self._found.items() if DECLARED not in text_at(place)
        }
        said = ((place, f"{what} waits for the device; {LOGGED}") for place, what in found.items())
        return Answer(tuple(Finding(place, text) for place, text in said))

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch for the student; some read a tensor on a CPU by no operation."""
        name = getattr(func, "__name__", "")
        reads = name in READS and (name != "to" or "cpu" in (*args[1:], kwargs.get("device")))
        if reads and self._on_device(args[:1]) and not kwargs.get("non_blocking"):
            self._note(READS[name])
        self._ignored = name == "one_hot" and len(args) + len(kwargs) > 1  # checked on CPUs alone
        result = func(*args, **kwargs)
        self._ignored = False
        if reads and isinstance(result, Tensor):
            return self._on_host(result)
        if isinstance(kwargs.get("device"), torch.device):
            self.mark(result)
        return result

    def _done(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        if not self._on_device((args, kwargs)):
            return
        self.mark(result)
        to_host = any(each.device.type != self._device.type for each in tensors(result))
        if (to_host and not kwargs.get("non_blocking")) or _by_value(func, args, kwargs):
            what = func.overloadpacket.__name__
            self._note(READS["item"] if what == "_local_scalar_dense" else what)

    def _on_device(self, tree: Any) -> bool:
        return any(
            each in self._marked if self._device.type == "cpu" else each.device == self._device
            for each in tensors(tree)
        )

    def _on_host(self, copy: Tensor) -> Tensor:
        """Return a copy that a GPU's host would have; on a CPU, it is the tensor itself."""
        other = copy.view_as(copy)
        self._marked.pop(other, None)
        return other

    def _note(self, what: str) -> None:
        place = places.here()
        if place and not self._ignored:
            self._found.setdefault(place, what)


class _Calls(TorchFunctionMode):
    """Hands over each call of torch's functions that the student's code makes.

    Source: docs.pytorch.org/docs/stable/notes/extending.html (`__torch_function__`).
    """

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function."""
        return self._waits.called(func, args, kwargs or {})


def _by_value(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the host has to know a value to go on after an operation."""
    if func is aten.index.Tensor:
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors(args[1]))
    if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
        return False
    return bool(BY_VALUE & set(func.tags))
