"""The forward pass compiled: as one region with its loss, once, also beside another thread."""

import threading
from dataclasses import dataclass

import pytest
import torch
from attempts import At
from labjobs import machine
from labjobs.devices import Precision
from labjobs.training import compilation
from labjobs.training.compilation import Prepared
from labjobs.training.meters import Means
from torch import Tensor
from torch._inductor import config
from toy import STEPS, Loop, forward

COMPILED = {"compile": "on"}


@pytest.fixture
def compile_by(monkeypatch):
    """A function that has graphs compiled by a backend."""
    torch._dynamo.reset()  # what other tests have compiled
    monkeypatch.setattr(compilation, "events", [])
    compile = torch.compile
    yield lambda backend: monkeypatch.setattr(
        torch, "compile", lambda f, **how: compile(f, backend=backend, **how)
    )
    torch._dynamo.reset()


@pytest.fixture
def graphs(compile_by):
    """The graphs that are compiled, each as a list of what it calls; they run as they are."""
    found = []

    def note(graph, _inputs):
        found.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    compile_by(note)
    return found


@pytest.mark.parametrize("background", [False, True])
def test_network_loss_and_measurements_are_one_region(toy, graphs, background):
    """One to train, one to evaluate, though last batches are smaller and a thread evaluates."""
    settings = {"accumulate": 2, "ema": 0.9, "background": background}
    done = toy.done(runtime=COMPILED, **settings)
    assert len(graphs) == 2
    for calls in graphs:
        text = " ".join(calls)
        assert "linear" in text and "cross_entropy" in text and "argmax" in text
    assert compilation.events == []
    assert done.curves() == toy.run("plain", **settings).curves()


def test_a_job_that_goes_on_at_a_smaller_last_batch_compiles_the_usual_shape(toy, compile_by):
    """It would compile that batch, and run all others as they are, with other bits."""
    rows = []

    def note(graph, inputs):
        labels = [each for each in inputs if (each.ndim, each.dtype) == (1, torch.int64)]
        rows.append({len(each) for each in labels})
        return graph.forward

    compile_by(note)
    toy.run("paused", stop=At("step", STEPS - 1), runtime=COMPILED)
    torch._dynamo.reset()  # as in another process
    rows.clear()
    assert toy.run("paused", runtime=COMPILED).status == 0
    assert rows[0] == {8}


def test_a_job_compiles_on_its_fraction_of_the_cores(monkeypatch):
    monkeypatch.setattr(config, "compile_threads", 32)
    monkeypatch.setattr(machine, "cores", lambda: 3)
    compilation.compiled(of_texts, "on")
    assert config.compile_threads == 3
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "32")
    monkeypatch.setattr(config, "compile_threads", 32)
    compilation.compiled(of_texts, "on")
    assert config.compile_threads == 32


@pytest.mark.skipif(not hasattr(config, "deterministic"), reason="torch cannot do so yet")
def test_no_kernel_is_chosen_by_its_time_if_all_is_deterministic(monkeypatch):
    monkeypatch.setattr(config, "deterministic", False)
    for on in (False, True):
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda on=on: on)
        compilation.compiled(of_texts, "max-autotune")
        assert config.deterministic is on


@dataclass
class Texts:
    """A batch of texts, as long as the longest."""

    tokens: Tensor  # (B, T)
    label: Tensor  # (B,)


def texts(count: int, length: int) -> Texts:
    return Texts(torch.randint(20, (count, length)), torch.randint(3, (count,)))


def of_texts(model, batch, _settings):
    losses = torch.nn.functional.cross_entropy(model(batch.tokens), batch.label, reduction="none")
    return losses.mean(), {"loss": losses}


def test_batches_of_any_length_are_compiled_once_more(graphs):
    prepared = Prepared(of_texts, Precision("fp32", torch.device("cpu")), compile="on")
    model = torch.nn.EmbeddingBag(20, 3)
    sizes = [(8, 5), (8, 5), (3, 5), (8, 9), (8, 4), (8, 7), (2, 6), (8, 5)]
    compiled = []
    for size in sizes:
        batch = texts(*size)
        loss, measured = prepared(model, batch, None)
        assert torch.equal(loss, of_texts(model, batch, None)[0])
        assert measured["loss"].shape == size[:1]
        compiled.append(len(graphs))
    assert compiled == [1, 1, 1, 2, 2, 2, 2, 2]
    assert compilation.events == []


