"""What holds for all environments in data.py, whichever they are."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import data
import models
from settings import Settings

CPU = torch.device("cpu")
STEPS = 30


@pytest.fixture(params=data.ENVIRONMENTS)
def environment(request):
    """Each environment."""
    return data.ENVIRONMENTS[request.param]()


def test_what_an_environment_says_of_itself_is_so(environment):
    """Shapes, types, and actions that there are."""
    state = environment.start(7, CPU, None)
    assert environment.observe(state).shape == (7, environment.features)
    for action in range(len(environment.actions)):
        after = environment.step(state, torch.full((7,), action))
        assert after.state.shape == state.shape and after.state.isfinite().all()
        assert (after.reward.shape, after.over.shape, after.over.dtype) == ((7,), (7,), torch.bool)
    assert {*environment.heuristic(state).tolist()} <= {*range(len(environment.actions))}


def test_each_copy_is_an_environment_of_its_own(environment):
    """What happens in one does not depend on the others."""
    state = environment.start(7, CPU, None)
    action = torch.arange(7) % len(environment.actions)
    together = environment.step(state, action)
    for copy in range(7):
        alone = environment.step(state[copy : copy + 1], action[copy : copy + 1])
        for whole, part in zip(together, alone, strict=True):
            assert torch.allclose(whole[copy], part[0])


@pytest.mark.parametrize("name", data.ENVIRONMENTS)
def test_validation_and_test_start_elsewhere_and_always_there(name):
    """Whatever the job's seed."""
    first, again = (data.load(Settings(environment=name, seed=n), Path()) for n in (0, 1))
    val, test = first.val.tensors[0], first.test.tensors[0]
    assert len(val) == len(test) == data.EPISODES
    assert not (val[:, None] == test).all(-1).any()
    assert torch.equal(val, again.val.tensors[0]) and torch.equal(test, again.test.tensors[0])


@pytest.mark.parametrize("name", data.ENVIRONMENTS)
def test_experience_goes_on_from_its_state(name):
    """In the middle of episodes and passes; otherwise a job could not be continued."""
    settings = Settings(environment=name, environments=4, rollout=6, batch_size=8)
    parts = data.load(settings, Path())
    model = models.make(settings, parts.spec)

    def batches(experience, count):
        for _ in range(count):
            if experience.used:
                experience.collect(model)
            yield experience.batch()

    whole = data.Experience(parts.environment, settings, CPU)
    [*batches(whole, STEPS)]
    state = {key: torch.as_tensor(value).clone() for key, value in whole.state_dict().items()}
    random = torch.get_rng_state()
    expected = [*batches(whole, STEPS)]
    other = data.Experience(parts.environment, replace(settings), CPU)
    other.load_state_dict({key: v if v.ndim else int(v) for key, v in state.items()})
    torch.set_rng_state(random)
    for one, two in zip(expected, batches(other, STEPS), strict=True):
        assert all(torch.equal(left, right) for left, right in zip(one, two, strict=True))
