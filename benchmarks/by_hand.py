"""The loop by hand of buildup.py, with the options of a job: `by_hand.py FLAGS` in a project.

Prints the milliseconds of a step: the mean of 20, after 10 to warm up.
"""

import sys
import time
from contextlib import nullcontext

import torch
from engine.cli import parser as cli
from engine.training import devices
from run import Settings, load
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

WARM_UP, STEPS = 10, 20


def main() -> None:
    """Train, and print the time."""
    settings = cli.parse(Settings, sys.argv[1:])
    device = devices.choose("auto")
    torch.set_float32_matmul_precision("highest" if settings.precision == "fp32" else "high")
    batches, _, _, _, model = load(settings, device)
    forward = torch.compile(model, dynamic=False) if settings.compile == "on" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999)) if settings.ema else None
    half = settings.precision == "bf16"
    for step, (inputs, labels) in enumerate(batches.epoch()):
        if step == WARM_UP:
            devices.wait(device)
            begun = time.perf_counter()
        if step == WARM_UP + STEPS:
            break
        with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
            logits = forward(inputs)
            loss = cross_entropy(logits.flatten(0, -2), labels.flatten())
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
