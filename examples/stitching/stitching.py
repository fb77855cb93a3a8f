"""Two halves of trained networks and the linear map between them.

Model stitching (Lenc and Vedaldi 2015, arxiv.org/abs/1411.5908; Bansal et al. 2021,
arxiv.org/abs/2106.07682) replaces the first layers of one network by those of another: a linear map
takes their features to those that the rest of the first network expects.
"""

from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

import jobs
from labjobs import JobError, Normalized, SettingsError, best_weights, did_you_mean, first_line
from settings import StitchSettings


class Stitch(nn.Linear):
    """A linear map of features (B, C), of tokens (B, T, C), or, as a 1×1 convolution, of the
    channels of images (B, C, H, W)."""

    def forward(self, features: Tensor) -> Tensor:
        """Return the features that the second half of a network takes."""
        mapped = super().forward(channels_last(features))
        return mapped.movedim(-1, 1) if mapped.ndim == 4 else mapped


def channels_last(features: Tensor) -> Tensor:
    """Return features with their channels as the last dimension."""
    return features.movedim(1, -1) if features.ndim == 4 else features


class Stitched(nn.Module):
    """The classifier that two halves and the map between them are: logits (B, K) of images."""

    def __init__(self, front: nn.Module, stitch: Stitch, back: nn.Module) -> None:
        super().__init__()
        self.front, self.stitch = front, stitch
        self.rest = nn.Sequential(stitch, back)  # of features
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of images as the first half takes them."""
        logits: Tensor = self.rest(self.front(images))
        return logits


class _Tracer(fx.Tracer):
    """Records what a network does, with the layer that it is cut at as one piece."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self._layer = layer

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one piece."""
        whole = super().is_leaf_module(m, module_qualified_name)
        return whole or module_qualified_name == self._layer


def halves(model: nn.Module, layer: str, flag: str) -> tuple[nn.Module, nn.Module]:
    """Return a frozen copy of a network up to a layer, and the network from there on.

    The layer's name is that of `network.named_modules()`, without the wrapper that normalizes
    images. Raises SettingsError, which names the flag, if there is no such layer, JobError if the
    network cannot be cut there: all that it computes must go through the layer, once.
    """
    model = deepcopy(model).eval().requires_grad_(False)
    network = model.network if isinstance(model, Normalized) else model
    assert isinstance(network, nn.Module)
    known = [name for name, _ in network.named_modules() if name]
    if layer not in known:
        hint = did_you_mean(layer, known)
        raise SettingsError(f"{flag} {layer}: the network has no such layer; {hint}")
    first, second = (_traced(network, layer, flag) for _ in range(2))
    (result,) = (node for node in first.nodes if node.op == "output")
    result.args = (_layer_in(first, layer, flag),)
    first.eliminate_dead_code(_is_end)
    cut, images = _layer_in(second, layer, flag), next(iter(second.nodes))
    with second.inserting_before(cut):
        cut.replace_all_uses_with(second.placeholder("features"))
    second.eliminate_dead_code(_is_end)
    if images.users:
        raise JobError(f"{flag} {layer}: something bypasses this layer; name the block around it")
    second.erase_node(images)
    before, after = (fx.GraphModule(network, graph) for graph in (first, second))
    if isinstance(model, Normalized):
        model.network = before
        return model, after
    return before, after


def _traced(network: nn.Module, layer: str, flag: str) -> fx.Graph:
    try:
        return _Tracer(layer).trace(network)
    except Exception as error:  # a network without a graph may fail in countless ways
        why = f"torch.fx cannot follow this network ({first_line(error)})"
        raise JobError(f"{flag} {layer}: {why}; remove conditions on tensors") from error


def _is_end(node: fx.Node) -> bool:
    """Return whether a node is an input or the output, which stay even if nothing uses them."""
    return node.op in ("placeholder", "output")


def _layer_in(graph: fx.Graph, layer: str, flag: str) -> fx.Node:
    found: list[fx.Node] = [*graph.find_nodes(op="call_module", target=layer)]
    if not found:
        raise JobError(f"{flag} {layer}: is not run")
    if len(found) > 1:
        raise JobError(f"{flag} {layer}: is run more than once; name the layer that it is part of")
    return found[0]


def check_fit(front: Any, back: Any) -> None:
    """Raise JobError if no map of channels leads from the output of one layer to another's."""
    for flag, features in (("--layer", front), ("--back-layer", back)):
        if not isinstance(features, Tensor) or features.ndim not in (2, 3, 4):
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features)
            raise JobError(f"{flag}: gives {shape}, not (B, C), (B, T, C) or (B, C, H, W)")
    one, other = (channels_last(features).shape[:-1] for features in (front, back))
    if one != other:
        raise JobError(
            f"--layer, --back-layer: give {tuple(front.shape[1:])} and {tuple(back.shape[1:])}; "
            "only the number of channels may differ"
        )


def ridge(pairs: Iterable[tuple[Tensor, Tensor]], strength: float) -> tuple[Tensor, Tensor]:
    """Return weights (Q, P) and biases (Q,) that map features of P channels to those of Q with the
    least squared error, by ridge regression over all examples and places.

    `pairs` are both features of the same examples, in batches. The penalty on the squared weights
    is `strength` times the mean variance of the P channels; biases have none. Sums are in float64.
    Raises JobError if the first features are the same everywhere.
    """
    moments: list[Tensor] = []
    for pair in pairs:
        x, y = (_rows(features) for features in pair)
        one = x.new_ones(len(x), 1)
        sums = [x.T @ x, x.T @ y, x.T @ one, y.T @ one, one.T @ one]
        moments = [a + b for a, b in zip(moments, sums, strict=True)] if moments else sums
    xx, xy, x_sum, y_sum, count = moments
    x_mean, y_mean = x_sum / count, y_sum / count
    covariance = xx / count - x_mean @ x_mean.T
    variance = covariance.diagonal().mean()
    if not variance > 0:
        raise JobError("--layer: its output is the same for all examples")
    penalty = strength * variance * torch.eye(len(xx), dtype=xx.dtype, device=xx.device)
    weight = torch.linalg.solve(covariance + penalty, xy / count - x_mean @ y_mean.T).T
    return weight, (y_mean - weight @ x_mean).squeeze(1)


def _rows(features: Tensor) -> Tensor:
    """Return features as (N, C) in float64, a row for each example and place."""
    on_host = features.cpu() if features.device.type == "mps" else features  # it has no float64
    return channels_last(on_host).flatten(0, -2).double()


def load(job_id: str, runs_root: Path | None = None) -> Stitched:
    """Return the classifier of a job of stitch.py, on the CPU: logits (B, K) of its images.

    Raises JobError if there is no such job or it has kept no weights.
    """
    best = best_weights(job_id, StitchSettings, runs_root)
    settings, weights = best.settings, best.weights["stitch"]
    outputs, inputs = weights["weight"].shape
    stitch = Stitch(inputs, outputs)
    stitch.load_state_dict(weights)
    front, back = (jobs.load(each, runs_root).model for each in (settings.front, settings.back))
    first, _ = halves(front, settings.layer, "--layer")
    _, second = halves(back, settings.back_layer or settings.layer, "--back-layer")
    return Stitched(first, stitch, second)
