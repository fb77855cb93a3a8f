"""Networks.

To add a network, write its class and a line in MODELS, which may pass settings on to it. It takes
the features of nodes (N, F), standardized, edges (2, E), the graph of each node (N,) and the sizes
of the graphs (B,), and returns predictions (B, 1) with zero mean and unit standard deviation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from settings import Settings


@dataclass(frozen=True)
class Graphs:
    """A batch of B graphs, with N nodes and E edges in all."""

    nodes: Tensor  # features (N, F)
    edges: Tensor  # from and to (2, E), numbers of nodes; each edge once for each direction
    graph: Tensor  # which graph each node is of (N,)
    sizes: Tensor  # number of nodes of each graph (B,)
    target: Tensor  # (B,)


@dataclass(frozen=True)
class Spec:
    """What a network needs to know about the data, as plain values. They are stored with each job,
    so that its network can be made again without the data."""

    mean: tuple[float, ...]  # of each feature of the nodes
    std: tuple[float, ...]
    target: tuple[float, float]  # its mean and standard deviation


def make(settings: Settings, spec: Spec) -> nn.Module:
    """Return the network that the settings name, fitted to the data.

    It takes features as they are stored, and predicts in the unit of the target.
    """
    return Standardized(MODELS[settings.model](settings, spec), spec)


def example_input(settings: Settings, spec: Spec, examples: int) -> tuple[Tensor, ...]:
    """Return paths of 3, 4 or 5 nodes, with random features, as many as asked for; for
    `jobs.py export-model`."""
    sizes = 3 + torch.arange(examples) % 3
    graph = torch.arange(examples).repeat_interleave(sizes)
    nodes = torch.randn(len(graph), len(spec.mean)) * torch.tensor(spec.std)
    first = torch.arange(len(graph) - 1)[graph[1:] == graph[:-1]]
    edges = torch.stack([torch.cat([first, first + 1]), torch.cat([first + 1, first])])
    return nodes + torch.tensor(spec.mean), edges, graph, sizes


class Standardized(nn.Module):
    """A network that takes graphs and predicts targets in their own unit."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, spec: Spec) -> None:
        super().__init__()
        self.network = network
        self.target_mean, self.target_std = spec.target
        self.register_buffer("mean", torch.tensor(spec.mean))
        self.register_buffer("std", torch.tensor(spec.std))

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor, sizes: Tensor) -> Tensor:
        """Return predictions (B,) of nodes (N, F), edges (2, E), graph (N,) and sizes (B,)."""
        scaled: Tensor = self.network((nodes - self.mean) / self.std, edges, graph, sizes)
        return scaled.flatten().float() * self.target_std + self.target_mean


class GIN(nn.Module):
    """A graph isomorphism network (Xu et al. 2019, arxiv.org/abs/1810.00826).

    Its ε is 0, as in GIN-0. Unlike in the paper, layers are residual and have layer norm, and the
    readout uses only the last layer. With `edges=False`, nodes get no information about each other
    before the readout, as in Deep Sets (Zaheer et al. 2017, arxiv.org/abs/1703.06114).
    """

    def __init__(
        self, features: int, layers: int, readout: str, edges: bool = True, width: int = 32
    ) -> None:
        super().__init__()
        self.readout, self.edges = readout, edges
        self.encoder = nn.Linear(features, width)
        self.layers = nn.ModuleList(perceptron(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor, sizes: Tensor) -> Tensor:
        """Return predictions (B, 1) of nodes (N, F), edges (2, E), graph (N,) and sizes (B,)."""
        states = self.encoder(nodes)
        for layer in self.layers:
            states = states + layer(neighbourhood(states, edges) if self.edges else states)
        states = states.float()  # sums of many
        pooled = states.new_zeros(sizes.shape[0], states.shape[1]).index_add(0, graph, states)
        if self.readout == "mean":
            pooled = pooled / sizes[:, None]
        predictions: Tensor = self.head(pooled)
        return predictions


def neighbourhood(states: Tensor, edges: Tensor) -> Tensor:
    """Return for each node the sum of its state and its neighbours' (N, D).

    index_select, and not states[…], since that adds up gradients in a varying order where a CPU has
    several threads: the same job would not have the same bits.
    """
    from_nodes, to_nodes = edges
    return states.index_add(0, to_nodes, states.index_select(0, from_nodes))


def perceptron(width: int) -> nn.Sequential:
    """A perceptron with a hidden layer, which has layer norm."""
    return nn.Sequential(
        nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width)
    )


MODELS: dict[str, Callable[[Settings, Spec], nn.Module]] = {
    "gin": lambda settings, spec: GIN(len(spec.mean), settings.layers, settings.readout),
    "deepsets": lambda settings, spec: GIN(
        len(spec.mean), settings.layers, settings.readout, edges=False
    ),
}
