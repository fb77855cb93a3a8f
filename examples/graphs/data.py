"""Datasets: streams of graphs.

To add a dataset, write a function such as `random_graphs` and a line in DATASETS. Its training
graphs are a torch IterableDataset of Graph, whose state is its position: an interrupted job
continues with the next graph. Validation and test graphs may be a list or a stream that ends.

Graphs have different numbers of nodes, so a batch of them is one large graph, whose parts are not
connected with each other: collate() makes it.
"""

import copy
import json
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from labjobs import JobError, SettingsError, first_line
from models import Graphs, Spec
from settings import Settings

Batch = Graphs
Examples = Any  # an IterableDataset or a list of Graph

TRAINED, LARGER = range(8, 24), range(32, 64)
"""Numbers of nodes in random graphs: in graphs for training and testing, and in larger ones only
for testing."""

SAMPLED = 1000
"""Training graphs from which means and standard deviations are computed."""


@dataclass(frozen=True)
class Graph:
    """A graph whose edges can be followed in both directions; each is there twice."""

    nodes: Tensor  # features (N, F)
    edges: Tensor  # from and to (2, E), numbers of nodes
    target: float


@dataclass(frozen=True)
class Source:
    """A dataset: `train` is a stream; `larger` are graphs larger than those in training, to see how
    well a network generalizes. Missing parts are None."""

    train: "IterableDataset[Graph]"
    val: Examples | None
    test: Examples | None
    larger: Examples | None


@dataclass(frozen=True)
class Splits(Source):
    """What a job is trained, validated and tested on, and what its network needs to know about the
    data."""

    spec: Spec


def load(settings: Settings, data_root: Path) -> Splits:
    """Return the splits of the dataset that the settings name.

    Raises SettingsError if the dataset is missing, JobError if it is damaged.
    """
    source = read(settings.dataset, data_root.expanduser(), settings.seed)
    if source.val is None and settings.monitor != "none":
        raise SettingsError("--monitor: there are no validation graphs; add --monitor none")
    spec = statistics(source.train)
    return Splits(source.train, source.val, source.test, source.larger, spec)


@cache  # many jobs of a grid read the same
def read(dataset: str, root: Path, seed: int) -> Source:
    """Return the dataset of a name; the training graphs, or their order, depend on the seed."""
    return DATASETS[dataset](root, seed)


def statistics(train: Iterable[Graph]) -> Spec:
    """Return means and standard deviations over the first training graphs; 1 for a constant."""
    graphs = list(islice(copy.deepcopy(train), SAMPLED))  # `train` itself stays where it is
    nodes = torch.cat([graph.nodes for graph in graphs])
    targets = torch.tensor([graph.target for graph in graphs])
    mean, std = nodes.mean(0), nodes.std(0, correction=0)
    spread = targets.std(correction=0).item() or 1.0
    std[std == 0] = 1
    return Spec(tuple(mean.tolist()), tuple(std.tolist()), (targets.mean().item(), spread))


def collate(graphs: Sequence[Graph]) -> Graphs:
    """Return graphs as one batch: their nodes one after another, and edges between those."""
    sizes = torch.tensor([len(graph.nodes) for graph in graphs])
    firsts = (sizes.cumsum(0) - sizes).tolist()  # each graph's first node
    return Graphs(
        nodes=torch.cat([graph.nodes for graph in graphs]),
        edges=torch.cat(
            [graph.edges + first for graph, first in zip(graphs, firsts, strict=True)], 1
        ),
        graph=torch.arange(len(graphs)).repeat_interleave(sizes),
        sizes=sizes,
        target=torch.tensor([graph.target for graph in graphs]),
    )


# Random graphs


