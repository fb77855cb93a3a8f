"""Environments, and what a policy does in them.

There is no dataset: training data is made by the policy. Many copies of an environment run at once,
as tensors on the job's device, so acting waits for nothing and copies nothing.

To add an environment, write a class such as `Balance` and a line in ENVIRONMENTS. Random numbers
are torch's global ones, which are restored with the job. If an environment is not written in torch,
put everything that changes in it into the state of `Experience`; docs/example.md says what else to
do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from labjobs import Stateful
from models import Spec
from settings import Settings

EPISODES = 100
"""Episodes of an evaluation."""

SEEDS = {"val": 1_000_001, "test": 1_000_002}
"""Seeds of the states in which the episodes of an evaluation start."""


class Batch(NamedTuple):
    """Steps in the environment, with what the policy that took them saw."""

    observation: Tensor  # (B, D)
    action: Tensor  # (B,), int64
    log_probability: Tensor  # (B,), of the action
    advantage: Tensor  # (B,)
    value: Tensor  # (B,), the discounted return that the critic should predict


class Outcome(NamedTuple):
    """The outcome of one step in each copy."""

    state: Tensor  # (B, S)
    reward: Tensor  # (B,)
    over: Tensor  # (B,), whether the episode has ended, other than by its limit


class Environment(Protocol):
    """Copies of an environment: functions of their states (B, S)."""

    actions: tuple[str, ...]
    features: int
    limit: int
    """Steps after which an episode is cut off."""

    def start(self, count: int, device: torch.device, random: torch.Generator | None) -> Tensor:
        """Return random states (B, S) in which episodes start."""

    def observe(self, state: Tensor) -> Tensor:
        """Return what the policy sees of the states: (B, D)."""

    def step(self, state: Tensor, action: Tensor) -> Outcome:
        """Take actions (B,)."""

    def heuristic(self, state: Tensor) -> Tensor:
        """Return the actions (B,) of a policy written by hand, to compare with."""


class CartPole:
    """A pole on a hinge on a cart, which is pushed to the left or to the right, 50 times a second.

    A state is position (m), velocity, angle from upright (rad) and angular velocity. Masses,
    lengths and equations are those of Barto, Sutton & Anderson 1983,
    doi.org/10.1109/TSMC.1983.6313077, without friction.
    """

    actions: tuple[str, ...] = ("left", "right")
    features = 5
    limit = 500
    track = 2.4  # m, to each side

    def observe(self, state: Tensor) -> Tensor:
        """Return what the policy sees of the states, each number about 1: (B, 5)."""
        x, v, angle, w = state.unbind(1)
        return torch.stack([x / self.track, v / 2, angle.cos(), angle.sin(), w / 5], 1)

    def move(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the states (B, 4) after 0.02 s, by a semi-implicit Euler step."""
        x, v, angle, w = state.unbind(1)
        force = 20.0 * action - 10  # N
        sin, cos = angle.sin(), angle.cos()
        push = (force + 0.05 * w * w * sin) / 1.1  # pole: 0.1 kg, 1 m; together: 1.1 kg
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        v = v + 0.02 * (push - 0.05 * turn * cos / 1.1)
        w = w + 0.02 * turn
        return torch.stack([x + 0.02 * v, v, angle + 0.02 * w, w], 1)


class Balance(CartPole):
    """Keep the pole up: a reward of 1 for each step until it leans by 12° or the cart leaves the
    track."""

    def start(self, count: int, device: torch.device, random: torch.Generator | None) -> Tensor:
        """Return states near upright, at rest in the middle."""
        return 0.1 * torch.rand(count, 4, device=device, generator=random) - 0.05

    def step(self, state: Tensor, action: Tensor) -> Outcome:
        """Take actions (B,)."""
        state = self.move(state, action)
        over = (state[:, 0].abs() > self.track) | (state[:, 2].abs() > 0.21)
        return Outcome(state, torch.ones_like(state[:, 0]), over)

    def heuristic(self, state: Tensor) -> Tensor:
        """Push to the side to which the pole leans and falls."""
        return (state[:, 2] + state[:, 3] > 0).long()


