"""The example for graphs: its stream, its targets, its networks, and its graphs in files."""

import json
import random
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from faults import Project, ended, job_of, kill, learnt, one_line, same, wait_until
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path

OFTEN = ("--checkpoint-minutes", "0.0001")
SHORT = ("--steps", "40", "--eval-every", "20", "--layers", "2", "--quiet")


@pytest.fixture(scope="module")
def project(make) -> Project:
    return Project(make(example="graphs"))


# The stream


GRAPHS = """
import json
from itertools import islice
from pathlib import Path
import data
from settings import Settings

splits = data.load(Settings(), Path("data"))
for name in ("train", "val", "test", "larger"):
    for graph in islice(getattr(splits, name), 100):
        print(json.dumps([name, graph.nodes.tolist(), graph.edges.tolist(), graph.target]))
"""


def test_targets_are_mean_distances_from_the_marked_node(project):
    graphs = [json.loads(line) for line in project.printed(GRAPHS)]
    assert len({json.dumps(graph) for _, *graph in graphs}) == len(graphs) == 400
    for name, nodes, (starts, ends), target in graphs:
        degrees, marked = np.array(nodes).T
        count = len(nodes)
        assert count in (range(32, 64) if name == "larger" else range(8, 24))
        edges = {*zip(starts, ends, strict=True)}
        assert len(edges) == len(starts) and edges == {(end, start) for start, end in edges}
        assert np.array_equal(np.bincount(starts, minlength=count), degrees)
        (source,) = np.flatnonzero(marked)
        adjacent = coo_array((np.ones(len(starts)), (starts, ends)), (count, count))
        distances = shortest_path(adjacent, unweighted=True, indices=source)
        assert target == pytest.approx(distances.sum() / (count - 1))


PARTS = """
from itertools import islice
import data

def targets(stream, count):
    return [graph.target for graph in islice(stream, count)]

whole = targets(data.RandomGraphs(3), 24)
parts = [data.RandomGraphs(3).shard(4, index) for index in range(4)]
halves = [part.shard(2, index) for index in range(2) for part in parts]
left = data.RandomGraphs(3)
begun = targets(left, 10)
again = data.RandomGraphs(3)
again.load_state_dict(left.state_dict())
print([target for each in zip(*(targets(part, 6) for part in parts)) for target in each] == whole)
print([target for each in zip(*(targets(half, 3) for half in halves)) for target in each] == whole)
print(begun + targets(again, 14) == whole, targets(data.RandomGraphs(4), 24) == whole)
"""


def test_parts_of_the_stream_are_all_of_it_and_it_goes_on_where_it_was(project):
    assert project.printed(PARTS) == ["True", "True", "True False"]


def killed_and_again(project: Project, tmp_path: Path, *flags: str) -> None:
    """Kill a job without and with processes that read; its bits are those of an undisturbed one."""
    flags = ("--steps", "200", "--eval-every", "40", "--layers", "2", "--quiet", *flags)
    left, whole = project.copy(tmp_path / "killed"), project.copy(tmp_path / "whole")
    undisturbed = whole.run(*flags, "--workers", "0")
    assert undisturbed.returncode == 0, undisturbed
    job = job_of(undisturbed)
    for workers in ("0", "2"):
        process, before = left.start(*flags, *OFTEN, "--workers", workers), changed(left)
        wait_until(lambda: process.poll() is not None or changed(left) != before)  # noqa: B023
        kill(process.pid)
        assert ended(process).returncode == -9
    again = left.run(*flags)
    assert again.returncode == 0, again
    assert same(learnt(left, job), learnt(whole, job))
    assert left.journalled(job) == whole.journalled(job) == left.stored(job)


def changed(project: Project) -> list[int]:
    """When the checkpoints were last changed."""
    return [path.stat().st_mtime_ns for path in project.root.glob("runs/*/*/last.pt")]


@pytest.mark.full
def test_killed_it_goes_on_with_the_next_graph(project, tmp_path):
    killed_and_again(project, tmp_path)


# What is measured


