"""Does each parameter of the models that are trained get a gradient, and change?"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor, nn

from labjobs.checks import places
from labjobs.checks.answers import FINE, Answer, Finding, some
from labjobs.checks.digests import digest
from labjobs.sources import Place
from labjobs.stateful import Part

UNUSED = "no gradient, though requires_grad is set; unused, or detached?"
UNTRAINED = "a gradient, but no change; does the optimizer have it?"


class _Parameter(NamedTuple):
    """A parameter, and where the student's code makes the layer that it is in."""

    name: str
    tensor: nn.Parameter
    place: Place | None
    before: str


class Gradients:
    """The gradients of the parameters of those parts that are modules, from now on."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._otherwise = places.here()
        self._all = [
            _Parameter(f"{name}.{path}", tensor, made_at(part, path), digest(tensor))
            for name, part in parts.items()
            if isinstance(part, nn.Module)
            for path, tensor in part.named_parameters()
        ]
        self._largest: dict[int, list[Tensor]] = {}
        for each in self._all:
            if each.tensor.requires_grad:
                each.tensor.register_post_accumulate_grad_hook(self._got)

    def answer(self) -> Answer:
        """Return which parameters do not take part in training."""
        if not self._largest:
            return Answer(unknown="since no loss.backward() was seen")
        trained = [each for each in self._all if each.tensor.requires_grad]
        unused = [each for each in trained if id(each.tensor) not in self._largest]
        got = [each for each in trained if any(map(bool, self._largest.get(id(each.tensor), ())))]
        same = [each for each in got if digest(each.tensor) == each.before]
        untrained = (
            same if len(same) < len(got) else []
        )  # otherwise, the learning rate is still too low
        found = (*self._by_place(unused, UNUSED), *self._by_place(untrained, UNTRAINED))
        frozen = [each for each in self._all if not each.tensor.requires_grad]
        if found or not frozen:
            return Answer(found) if found else FINE
        names = some([each.name for each in frozen])
        return Answer(unknown=f"whether {names} should be frozen ({frozen[0].place})")

    def _got(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        largest = parameter.grad.detach().abs().max()
        self._largest.setdefault(id(parameter), []).append(largest)

    def _by_place(self, parameters: Iterable[_Parameter], what: str) -> list[Finding]:
        """A finding for each line, since a layer has several parameters."""
        found: dict[Place | None, list[str]] = {}
        for each in parameters:
            found.setdefault(each.place or self._otherwise, []).append(each.name)
        return [Finding(place, f"{some(names)}: {what}") for place, names in found.items()]


def made_at(module: nn.Module, path: str) -> Place | None:
    """Return where the student's code creates the object at a path such as
    `network.layers.0.weight`: the innermost attribute of a class of the student's; None if there is
    none."""
    found = None
    for name in path.split("."):
        found = places.of_attribute(type(module), name) or found
        module = getattr(module, name)
    return found