class SwingUp(CartPole):
    """Swing the hanging pole up and keep it there: a reward of (1 + cos(angle)) / 2 for each step,
    until the cart leaves the track."""

    def start(self, count: int, device: torch.device, random: torch.Generator | None) -> Tensor:
        """Return states near hanging, at rest in the middle."""
        near = 0.4 * torch.rand(count, 4, device=device, generator=random) - 0.2
        return near + torch.tensor([0, 0, torch.pi, 0], device=device)

    def step(self, state: Tensor, action: Tensor) -> Outcome:
        """Take actions (B,)."""
        state = self.move(state, action)
        return Outcome(state, (1 + state[:, 2].cos()) / 2, state[:, 0].abs() > self.track)

    def heuristic(self, state: Tensor) -> Tensor:
        """Give the pole energy until it has enough to be upright; near there, lean against it.

        Source: Åström & Furuta 2000, doi.org/10.1016/S0005-1098(99)00140-5.
        """
        x, v, angle, w = state.unbind(1)
        lean = torch.atan2(angle.sin(), angle.cos())
        energy = w * w / 3 + 9.8 * (angle.cos() - 1)
        pump = torch.where(energy < 0, -1.0, 1.0) * w * angle.cos() - 0.5 * x - 0.5 * v
        hold = lean + 0.25 * w + 0.05 * x + 0.1 * v
        return (torch.where(lean.abs() < 0.35, hold, pump) > 0).long()


ENVIRONMENTS: dict[str, type[Environment]] = {
    "swing-up": SwingUp,
    "balance": Balance,
}


class Parts(NamedTuple):
    """What a job needs besides its policy."""

    environment: Environment
    val: TensorDataset
    test: TensorDataset
    spec: Spec


def load(settings: Settings, _root: Path) -> Parts:
    """Return the environment that the settings name, and the states (4,) in which the episodes of
    an evaluation start: never the same ones in validation and test, whatever the job's seed."""
    environment = ENVIRONMENTS[settings.environment]()
    val, test = (
        TensorDataset(
            environment.start(EPISODES, torch.device("cpu"), torch.Generator().manual_seed(seed))
        )
        for seed in SEEDS.values()
    )
    return Parts(environment, val, test, Spec(environment.features, environment.actions))


