"""The example for graphs: its stream, what it measures, and its graphs in files."""

import json
import random
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from faults import job_of, learnt, one_line, same, succeeded

EXAMPLE = "graphs"
SHORT = ("--steps", "40", "--eval-every", "20", "--layers", "2", "--quiet")


# The stream


@pytest.mark.long
def test_killed_it_goes_on_with_the_next_graph(project, tmp_path):
    """Killed without and with processes that read."""
    flags = ("--steps", "200", "--eval-every", "40", "--layers", "2", "--quiet")
    left, whole = project.copy(tmp_path / "killed"), project.copy(tmp_path / "whole")
    job = whole.finish(*flags, "--workers", "0")
    for workers in ("0", "2"):
        left.killed(*flags, "--workers", workers)
    succeeded(left.run(*flags))
    assert same(learnt(left, job), learnt(whole, job))
    assert left.journalled(job) == whole.journalled(job) == left.stored(job)


# What is measured


@pytest.mark.full
def test_metrics_are_those_of_the_kept_outputs(project):
    job = project.finish(*SHORT)
    outputs, tested = project.outputs(job), project.tested(job)
    sizes = {False: range(8, 24), True: range(32, 64)}
    for larger, prefix in {False: "", True: "larger_"}.items():
        of_split = outputs["larger"] == larger
        targets, predicted = outputs["target"][of_split], outputs["predicted"][of_split]
        assert len(targets) == 1000
        assert {*outputs["nodes"][of_split].tolist()} == {*sizes[larger]}
        squared = ((targets - predicted) ** 2).mean()
        wanted = [squared, np.abs(targets - predicted).mean(), 1 - squared / targets.var()]
        found = [tested[prefix + name] for name in ("loss", "mae", "r2")]
        assert found == pytest.approx(wanted, rel=1e-4)


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
def files(project):
    """The project with graphs in files, four of them to train on."""
    for part, count in {"train": 4, "val": 1, "test": 2}.items():
        for number in range(count):
            write(project.root / "data" / part / f"{number}.jsonl", 30)
    return project


FILES = ("--dataset", "graph-files", "--batch-size", "8")


@pytest.mark.full
def test_graphs_in_files_are_read_by_several_processes_and_are_the_job_s_data(files, tmp_path):
    project = files.copy(tmp_path / "copy")
    done = succeeded(project.run(*FILES, *SHORT, "--workers", "2"))
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
def test_without_validation_graphs_the_last_weights_are_the_best(files, tmp_path):
    project = files.copy(tmp_path / "copy")
    (project.root / "data" / "val" / "0.jsonl").unlink()
    refused = one_line(project.run(*FILES, *SHORT), 2)
    assert refused.endswith("there are no validation graphs; add --monitor none")
    done = succeeded(project.run(*FILES, *SHORT, "--monitor", "none"))
    assert "test_mae" in project.stored(job_of(done))