class RandomGraphs(IterableDataset[Graph]):
    """Random graphs without an end. The graph at a position depends only on the seed and the
    position, so the graphs are the same however many processes make them."""

    num_shards = 8  # the largest number of processes

    def __init__(self, seed: int, first: int = 0, step: int = 1) -> None:
        self._seed, self._position, self._step = seed, first, step

    def __iter__(self) -> Iterator[Graph]:
        while True:
            position = self._position
            self._position += self._step  # before the graph is yielded, so that it is counted
            yield random_graph(TRAINED, f"train/{self._seed}/{position}")

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from that position."""
        self._position = state["position"]

    def shard(self, num_shards: int, index: int) -> "RandomGraphs":
        """Return every `num_shards`-th of the graphs, from number `index` on."""
        first = self._position + index * self._step
        return RandomGraphs(self._seed, first, num_shards * self._step)


def random_graphs(_root: Path, seed: int) -> Source:
    """Return random connected graphs with a marked node; the target is the average distance of the
    other nodes from it. See random_graph()."""
    return Source(
        RandomGraphs(seed),
        val=[random_graph(TRAINED, f"val/{number}") for number in range(500)],
        test=[random_graph(TRAINED, f"test/{number}") for number in range(1000)],
        larger=[random_graph(LARGER, f"larger/{number}") for number in range(1000)],
    )


def random_graph(sizes: Sequence[int], seed: str) -> Graph:
    """Return a random connected graph with one of these numbers of nodes.

    All trees are equally probable (Aldous 1990, doi.org/10.1137/0403039: a walk to random nodes
    keeps the edges by which it reaches one for the first time); then up to half as many edges as
    there are nodes are added. A node's features are its number of neighbours, and 1 for the marked
    one. The target is the mean of the shortest paths' lengths from the marked node to the others,
    the reciprocal of its closeness (Freeman 1978, doi.org/10.1016/0378-8733(78)90021-7).
    """
    random_numbers = random.Random(seed)
    count = random_numbers.choice(sizes)
    neighbours: list[set[int]] = [set() for _ in range(count)]
    here, reached = 0, {0}
    while len(reached) < count:
        there = random_numbers.randrange(count)
        if there not in reached:
            reached.add(there)
            neighbours[here].add(there)
            neighbours[there].add(here)
        here = there
    for _ in range(random_numbers.randrange(count // 2)):
        one, other = random_numbers.sample(range(count), 2)
        neighbours[one].add(other)
        neighbours[other].add(one)
    marked = random_numbers.randrange(count)
    nodes = [[len(own), node == marked] for node, own in enumerate(neighbours)]
    edges = [(node, other) for node, own in enumerate(neighbours) for other in sorted(own)]
    target = sum(distances(neighbours, marked)) / (count - 1)
    return Graph(torch.tensor(nodes, dtype=torch.float32), torch.tensor(edges).T, target)


def distances(neighbours: Sequence[Iterable[int]], start: int) -> Iterable[int]:
    """Return the number of edges on the shortest path from a node to each that it is connected
    with: breadth-first search."""
    found, waiting = {start: 0}, deque([start])
    while waiting:
        node = waiting.popleft()
        for other in neighbours[node]:
            if other not in found:
                found[other] = found[node] + 1
                waiting.append(other)
    return found.values()


# Graphs in files


class GraphFiles(IterableDataset[Graph]):
    """The graphs in files, one in each line. Each pass reads the files in a different order, and
    the lines of a file in the order of the file."""

    def __init__(self, paths: Sequence[Path], features: int, seed: int) -> None:
        self._paths, self._features, self._seed = paths, features, seed
        self._pass = self._done = 0
        self.num_shards = len(paths)

    def set_epoch(self, number: int) -> None:
        """Set the number of the pass, from 0, on which the order of the files depends."""
        self._pass = number

    def __iter__(self) -> Iterator[Graph]:
        order = random.Random(f"{self._seed}/{self._pass}")
        paths = order.sample(self._paths, len(self._paths))
        for path, number, line in islice(lines(paths), self._done, None):
            self._done += 1  # before the graph is yielded, so that it is counted
            yield parsed(line, self._features, f"{path}:{number}")
        self._done = 0

    def state_dict(self) -> dict[str, int]:
        """Return how many lines of this pass are done."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after these lines."""
        self._done = state["done"]

    def shard(self, num_shards: int, index: int) -> "GraphFiles":
        """Return every `num_shards`-th of the files, from number `index` on."""
        return GraphFiles(self._paths[index::num_shards], self._features, self._seed)


def graph_files(root: Path, seed: int) -> Source:
    """Return your own graphs: `<root>/train/*.jsonl`, and `<root>/val`, `<root>/test` and
    `<root>/larger` if these folders exist. Each line is a graph; see parsed()."""
    parts = {
        name: sorted((root / name).glob("*.jsonl")) for name in ("train", "val", "test", "larger")
    }
    try:
        first = next(lines(parts["train"]))
    except StopIteration:
        raise SettingsError(f"--data-root {root}: there are no graphs in train/*.jsonl") from None
    path, number, line = first
    features = parsed(line, None, f"{path}:{number}").nodes.shape[1]
    train = GraphFiles(parts.pop("train"), features, seed)
    others = {
        name: GraphFiles(paths, features, 0) if paths else None for name, paths in parts.items()
    }
    return Source(train, **others)


def lines(paths: Iterable[Path]) -> Iterator[tuple[Path, int, str]]:
    """Yield the lines of files, each with its file and its number there."""
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                yield path, number, line


def parsed(line: str, features: int | None, place: str) -> Graph:
    """Return the graph in a line: `{"nodes": [[0.5, 1], [2, 0]], "edges": [[0, 1]], "target": 3}`.

    `nodes` has the features of each node (`features` of them, unless that is None), and `edges`
    each pair of connected nodes once, by their indices from 0. Raises JobError, which names the
    file and the line, for anything else.
    """
    try:
        graph = json.loads(line)
        nodes = torch.tensor(graph["nodes"], dtype=torch.float32)
        edges = torch.tensor(graph["edges"]) if graph["edges"] else torch.zeros((0, 2)).long()
        target = float(graph["target"])
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise JobError(
            f"{place}: not a graph with nodes, edges and target: {first_line(error)}"
        ) from error
    if nodes.ndim != 2 or nodes.shape[1] != (features or max(1, nodes.shape[1])):
        wanted = f"{features} features, as in the first graph" if features else "features"
        raise JobError(f"{place}: each node must have {wanted}")
    if edges.dtype != torch.int64 or edges.shape != (len(edges), 2):
        raise JobError(f"{place}: each edge must be a pair of whole numbers")
    if len(edges) and not 0 <= edges.min() <= edges.max() < len(nodes):
        raise JobError(f"{place}: an edge leads to a node that is not among the {len(nodes)}")
    return Graph(nodes, torch.cat([edges, edges.flip(1)]).T, target)


DATASETS: dict[str, Callable[[Path, int], Source]] = {
    "random": random_graphs,
    "graph-files": graph_files,
}