class Experience(Stateful):
    """What the policy experiences in `--environments` copies, which start anew whenever an episode
    ends, as batches to train on.

    `collect` lets all copies take `--rollout` steps; `batch` returns these in random order,
    `--passes` times. Everything that changes is in the state, so a job can continue in the middle
    of an episode and of a pass.
    """

    kept = ("state", "age", "gained", "steps", "order", "given", *Batch._fields)

    def __init__(self, environment: Environment, settings: Settings, device: torch.device) -> None:
        self.environment, self.settings = environment, settings
        copies, size = settings.environments, settings.environments * settings.rollout
        self.state = environment.start(copies, device, None)  # (E, S)
        self.age = torch.zeros(copies, device=device)  # steps of the episodes so far
        self.gained = torch.zeros(copies, device=device)  # their returns so far
        self.steps = 0  # taken in the environment, in all copies together
        self.observation = torch.zeros(size, environment.features, device=device)
        self.action, self.order = torch.zeros(2, size, dtype=torch.long, device=device)
        self.log_probability, self.advantage, self.value = torch.zeros(3, size, device=device)
        self.given = settings.passes * size  # of the rollout, which has not been made yet

    @property
    def used(self) -> bool:
        """Whether the rollout has been trained on as often as it should be."""
        return self.given >= self.settings.passes * len(self.order)

    @torch.no_grad()
    def collect(self, model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
        """Act in all copies for a rollout. Returns the sums of the returns and the lengths of the
        episodes that ended, each with their number."""
        steps = [self._step(model) for _ in range(self.settings.rollout)]
        seen, action, log_probability, reward, over, ended, value, after, gained, age = (
            torch.stack(each) for each in zip(*steps, strict=True)
        )  # (T, E, …)
        # An episode that was cut off would have gone on: the critic estimates the rewards still to
        # come.
        to_come = model(self.environment.observe(after.flatten(0, 1)))[1].view_as(value) * ~over
        advantage = self._advantages(reward, value, to_come, ended)
        self.observation, self.action = seen.flatten(0, 1), action.flatten()
        self.log_probability = log_probability.flatten()
        self.value = (advantage + value).flatten()
        spread = advantage.std(correction=0) + 1e-8
        self.advantage = ((advantage - advantage.mean()) / spread).flatten()
        self.given, self.steps = 0, self.steps + len(self.order)
        count = ended.sum()
        return {"return": ((gained * ended).sum(), count), "length": ((age * ended).sum(), count)}

    def batch(self) -> Batch:
        """Return the next batch of the rollout."""
        begin = self.given % len(self.order)
        if begin == 0:
            self.order = torch.randperm(len(self.order), device=self.order.device)
        rows = self.order[begin : begin + self.settings.batch_size]
        self.given += len(rows)
        return Batch(*(getattr(self, name)[rows] for name in Batch._fields))

    def _step(self, model: nn.Module) -> tuple[Tensor, ...]:
        """Take one step in all copies; return the observations (E, D), the actions and the
        outcome."""
        environment, before = self.environment, self.state
        seen = environment.observe(before)
        logits, value = model(seen)
        log_probabilities = logits.log_softmax(-1)
        # The Gumbel-max trick: torch.multinomial would wait for the device.
        noise = -torch.empty_like(logits).exponential_().log()
        action = (log_probabilities + noise).argmax(-1)
        log_probability = log_probabilities.gather(1, action[:, None]).squeeze(1)
        after, reward, over = environment.step(before, action)
        age, gained = self.age + 1, self.gained + reward
        ended = over | (age >= environment.limit)
        anew = environment.start(len(after), after.device, None)
        self.state = torch.where(ended[:, None], anew, after)
        self.age, self.gained = age * ~ended, gained * ~ended
        return seen, action, log_probability, reward, over, ended, value, after, gained, age

    def _advantages(self, reward: Tensor, value: Tensor, to_come: Tensor, ended: Tensor) -> Tensor:
        """Return generalised advantage estimates (T, E) of the steps of a rollout.

        Rewards are scaled by 1 - discount, so that values are as large as rewards, not as returns.
        Source: Schulman et al. 2016, arxiv.org/abs/1506.02438.
        """
        discount = self.settings.discount
        errors = (1 - discount) * reward + discount * to_come - value
        factors = discount * self.settings.gae_lambda * ~ended
        advantages = torch.zeros_like(errors)
        later = torch.zeros_like(errors[0])
        for step in reversed(range(len(errors))):
            later = advantages[step] = errors[step] + factors[step] * later
        return advantages


Policy = Callable[[Tensor], Tensor]
"""Actions (B,) of states (B, S)."""


def greedy(environment: Environment, model: nn.Module) -> Policy:
    """Return the policy that takes a model's most probable action."""
    return lambda state: model(environment.observe(state))[0].argmax(-1)


def random(environment: Environment, device: torch.device) -> Policy:
    """Return the policy that takes random actions, from its own random generator."""
    own = torch.Generator(device).manual_seed(0)
    actions = len(environment.actions)
    return lambda state: torch.randint(actions, state.shape[:1], generator=own, device=device)


class Episodes(NamedTuple):
    """Whole episodes."""

    gained: Tensor  # (B,), the return
    length: Tensor  # (B,), in steps
    states: Tensor  # (B, limit + 1, S); from the end of the episode on, the last one


@torch.no_grad()
def episodes(environment: Environment, policy: Policy, start: Tensor) -> Episodes:
    """Return the episodes that start in these states (B, S)."""
    going = torch.ones(len(start), dtype=torch.bool, device=start.device)
    gained = length = torch.zeros(len(start), device=start.device)
    states = [start]
    for _ in range(environment.limit):
        state, reward, over = environment.step(states[-1], policy(states[-1]))
        states.append(torch.where(going[:, None], state, states[-1]))
        gained, length = gained + reward * going, length + going
        going = going & ~over
    return Episodes(gained, length, torch.stack(states, 1))
