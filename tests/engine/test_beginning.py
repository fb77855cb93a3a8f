"""--init-from: a job starts from another job's best weights, or continues its training."""

from dataclasses import replace

import optimizers
import pytest
from attempts import At, plain
from labjobs import layout
from labjobs.job import journal
from labjobs.settings import Span, Weights
from labjobs.training.init_from import Trained, can_go_on, extension_problem
from labjobs.training.optim import EMA
from settings import Settings as Template
from test_resume import ALL
from torch import nn
from toy import STEPS, Loop, network

CONSTANT = ALL | {"schedule": "constant"}


def end_of(ended):
    """The value of --init-from that continues a job's training."""
    return Weights(f"{ended.folder.parent.name}:last")


def best_of(ended):
    """The value of --init-from that names a job's best weights."""
    return Weights(ended.folder.parent.name)


def learnt(ended, after):
    """The whole state at the end, the best weights, and the curves from a step on."""
    best, last = ended.checkpoint("best.pt"), ended.checkpoint("last.pt")
    for kept in (best, last["best"]):
        kept.pop("settings", None)
        kept.pop("id", None)
    last["parts"]["job.length"].pop("_measured")
    curves = {
        name: [point for point in points if point[0] > after]
        for name, points in ended.curves().items()
    }
    return plain([best, last, curves])


def assert_goes_on(toy, first, whole, loop=None, runtime=None, stops=()):
    """Do a job in two parts, and hold the second one's end against a job that does all steps."""
    straight = toy.done("straight", loop, runtime=runtime, **whole)
    short = toy.done("parts", loop, runtime=runtime, **{**whole, **first})
    for stop in stops:
        settings = {**whole, "init_from": end_of(short)}
        stopped = toy.run("parts", loop, stop=stop, runtime=runtime, **settings)
        assert stopped.status == 143, stopped.said
    long = toy.done("parts", loop, runtime=runtime, **whole, init_from=end_of(short))
    steps = short.checkpoint("last.pt")["parts"]["job.position"]["step"]
    trained = [points for name, points in long.curves().items() if name.startswith("train_")]
    assert all(step > steps for points in trained for step, _ in points)
    assert learnt(long, steps) == learnt(straight, steps)
    return long


@pytest.mark.parametrize("reads", ["fraction_done", "total_steps"])
def test_a_job_that_read_its_length_outside_of_the_schedule_is_not_continued(toy, reads):
    """As for a curriculum: its steps would have been others in a longer job."""
    loop = Loop(hook=lambda what, job: getattr(job, reads))
    short = toy.run("parts", loop, **{**CONSTANT, "epochs": 2})
    assert short.status == 0, short.said
    long = toy.run("parts", loop, **{**CONSTANT, "epochs": 4}, init_from=end_of(short))
    assert long.status == 2
    assert "that job read its own length in test_beginning.py:" in long.said


@pytest.mark.parametrize("log_every", [1, 4])
@pytest.mark.parametrize("background", [False, True])
def test_the_end_is_that_of_a_job_that_does_all_steps(toy, background, log_every):
    runtime = {"log_every": log_every}
    whole = {**CONSTANT, "epochs": 5, "background": background}
    assert_goes_on(toy, {"epochs": 2}, whole, runtime=runtime)


@pytest.mark.parametrize(
    ("first", "whole"),
    [
        ({"steps": 10}, {"steps": 25, "eval_every": Span("5")}),  # in the middle of an epoch
        ({"epochs": 2, "steps": 0}, {"steps": 4 * STEPS}),
        ({"epochs": 4}, {"epochs": 6, "eval_every": Span("2e")}),
        ({"epochs": 2}, {"epochs": 4, "patience": 3}),
    ],
)
def test_in_steps_and_in_epochs(toy, first, whole):
    long = assert_goes_on(toy, first, {**CONSTANT, **whole}, runtime={"log_every": 3})
    said = f"continuing job {long.checkpoint('best.pt')['settings']['init_from'][:12]} after "
    assert said in long.log


@pytest.mark.parametrize("stops", [[At("step", 3)], [At("step", 9), At("batch", 2)]])
def test_interrupted_in_between(toy, stops):
    assert_goes_on(toy, {"epochs": 2}, {**CONSTANT, "epochs": 4}, stops=stops)


