"""Training on what the loop makes itself, without batches: `job.steps()`."""

import pytest
import torch
from attempts import At
from labjobs.settings import Span
from toy import Loop


class Walk:
    """Makes batches by a random walk, which goes on where it was."""

    def __init__(self) -> None:
        self.at = torch.zeros(6)

    def batch(self):
        self.at = 0.9 * self.at + torch.randn(6)
        inputs = self.at + torch.randn(8, 6)
        return inputs, inputs[:, :3].argmax(1)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class MadeData(Loop):
    examples = 8
    forgets = False

    def train(self, job, forward, model, batches, val):
        walk, plain = Walk(), (job.resume, job.steps)
        self.numbers = []

        def resume(**parts):
            plain[0](**parts, **({} if self.forgets else {"walk": walk}))

        def steps(_):
            for number in plain[1](examples=self.examples):
                self.numbers.append(number)
                yield walk.batch()

        job.resume, job.steps = resume, steps
        super().train(job, forward, model, batches, val)

    def batches(self, job):
        """None: `steps` makes them."""


LENGTH = {"steps": 12, "eval_every": Span("4")}


@pytest.mark.parametrize("stop", [At("step", 9), At("batch", 2)])
def test_interrupted_it_continues_exactly(toy, stop):
    whole = toy.done("whole", MadeData(), **LENGTH)
    stopped = toy.run("parts", MadeData(), stop=stop, **LENGTH)
    assert stopped.status == 143, stopped.said
    parts = toy.done("parts", MadeData(), **LENGTH)
    assert parts.content() == whole.content()


def test_it_is_not_mixed_with_batches(toy):
    class Mixed(MadeData):
        def step(self, job, *others):
            super().step(job, *others)
            if job.step == 4:
                next(type(job).steps(job, job.batches(self.train_on, 8)))

    done = toy.run(loop=Mixed(), **LENGTH)
    assert done.status == 1 and "a job trains on one set of batches; where" in done.said
