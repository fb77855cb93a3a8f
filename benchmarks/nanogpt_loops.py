"""The loops of nanogpt.py, in a project made from the example `language`.

    nanogpt_loops.py speed TURNS STEPS FLAGS…    run.py's loop and one by hand in turn, STEPS each
    nanogpt_loops.py curve STEPS EVERY FLAGS…    the loop by hand, evaluated every EVERY steps

The loop by hand is one in the manner of nanoGPT's train.py (github.com/karpathy/nanoGPT): batches
are picked at random places of the mapped tokens, and the loss is printed every ten steps. The
network, its initialization and the optimizer are the project's, the schedule is the same.
"""

import contextlib
import io
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import data
import models
import numpy as np
import optimizers
import texts
import torch
from labjobs.cli.parser import parse
from labjobs.job.runtime import Runtime
from settings import Settings
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from turns import Loops, seconds_per_step


class ByHand:
    """A loop in nanoGPT's manner, `total` steps long."""

    def __init__(self, settings: Settings, total: int) -> None:
        self.settings, self.total = settings, total
        torch.manual_seed(settings.seed)
        root = Path.cwd() / "data"
        text = data.DATASETS[settings.dataset](settings, root)
        self.folder = texts.tokenized(text, texts.Tokenizer())
        self.model = models.make(settings, models.Spec(settings.context, 256)).train()
        self.optimizer = optimizers.make(self.model, settings)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Windows at random places, and what follows them."""
        tokens = np.memmap(self.folder / "train.bin", dtype=np.uint8, mode="r")
        length = self.settings.context
        places = torch.randint(len(tokens) - length, (self.settings.batch_size,))
        x = torch.stack([torch.from_numpy(tokens[i : i + length].astype(np.int64)) for i in places])
        y = torch.stack(
            [torch.from_numpy(tokens[i + 1 : i + 1 + length].astype(np.int64)) for i in places]
        )
        return x, y

    def rate(self, step: int) -> float:
        """The learning rate: it rises linearly, then falls along a cosine."""
        warmup = int(str(self.settings.warmup))
        if step < warmup:
            return self.settings.lr * (step + 1) / (warmup + 1)
        done = (step - warmup) / (self.total - warmup)
        return self.settings.lr * 0.5 * (1.0 + math.cos(math.pi * done))

    def steps(self) -> Iterator[int]:
        """Take a step each time that the next is asked for."""
        x, y = self.batch()
        for step in range(self.total):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(step)
            logits = self.model(x)
            loss = cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))
            x, y = self.batch()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if step % 10 == 0:
                print(f"iter {step}: loss {loss.item():.4f}")
            yield step + 1

    @torch.no_grad()
    def val_loss(self) -> float:
        """The mean loss of the validation part, in the windows of run.py."""
        part = data.load(self.settings, Path.cwd() / "data").val
        self.model.eval()
        losses = [
            cross_entropy(self.model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten().long())
            for window in part.tensors[0].split(1)
        ]
        self.model.train()
        return torch.stack(losses).mean().item()


def in_turns(loop: ByHand, steps: int) -> Iterator[None]:
    """Yield after each `steps` optimizer steps of the loop."""
    with contextlib.redirect_stdout(io.StringIO()):
        for step in loop.steps():
            if step % steps == 0:
                yield


def speed(turns: int, steps: int, flags: list[str]) -> dict[str, list[float]]:
    """Return the seconds per step of run.py's loop and of the loop by hand, turn by turn."""

    def by_hand(settings: Settings) -> Loops:
        """Return the loop by hand, for these settings."""
        return {"by hand": in_turns(ByHand(settings, turns * steps), steps)}

    return seconds_per_step(by_hand, turns, steps, flags)


def curve(steps: int, every: int, flags: list[str]) -> list[float]:
    """Return the validation loss of the loop by hand after each `every` steps."""
    settings, _ = parse(Settings, Runtime, [*flags, "--steps", str(steps)])
    torch.set_num_threads(1)
    loop = ByHand(settings, steps)
    return [loop.val_loss() for step in loop.steps() if step % every == 0]


def main() -> None:
    """Print what was asked for, as JSON in the last line."""
    measure = {"speed": speed, "curve": curve}[sys.argv[1]]
    first, second = map(int, sys.argv[2:4])
    print(json.dumps(measure(first, second, sys.argv[4:])), flush=True)


if __name__ == "__main__":
    main()