REFUSED = {
    "the length alone": ({"schedule": "linear"}, {"schedule": "linear"}, "in step 14 the learning"),
    "a decay that has begun": ({"epochs": 3}, {"schedule": "stable-linear"}, "in step 21 the"),
    "another rate": ({}, {"lr": 0.1}, "--lr is 0.1, but was 0.05 in that job; only the length"),
    "no longer": ({"epochs": 4}, {}, "it has done 28 steps, and this job has 28; make this job"),
    "minutes": ({}, {"minutes": 1.0}, "both jobs need a length in --steps or --epochs"),
    "between evaluations": (
        {"steps": 12, "eval_every": Span("5")},
        {"eval_every": Span("5")},
        "it ended between two evaluations, after 12 steps; its length must be a multiple of "
        "--eval-every 5",
    ),
    "stopped early": (
        {"epochs": 40, "patience": 1, "lr": 1.0},
        {"epochs": 80, "patience": 1, "lr": 1.0},
        "it stopped early, after ",
    ),
}


@pytest.mark.parametrize(("first", "longer", "said"), REFUSED.values(), ids=REFUSED)
def test_what_would_be_another_job_is_refused(toy, first, longer, said):
    short = toy.done(**{"epochs": 2, **first})
    long = toy.run(**{"epochs": 4, **longer}, init_from=end_of(short))
    assert long.status == 2
    (line,) = [each for each in long.said.splitlines() if "run.py: " in each]
    assert line.startswith(f"run.py: --init-from {end_of(short)}: {said}"), line
    assert not long.folder.exists()  # nothing was begun


def test_a_loop_that_does_not_say_its_schedule_is_refused(toy):
    short = toy.run()
    long = toy.run(check=lambda job: None, epochs=6, init_from=end_of(short))
    assert long.status == 1
    assert "check() in run.py has to call job.check_schedule(…)" in long.said


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_a_last_state_that_cannot_be_read_is_refused(toy, harm):
    short = toy.run(epochs=1)
    path = short.folder / "last.pt"
    path.unlink() if harm == "gone" else path.write_bytes(path.read_bytes()[:-100])
    long = toy.run(epochs=2, init_from=end_of(short))
    assert long.status == (2 if harm == "gone" else 1)
    said = "the last.pt of that job is gone" if harm == "gone" else "its last.pt is damaged"
    assert f"{end_of(short)}: {said}; " in long.said


# A fork: the same, under other settings


def fork_of(ended):
    """The value of --init-from that continues a job's training under other settings."""
    return Weights(f"{ended.folder.parent.name}:fork")


def test_a_fork_has_the_state_of_the_other_job_and_rates_of_its_own(toy):
    short = toy.done(**{**CONSTANT, "epochs": 2})
    longer = {**CONSTANT, "epochs": 4}
    same, last = (toy.done(**longer, init_from=of(short)) for of in (fork_of, end_of))
    assert learnt(same, 0) == learnt(last, 0)
    own = {"lr": 0.02, "momentum": 0.5}
    other = toy.done(**{**longer, **own}, init_from=fork_of(short))
    (group,) = other.checkpoint("last.pt")["parts"]["optimizer"]["param_groups"]
    assert (group["lr"], group["momentum"]) == (0.02, 0.5)
    first = min(step for step, _ in other.curves()["val_loss"])
    assert first == 3 * STEPS and learnt(other, 0) != learnt(last, 0)
    toy.done(**{**longer, **own, "schedule": "linear"}, init_from=fork_of(short))
    # Its first step has the moments of the other job, and only its own rates.
    assert other.curves()["train_loss"][0] == last.curves()["train_loss"][0]


@pytest.mark.parametrize(
    ("first", "longer", "status", "said"),
    [
        ({"schedule": "linear"}, {}, 2, "in step 14 the learning rate would be "),
        ({}, {"minutes": 1.0}, 2, "both jobs need a length in --steps or --epochs"),
        ({}, {"epochs": 2}, 2, "it has done 14 steps, and this job has 14; make this job longer"),
        ({}, {"batch_size": 16}, 1, "an epoch had 7 steps there, and has 4 here; give both jobs"),
    ],
)
def test_what_cannot_be_forked_is_refused(toy, first, longer, status, said):
    short = toy.done(**{"epochs": 2, **first})
    long = toy.run(**{"epochs": 4, **longer}, init_from=fork_of(short))
    assert (long.status, f"--init-from {fork_of(short)}: {said}" in long.said) == (status, True)


def test_a_fork_to_another_network_is_refused(toy):
    short = toy.done(epochs=1)
    long = toy.run(loop=Loop(network=wider), epochs=2, init_from=fork_of(short))
    assert long.status == 1
    assert f"--init-from {fork_of(short)}: its state does not fit the code (model: " in long.said


# Whether last.pt stays


