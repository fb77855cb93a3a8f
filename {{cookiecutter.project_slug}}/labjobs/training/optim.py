"""From gradients to weights: Muon, the EMA, parts of a batch, clipping, early stopping."""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from labjobs import devices
from labjobs.data import trees
from labjobs.data.order import slice_of
from labjobs.distributed.collectives import Processes, is_divided, own
from labjobs.errors import Diverged, JobError
from labjobs.settings import Metric, no_monitor
from labjobs.training.meters import wide
from labjobs.training.progress import Stateful

# Muon: momentum whose matrices are orthogonalized, and AdamW for everything else.
#
# Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon; the step size, scaled to suit the
# learning rates of AdamW: Liu et al. 2025, arxiv.org/abs/2502.16982, section 2.2.

Groups = list[dict[str, Any]]


class Muon(Optimizer):
    """Muon for hidden layers. torch.optim.Muon takes matrices only; this takes convolution kernels
    too, as matrices with a row for each output channel, and orthogonalizes those of one shape
    together.

    Groups with `hidden=False` are updated by AdamW, and so are tensors with fewer than two
    dimensions in the others.
    """

    needs_matrices = True  # weights that are divided among processes (--shard) will not do

    def __init__(
        self,
        groups: Groups,
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        made = [part for group in groups for part in _split(group)]
        defaults = {"lr": lr, "weight_decay": 0.0, "momentum": momentum, "betas": betas}
        super().__init__(made, defaults | {"eps": 1e-8, "hidden": True, "fused": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            trained = [weight for weight in group["params"] if weight.grad is not None]
            if trained:
                (self._orthogonal if group["hidden"] else self._adamw)(group, trained)

    def _orthogonal(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        kept, lr, gradients = group["momentum"], group["lr"], _gradients(weights)
        momenta = self._state(weights, "momentum_buffer")
        torch._foreach_lerp_(momenta, gradients, 1 - kept)
        updates = list(torch._foreach_lerp(gradients, momenta, kept))  # Nesterov's
        if isinstance(lr, Tensor):  # in a CUDA graph; as precise as a number
            lr = lr.to(wide(lr.device))
        if group["weight_decay"]:
            kept_of_weights = 1 - lr * group["weight_decay"]
            if isinstance(lr, Tensor):
                kept_of_weights = kept_of_weights.to(weights[0].dtype)
            torch._foreach_mul_(weights, kept_of_weights)
        for indices in trees.alike(weights):
            rows, columns = len(weights[indices[0]]), weights[indices[0]][0].numel()
            matrices = torch.stack([updates[index].flatten(1) for index in indices])
            size = lr * 0.2 * max(rows, columns) ** 0.5
            made = orthogonalized(matrices).to(matrices.dtype).mul_(size)
            for index, update in zip(indices, made, strict=True):
                weights[index].sub_(update.view(weights[index].shape))

    def _adamw(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        for weight in weights:
            if "step" not in self.state[weight]:
                self.state[weight]["step"] = torch.zeros((), device=weight.device)
        adamw(
            weights,
            _gradients(weights),
            self._state(weights, "exp_avg"),
            self._state(weights, "exp_avg_sq"),
            [],
            [self.state[weight]["step"] for weight in weights],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _state(self, weights: list[Tensor], name: str) -> list[Tensor]:
        """The state of this name for each weight, zeros at first."""
        for weight in weights:
            if name not in self.state[weight]:
                self.state[weight][name] = torch.zeros_like(weight)
        return [self.state[weight][name] for weight in weights]


def orthogonalized(matrices: Tensor) -> Tensor:
    """Return matrices (N, R, C) with their singular vectors and singular values near 1.

    By Newton–Schulz iterations; on a GPU that has it in bf16, precise enough for an update.
    """
    # Of a quintic polynomial of the singular values, which is steep at zero and brings them to
    # between 0.7 and 1.2 in five steps.
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    made: Tensor = matrices.mT if tall else matrices
    if not (matrices.device.type == "cpu" or devices.is_slow_in_fp32(matrices.device)):
        made = made.bfloat16()
    made = made / made.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        gram = made @ made.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        made = torch.baddbmm(made, polynomial, made, beta=a)
    return made.mT if tall else made


def hidden_groups(groups: Groups, model: nn.Module) -> Groups:
    """Return the groups with the hidden layers' weights separated from the rest, which has
    `hidden=False` for AdamW: embeddings, parameters that a network holds beside its layers, such as
    positions, the last layer, and all with fewer than two dimensions.

    A network that ends in one of several blocks alike has no last layer of its own: its embedding
    is its head.
    """
    layers = [each for each in model.modules() if _matrices(each, recurse=False)]
    ends = [layer for layer in layers if not _is_layer(layer)]
    ends += [layer for layer in layers[-1:] if layer not in _in_blocks(model)]
    excluded = {id(weight) for layer in ends for weight in _matrices(layer, recurse=False)}
    return [part for group in groups for part in _split(group, excluded)]


def _in_blocks(model: nn.Module) -> set[nn.Module]:
    """The modules in elements of lists that have several matrices, of the shapes that those of the
    element before have."""
    found: set[nn.Module] = set()
    for each in model.modules():
        if isinstance(each, nn.Sequential | nn.ModuleList):
            shapes = [[weight.shape for weight in _matrices(block)] for block in each]
            for block, mine, before in zip([*each][1:], shapes[1:], shapes, strict=False):
                found.update(block.modules() if mine == before and len(mine) > 1 else ())
    return found


def _matrices(module: nn.Module, recurse: bool = True) -> list[Tensor]:
    return [weight for weight in module.parameters(recurse) if weight.ndim >= 2]


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention) or not (
        isinstance(module, nn.Embedding) or any(module.children())
    )


def _split(group: dict[str, Any], excluded: Container[int] = ()) -> Groups:
    """Split a group by what updates its parameters; a part without parameters is left out."""
    parts: dict[bool, list[Tensor]] = {True: [], False: []}
    for weight in group["params"]:
        hidden = group.get("hidden", True) and weight.ndim >= 2 and id(weight) not in excluded
        parts[hidden].append(weight)
    return [group | {"params": each, "hidden": hidden} for hidden, each in parts.items() if each]


def _gradients(weights: list[Tensor]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


# The exponential moving average (EMA) of a model's weights, often better than the last ones.
#
# Source: Polyak & Juditsky 1992, doi.org/10.1137/0330046; Morales-Brotons et al. 2024,
# arxiv.org/abs/2411.18704.

M = TypeVar("M", bound=nn.Module)
Pairs = list[tuple[list[Tensor], list[Tensor]]]
Own = dict[str, Tensor | None]  # the buffers of a module


class EMA(Generic[M]):
    """The EMA of a model's weights over the steps; `model` is the model itself if `decay` is 0.

    At each step the EMA keeps the fraction `decay` of itself; less at first, (1 + step) / (10 +
    step). Buffers, such as those of batch norm, are copied.
    """

    def __init__(self, model: M, decay: float) -> None:
        self.model = deepcopy(model) if decay else model  # as trainable: shares compiled code
        self._source, self._decay = model, decay
        self._steps: int | Tensor = 0
        self._seen: list[Tensor | None] = []
        self._buffers: Pairs = []

    def update(self) -> None:
        """Take in the weights after a step; nothing is read from the device. Raises JobError if the
        model is on another device than it was."""
        if self._decay:
            self._follow()

    @torch.no_grad()
    def _follow(self) -> None:
        self._steps += 1
        early = (1 + self._steps) / (10 + self._steps)
        for mine, theirs in self._weights:
            if isinstance(early, Tensor):
                given = (1 - early.clamp(max=self._decay)).to(mine[0].dtype)
                torch._foreach_lerp_(mine, theirs, [given] * len(mine))
            else:
                torch._foreach_lerp_(_held(mine), _held(theirs), 1 - min(self._decay, early))
        now = [theirs.get(name) for theirs, _, name in self._places]
        if any(one is not other for one, other in zip_longest(now, self._seen)):
            self._renew(now)  # forward() has put others in their place, or it is the first step
        for mine, theirs in self._buffers:
            torch._foreach_copy_(_held(mine), _held(theirs))

    @cached_property
    def _weights(self) -> Pairs:
        """The weights as they are in the first step; before, they may be moved."""
        return _by_type(self.model.parameters(), self._source.parameters())

    @cached_property
    def _places(self) -> list[tuple[Own, Own, str]]:
        """Where the model and the copy have buffers, and their names."""
        theirs, mine = (
            [part._buffers for part in model.modules() if part._buffers]
            for model in (self._source, self.model)
        )
        if [[*own] for own in theirs] != [[*own] for own in mine]:
            raise JobError("EMA: the model has other buffers since; make it when it is complete")
        pairs = zip(theirs, mine, strict=True)
        return [(own, copy, name) for own, copy in pairs for name in own]

    def _renew(self, now: list[Tensor | None]) -> None:
        """Have the copy's buffers be like the model's as they are now."""
        for (_, mine, name), buffer in zip(self._places, now, strict=True):
            own = mine[name]
            if buffer is None or own is None or own.shape != buffer.shape:
                mine[name] = None if buffer is None else buffer.clone()
        copies = (mine[name] for _, mine, name in self._places)
        self._buffers = _by_type(*([e for e in own if e is not None] for own in (copies, now)))
        self._seen = now

    def count_on(self, device: torch.device) -> None:
        """Have the device count the steps from now on, as a CUDA graph of a step does."""
        self._steps = torch.tensor(float(self._steps), dtype=wide(device), device=device)

    def state_dict(self) -> dict[str, Any]:
        """Return the EMA; empty if there is none."""
        return {"steps": int(self._steps), "model": self.model.state_dict()} if self._decay else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. If that is of a job without an EMA, begin with its
        weights: the model has been given them before."""
        if self._decay:
            self._steps = state.get("steps", 0)
            self.model.load_state_dict(state.get("model") or self._source.state_dict())


def _held(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors or, if they are divided, this process's parts, which torch 2.8 puts elsewhere
    when training begins."""
    return [own(tensor) for tensor in tensors] if is_divided(tensors[0]) else tensors


def _by_type(mine: Iterable[Tensor], theirs: Iterable[Tensor]) -> Pairs:
    """Pairs of lists of one data type each."""
    ours, others = [*mine], [*theirs]
    if [each.device for each in ours] != [each.device for each in others]:
        raise JobError("EMA: the model has been moved since; make it after model.to(job.device)")
    groups = trees.alike(ours, lambda each: each.dtype)
    return [([ours[n] for n in group], [others[n] for n in group]) for group in groups]


# The gradients of a batch: in parts that add up to it, in slices of several processes, and clipped.

Count = Callable[[Any], Tensor]  # from a batch to the number of its elements (), on its device


def parts_of(
    batch: Any, count: int, device: torch.device, elements: Count | None, exactly: bool = False
) -> Iterator[tuple[Any, Tensor]]:
    """Yield up to `count` parts of a batch, about equal, each with its fraction () of the batch.

    The fraction is that of the examples; with `elements`, that of the elements that this counts,
    such as the tokens that are not padding. With `exactly`, there are `count` parts. No part is a
    single example, unless the batch is: batch norm cannot take one. Raises JobError for a batch
    that cannot be split into examples.
    """
    if count == 1:
        yield batch, _constant(1.0, device)
        return
    size = trees.rows(batch)
    if not size:
        wanted = "it is not made of tensors that have a row for each example"
        raise JobError(f"--accumulate: this batch cannot be split into parts, since {wanted}")
    sizes: int | list[int]
    if exactly:
        each, more = divmod(size, count)
        sizes = [each + (number < more) for number in range(count)]
    else:
        sizes = max(2, -(-size // count))
        while sizes < size and size % sizes == 1:
            sizes += 1
    split = trees.split(batch, sizes)
    if elements:
        whole = elements(batch)
        yield from ((part, elements(part) / whole) for part in split)
    else:
        for part in split:
            yield part, _constant(len(trees.leaves(part)[0]) / size, device)


@lru_cache
def _constant(value: float, device: torch.device) -> Tensor:
    return torch.full((), value, device=device)  # filled there: a copy would wait for the device


class SharedGradients:
    """The gradients of some models' weights, and their buffers, of all processes of a job.

    Each process computes the gradients of its slice of the batch, weighted by the fraction of the
    batch that it is. When its last part is done, they are added up, once an optimizer step, as if
    one process had computed the whole batch. Source: Li et al. 2020, arxiv.org/abs/2006.15704,
    without their overlap with the backward pass.
    """

    def __init__(
        self, models: Iterable[nn.Module], processes: Processes, device: torch.device, shard: bool
    ) -> None:
        self._processes, self._device, self._shard = processes, device, shard
        self._together = nn.ModuleList(models)  # which names what they share once
        self._weights = [each for each in self._together.parameters() if each.requires_grad]
        self._added = True  # whether the gradients of this step were added up

    def slices(self, stream: Iterator[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
        """Yield this process's slices, with the number of examples in the whole batches."""
        for batch, size in stream:
            if not self._added:
                raise JobError("several processes need job.parts(batch) in the loop; see run.py")
            self._added = False
            self._mine, self._size = len(slice_of(size, self._processes.rank)), size
            yield batch, size

    def parts(self, batch: Any, count: int, elements: Count | None) -> Iterator[tuple[Any, Tensor]]:
        """Yield this process's slice of a batch in parts, each with its fraction () of the whole
        batch; then add up the gradients of all processes.

        Raises JobError if there are gradients already, which would be added up twice.
        """
        if any(weight.grad is not None for weight in self._weights):
            raise JobError(
                "job.parts: there are gradients from before, which several processes cannot add "
                "up again; call optimizer.zero_grad() before job.parts(batch)"
            )
        kind = wide(self._device)
        fraction = torch.full((), self._mine / self._size, dtype=kind, device=self._device)
        if elements:
            mine = (elements(batch) * (self._mine > 0)).to(kind)
            whole = mine.clone()
            self._processes.add_up([whole])
            fraction = mine / whole
        if self._shard:  # the processes need each other for every part: all have as many
            most = self._size // self._processes.rank.size // 2  # no part is a single example
            count = max(1, min(count, most))
        if self._mine:
            made = parts_of(batch, count, self._device, elements, exactly=self._shard)
            for part, of_mine in made:
                yield part, of_mine * fraction
        if not self._shard:  # which adds them up in the backward pass
            self._add_up()
        self._processes.copy_from_first([*self._together.buffers()])
        self._added = True

    def _add_up(self) -> None:
        """Replace each gradient by its sum over all processes; a weight has one afterwards if it
        has in any of them."""
        found = []
        anywhere = self._processes.largest([float(w.grad is not None) for w in self._weights])
        for weight, has_one in zip(self._weights, anywhere, strict=True):
            if has_one:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                found.append(weight.grad)
        self._processes.add_up(found)


def clip_gradients(parameters: Iterable[Tensor], norm: float) -> Tensor:
    """Scale the gradients of all parameters together down to a norm; returns their norm () before.

    The host learns nothing of it, so it does not wait. Source: Pascanu et al. 2013,
    arxiv.org/abs/1211.5063.
    """
    before: Any = nn.utils.clip_grad_norm_(parameters, norm)
    return before.full_tensor() if is_divided(before) else before  # type: ignore[no-any-return]


class EarlyStopping(Stateful):
    """Follows a validation metric in the direction that METRICS declares for it.

    `improved(metrics)` says after each evaluation whether it was the best so far; a tie is no
    improvement, so the earliest best is kept. With the monitor `none` every evaluation is the best:
    the last weights are kept, and nothing stops early; so it is while the metric is NaN. Raises
    JobError for a metric that is not declared.
    """

    kept = ("evaluations", "best_evaluation", "plateaus", "_best")

    def __init__(
        self, metrics: Mapping[str, Metric], monitor: str, patience: int = 0, plateau: int = 5
    ) -> None:
        self._monitor, self._patience, self._plateau = monitor, patience, plateau
        name = monitor.removeprefix("val_")
        if monitor != "none" and name not in metrics:
            raise JobError(f"--monitor {monitor}: {no_monitor(monitor, metrics)}")
        self._sign = -1.0 if monitor != "none" and metrics[name].better == "lower" else 1.0
        self._best = -math.inf
        self.evaluations = self.best_evaluation = 0
        self.plateaus = 0  # how often `plateau` evaluations in a row brought no improvement

    def improved(self, metrics: Mapping[str, float]) -> bool:
        """Record an evaluation; return whether it is the best so far.

        NaN beside a finite `val_loss` is a metric that is not defined yet, such as the precision
        for a class that was never predicted: worse than any value. Raises Diverged if the monitored
        metric is not finite otherwise, JobError if it was not measured.
        """
        self.evaluations += 1
        if self._monitor == "none":
            self.best_evaluation = self.evaluations
            return True
        if self._monitor not in metrics:
            line = f"evaluate() returned no such metric, only {', '.join(metrics) or 'none'}"
            raise JobError(f"--monitor {self._monitor}: {line}")
        value = self._sign * float(metrics[self._monitor])
        if math.isnan(value) and math.isfinite(metrics.get("val_loss", math.nan)):
            value = -math.inf
        elif not math.isfinite(value):
            alone = math.isnan(value) and self._monitor != "val_loss"
            besides = " and there is no finite val_loss beside it" * alone
            raise Diverged(f"{self._monitor} was not finite{besides}; {Diverged.CURE}")
        if value > self._best or self._best == -math.inf:
            self._best, self.best_evaluation = value, self.evaluations
            return True
        waited = self.evaluations - self.best_evaluation
        if self._plateau and waited % self._plateau == 0:
            self.plateaus += 1
        return False

    @property
    def due(self) -> bool:
        """Whether `patience` evaluations have passed without a better one; never if it is 0."""
        return 0 < self._patience <= self.evaluations - self.best_evaluation