def test_many_functions_are_compiled_each_for_itself(graphs):
    """torch's limit is eight for each."""
    model, batch = torch.nn.EmbeddingBag(20, 3), texts(8, 5)
    for number in range(1, 7):
        prepared = Prepared(of_texts, Precision("fp32", torch.device("cpu")), compile="on")
        for training in (True, False):
            prepared(model.train(training), batch, None)
        assert len(graphs) == 2 * number
    assert compilation.events == []


class TwoForwards(Loop):
    """Two compiled functions: one trains, the other evaluates in a thread meanwhile."""

    def train(self, job, forward, model, batches, val):
        self.other = job.prepare(lambda *args: self.forward(*args), job.settings.precision)
        super().train(job, forward, model, batches, val)

    def evaluate(self, model, job, forward, *others):
        return super().evaluate(model, job, self.other, *others)


def test_one_thread_evaluates_while_another_compiles(toy, graphs):
    done = toy.done(loop=TwoForwards(), runtime=COMPILED, background=True)
    assert len(graphs) == 2
    assert done.curves() == toy.run("plain", background=True).curves()


def test_random_numbers_of_training_while_a_thread_compiles(toy, compile_by):
    """torch.compile sets the global random numbers back to where they were when it began."""
    last_batch, compiling, drawn = threading.Event(), threading.Event(), threading.Event()
    steps = iter(range(1, 100))

    def hook(what, _job):
        if what == "batch":
            last_batch.wait(1)
        elif (step := next(steps)) == 2 * STEPS:
            last_batch.set()
            compiling.wait(1)
        elif step > 2 * STEPS:
            drawn.set()

    def backend(graph, _inputs):
        if threading.current_thread() is not threading.main_thread():
            compiling.set()
            drawn.wait(1)
        return graph.forward

    compile_by(backend)
    done = toy.run(loop=Loop(hook=hook), runtime=COMPILED, background=True)
    assert compiling.is_set()
    assert done.curves() == toy.run("plain", background=True).curves()


class Broken(Loop):
    """A forward function that cannot be compiled in one piece."""

    def __init__(self):
        super().__init__(forward=self.breaking)

    def breaking(self, model, batch, settings):
        print("not to be compiled")
        return forward(model, batch, settings)


def test_what_slows_compiled_code_is_logged_in_a_line_with_its_place(toy, graphs):
    done = toy.done(loop=Broken(), runtime=COMPILED)
    place = f"{__file__}:{Broken.breaking.__code__.co_firstlineno + 1}"
    told = f"torch.compile: Graph break in user code at {place}: Graph Break Reason: "
    assert told in done.log
    assert done.log.count(told) == 1


def test_a_function_that_torch_compiles_no_more_is_named(graphs):
    """After eight variants it runs as it is."""
    given = lambda model, batch, number: (model(batch).sum() * number, {})  # noqa: E731
    prepared = Prepared(given, Precision("fp32", torch.device("cpu")), compile="on")
    model, batch = torch.nn.Linear(2, 1), torch.ones(3, 2)
    for number in range(10):
        prepared(model, batch, number)
    assert [event for event in compilation.events if " hit config." in event and "reason" in event]


def test_auto_decides_once_when_the_length_of_the_job_is_known(graphs):
    answers = iter([None, True])
    precision = Precision("fp32", torch.device("cpu"))
    prepared = Prepared(of_texts, precision, "auto", pays=lambda _: next(answers))
    model, batch = torch.nn.EmbeddingBag(20, 3), texts(8, 5)
    compiled = []
    for _ in range(3):
        prepared(model, batch, None)
        compiled.append(len(graphs))
    assert compiled == [0, 1, 1]


def test_auto_compiles_nothing_on_a_cpu(toy, graphs, monkeypatch):
    monkeypatch.setattr(compilation, "WORTH", 0.0)
    toy.done()
    assert graphs == []


def test_what_the_loop_replaces_is_logged_as_it_is_then(graphs):
    """Not by the sum that compiled code made of the value before."""
    prepared = Prepared(of_texts, Precision("fp32", torch.device("cpu")), compile="on")
    _, measured = prepared(torch.nn.EmbeddingBag(20, 3), texts(8, 5), None)
    twos = torch.full((8,), 2.0)
    both = measured | {"loss": twos}
    measured["loss"] = twos
    for replaced in (both, measured):
        means = Means()
        means.add(replaced)
        assert means.read() == {"loss": 2.0}