@pytest.mark.parametrize(
    ("settings", "stays"),
    [
        ({}, True),
        ({"schedule": "linear"}, False),
        ({"schedule": "stable-linear"}, False),
        ({"steps": 12, "eval_every": Span("5")}, False),
        ({"epochs": 40, "patience": 1, "lr": 1.0}, False),
        ({"check": lambda job: None}, False),  # nothing is known of the schedule
    ],
)
def test_the_last_state_stays_where_a_longer_job_could_go_on(toy, settings, stays):
    ended = toy.done(keep_last=False, **settings)
    assert (ended.folder / "last.pt").exists() == stays
    assert journal.record_of(ended.folder, layout.OUTCOME)["goes_on"] == stays
    assert not (ended.folder / "previous.pt").exists()


def test_of_a_job_that_has_not_finished_it_stays(toy):
    stopped = toy.run("stopped", keep_last=False, stop=At("step", 9), schedule="linear")
    tested = toy.run("tested", keep_last=False, stop=At("batch", 10), schedule="linear")
    for ended in (stopped, tested):
        assert ended.status == 143, ended.said
        assert (ended.folder / "last.pt").exists()


# The best weights of another job


class Looks(Loop):
    """Notes the weights that a job begins with, of its model and its EMA."""

    def train(self, job, forward, model, batches, val):
        self.weights = plain(dict(model.state_dict()))
        self.averaged = plain(dict(EMA(model, 0.9).model.state_dict()))
        super().train(job, forward, model, batches, val)


def test_a_job_begins_with_the_best_weights_of_another(toy):
    first = toy.run(lr=0.1)
    looks = Looks()
    second = toy.done(loop=looks, seed=1, epochs=1, ema=0.9, init_from=best_of(first))
    best = plain(first.checkpoint("best.pt")["models"]["model"])
    assert looks.weights == looks.averaged == best
    assert f"--init-from {best_of(first)}: 9 of 9 weights of model are taken" in second.log
    assert second.curves()["train_loss"][0][0] < STEPS


def wider():
    """A network with a further class, and one layer under another name."""
    layers = network()
    layers[4] = nn.Linear(8, 4)
    layers.add_module("further", nn.Linear(4, 4))
    return layers


def test_what_does_not_fit_is_named(toy):
    first = toy.run(epochs=1)
    looks = Looks(network=wider)
    second = toy.done(loop=looks, epochs=1, init_from=best_of(first))
    best = plain(first.checkpoint("best.pt")["models"]["model"])
    assert {name for name in best if looks.weights.get(name) == best[name]} == {
        name for name in best if not name.startswith("4.")
    }
    flag = f"--init-from {best_of(first)}"
    assert f"{flag}: 7 of 11 weights of model are taken" in second.log
    keep = "keep their initial values: 4.weight, 4.bias, further.weight, further.bias"
    assert f"{flag}: of model {keep}\n" in second.log
    assert f"{flag}: of model are not used: 4.weight, 4.bias\n" in second.log
    back = toy.run(loop=Loop(), epochs=1, init_from=best_of(second), seed=2)
    assert back.status == 0, back.said
    assert "are not used: 4.weight, 4.bias, further.weight, further.bias\n" in back.log


def test_continued_it_does_not_begin_with_them_again(toy):
    first = toy.run(epochs=1)
    settings = {"epochs": 3, "seed": 1, "init_from": best_of(first)}
    assert toy.run("whole", stop=At("step", 9), **settings).status == 143
    parts = toy.done("whole", **settings)
    again = toy.done("whole", **settings, runtime={"force": True})
    assert replace(parts, status=0).content() == again.content()


# The template's own schedules


def test_of_the_templates_schedules_two_can_go_on():
    done = Trained(60, 6, early=False)
    kept = {
        name
        for name in optimizers.SCHEDULES
        if can_go_on(Template(steps=60, schedule=name, warmup=Span("1e")), optimizers.factor, done)
    }
    assert kept == {"constant", "plateau"}


@pytest.mark.parametrize(("steps", "begun"), [(80, False), (74, False), (73, True), (61, True)])
def test_constant_goes_on_as_warm_up_stable_decay_until_the_decay_begins(steps, begun):
    """The decay is over the last fifth of what comes after the warm-up."""
    short = Template(steps=60, schedule="constant", eval_every=Span("20"))
    long = Template(steps=steps, schedule="wsd", eval_every=Span("20"))
    said = extension_problem(long, short, optimizers.factor, Trained(60, 6, early=False))
    assert bool(said) == begun
    assert said.startswith("in step 60 the learning rate would be 0." if begun else "")