def test_metrics_are_those_of_the_kept_outputs(project):
    done = project.run(*SHORT)
    assert done.returncode == 0, done
    job = job_of(done)
    outputs, curves = project.outputs(job), project.stored(job)
    sizes = {False: range(8, 24), True: range(32, 64)}
    for larger, split in {False: "test", True: "test_larger"}.items():
        of_split = outputs["larger"] == larger
        targets, predicted = outputs["target"][of_split], outputs["predicted"][of_split]
        assert len(targets) == 1000
        assert {*outputs["nodes"][of_split].tolist()} == {*sizes[larger]}
        squared = ((targets - predicted) ** 2).mean()
        wanted = {
            "loss": squared,
            "mae": np.abs(targets - predicted).mean(),
            "r2": 1 - squared / targets.var(),
        }
        found = {name: curves[f"{split}_{name}"][-1][1] for name in wanted}
        assert found == pytest.approx(wanted, rel=1e-4)


# Networks


NETWORKS = """
import torch
import data, models
from pathlib import Path
from settings import Settings

splits = data.load(Settings(), Path("data"))
graphs = splits.val[:20]
def predict(graphs, model):
    batch = data.collate(graphs)
    with torch.no_grad():
        return model(batch.nodes, batch.edges, batch.graph, batch.sizes)

def renumbered(graph):
    order = torch.randperm(len(graph.nodes))
    return data.Graph(graph.nodes[order], order.argsort()[graph.edges], graph.target)

def without_edges(graph):
    return data.Graph(graph.nodes, graph.edges[:, :0], graph.target)

for name in models.MODELS:
    for readout in ("mean", "sum"):
        torch.manual_seed(0)
        model = models.make(Settings(model=name, readout=readout), splits.spec)
        together = predict(graphs, model)
        close = lambda other: torch.allclose(together, other, atol=1e-4)
        print(
            name,
            close(torch.cat([predict([graph], model) for graph in graphs])),
            close(predict([*map(renumbered, graphs)], model)),
            close(predict([*map(without_edges, graphs)], model)),
        )
"""


def test_graphs_of_a_batch_and_the_numbers_of_nodes_do_not_matter_but_edges_do(project):
    """To `deepsets` edges do not matter either."""
    gin, deepsets = "gin True True False", "deepsets True True True"
    assert project.printed(NETWORKS) == [gin, gin, deepsets, deepsets]


# Graphs in files


