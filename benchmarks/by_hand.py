"""The loop by hand of buildup.py, with the options of a job: `by_hand.py FLAGS` in a project.

Prints the milliseconds of a step: the mean of 20, after 10 to warm up.
"""

import sys
import time
from contextlib import nullcontext

import data
import models
import torch
from labjobs import devices
from labjobs.cli.parser import parse
from labjobs.data import batches
from labjobs.job.runtime import Runtime
from settings import Settings
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

WARM_UP, STEPS = 10, 20


def loss_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """The network and its loss, which are compiled together."""
    return cross_entropy(model(inputs).flatten(0, -2), labels.flatten().long())


def main() -> None:
    """Train, and print the time."""
    settings, runtime = parse(Settings, Runtime, sys.argv[1:])
    device = devices.choose(runtime.device)
    torch.set_float32_matmul_precision("highest" if settings.precision == "fp32" else "high")
    parts = data.load(settings, runtime.data_root)
    model = models.make(settings, parts.spec).to(device)
    whole = torch.compile(loss_of, dynamic=False) if runtime.compile == "on" else loss_of
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999)) if settings.ema else None
    half = settings.precision == "bf16"
    every = batches.make(parts.train, device, settings.batch_size, seed=settings.seed)
    for step, batch in enumerate(every):
        inputs, *labels = batch
        inputs, labels = (inputs, *labels) if labels else (inputs[:, :-1], inputs[:, 1:])
        if step == WARM_UP:
            devices.wait(device)
            begun = time.perf_counter()
        if step == WARM_UP + STEPS:
            break
        with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
            loss = whole(model, inputs, labels)
        loss.backward()
        if settings.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if ema:
            ema.update_parameters(model)
            schedule.step()
    devices.wait(device)
    print(1000 * (time.perf_counter() - begun) / STEPS)


if __name__ == "__main__":
    main()