def write(path: Path, count: int) -> list[float]:
    """Write a file of paths and rings with three features; returns their targets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    chance, targets = random.Random(path.name), []
    with path.open("w") as file:
        for _ in range(count):
            size = chance.randrange(3, 9)
            ring = chance.random() < 0.5
            nodes = [[chance.gauss(0, 1), float(node), 1.0] for node in range(size)]
            edges = [[node, node + 1] for node in range(size - 1)] + [[size - 1, 0]] * ring
            targets.append(round(size + 5 * ring + chance.random(), 3))
            graph = {"nodes": nodes, "edges": edges, "target": targets[-1]}
            file.write(json.dumps(graph) + "\n")
    return targets


@pytest.fixture(scope="module")
def files(make) -> Project:
    """A project with graphs in files, four of them to train on."""
    project = Project(make(example="graphs"))
    for part, count in {"train": 4, "val": 1, "test": 2}.items():
        for number in range(count):
            write(project.root / "data" / part / f"{number}.jsonl", 30)
    return project


FILES = ("--dataset", "graph-files", "--batch-size", "8")


def test_graphs_in_files_are_read_by_several_processes_and_are_the_job_s_data(files, tmp_path):
    project = files.copy(tmp_path / "copy")
    done = project.run(*FILES, *SHORT, "--workers", "2")
    assert done.returncode == 0, done
    tested = [write(tmp_path / f"{number}.jsonl", 30) for number in range(2)]
    assert sorted(project.outputs(job_of(done))["target"]) == pytest.approx(sorted(chain(*tested)))
    assert not project.outputs(job_of(done))["larger"].any()
    (_, first), *_, (_, last) = project.journalled(job_of(done))["train_loss"]
    assert last < 0.8 * first
    (listed,) = project.root.glob("runs/.data/*.jsonl")
    read = {json.loads(line)["name"] for line in listed.read_text().splitlines()}
    paths = {*(project.root / "data").rglob("*.jsonl")}
    assert {path.relative_to(project.root).as_posix() for path in paths} <= read
    write(project.root / "data" / "train" / "2.jsonl", 31)
    other = one_line(project.run(*FILES, *SHORT), 5)
    assert "was finished with other data (data/train/2.jsonl changed)" in other


@pytest.mark.full
@pytest.mark.alike
def test_killed_it_goes_on_with_the_next_line(files, tmp_path):
    killed_and_again(files, tmp_path, *FILES)


NODES, EDGES = '{"nodes": [[0, 1, 2], [3, 4, 5]], ', '"edges": [[0, 1]], "target": 1}'


PROBLEMS = {
    "{": "not a graph with nodes, edges and target: Expecting property name",
    "[]": "not a graph with nodes, edges and target: list indices must be",
    NODES + '"edges": [[0, 1]]}': "not a graph with nodes, edges and target: 'target'",
    '{"nodes": [[0], [1, 2]], ' + EDGES: "not a graph with nodes, edges and target: expected",
    '{"nodes": [[0, 1], [2, 3]], ' + EDGES: "each node must have 3 features, as in the first graph",
    NODES + '"edges": [[0, 2]], "target": 1}': "an edge leads to a node that is not among the 2",
    NODES + '"edges": [[0, 1, 1]], "target": 1}': "each edge must be a pair of whole numbers",
    NODES + '"edges": [[0, 0.5]], "target": 1}': "each edge must be a pair of whole numbers",
    NODES + '"edges": [0, 1], "target": 1}': "each edge must be a pair of whole numbers",
}
PARSE = f"""
import data
for line in {[*PROBLEMS]}:
    try:
        data.parsed(line, 3, "a.jsonl:7")
    except data.JobError as error:
        print(error)
for line in {[NODES + EDGES, NODES + EDGES.replace("[0, 1]", "")]}:
    print(data.parsed(line, 3, "").edges.tolist())
"""


def test_a_line_that_is_no_graph_is_named(project):
    *messages, edges, none = project.printed(PARSE)
    for message, problem in zip(messages, PROBLEMS.values(), strict=True):
        assert message.startswith(f"a.jsonl:7: {problem}")
    assert (edges, none) == ("[[0, 1], [1, 0]]", "[[], []]")


@pytest.mark.full
def test_what_is_wrong_with_files_is_said_in_one_line(files, tmp_path):
    project = files.copy(tmp_path / "copy")
    folder = project.root / "data" / "train"
    with (folder / "1.jsonl").open("a") as file:
        file.write("{}\n")
    for workers in ("0", "2"):
        failed = one_line(project.run(*FILES, *SHORT, "--workers", workers, "--force"), 1)
        assert "train/1.jsonl:31: not a graph with nodes, edges and target: 'nodes'" in failed
    for path in folder.iterdir():
        path.unlink()
    missing = one_line(project.run(*FILES, *SHORT, "--note", "none"), 2)
    assert missing.endswith("data: there are no graphs in train/*.jsonl")


@pytest.mark.full
def test_without_validation_graphs_the_last_weights_are_the_best(files, tmp_path):
    project = files.copy(tmp_path / "copy")
    (project.root / "data" / "val" / "0.jsonl").unlink()
    refused = one_line(project.run(*FILES, *SHORT), 2)
    assert refused.endswith("there are no validation graphs; add --monitor none")
    done = project.run(*FILES, *SHORT, "--monitor", "none")
    assert done.returncode == 0, done
    assert "test_mae" in project.stored(job_of(done))


@pytest.mark.full
def test_what_a_stream_cannot_have_is_refused_in_one_line(project):
    for flags, problem in {
        ("--epochs", "3"): "--epochs: no such flag",
        ("--accumulate", "2"): "--accumulate: no such flag",
        ("--eval-every", "2e"): "this data has no epochs",
        ("--loader", "resident"): "--loader resident: not for a stream",
    }.items():
        assert problem in one_line(project.run("--quiet", *flags), 2)
