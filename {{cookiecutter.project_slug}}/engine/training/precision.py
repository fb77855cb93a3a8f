"""The number format of the forward pass and the loss.

fp32: everything in 32 bits. tf32: matrix products of 19-bit inputs on the tensor cores. bf16, fp16:
autocast to 16 bits, weights and optimizer in 32; fp16 needs its loss scaled, bf16 does not.
Source: docs.pytorch.org/docs/stable/amp.html, .../notes/cuda.html#tf32-on-ampere.
"""

from contextlib import AbstractContextManager, nullcontext

import torch

from engine.errors import SettingsError

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve(name: str, device: torch.device) -> str:
    """The precision that a name means on a device.

    `auto` is bf16 on a GPU that computes in it, else fp32. Raises SettingsError for one that the
    device does not have.
    """
    gpu = device.type == "cuda"
    if name == "auto":
        return "bf16" if gpu and _computes_in_bf16(device) else "fp32"
    if name == "fp16" and not gpu:
        raise SettingsError(f"--precision fp16: needs a CUDA GPU, this job runs on {device.type}")
    if name == "tf32" and not gpu:
        raise SettingsError(f"--precision tf32: needs a CUDA GPU, this job runs on {device.type}")
    return name


def _computes_in_bf16(gpu: torch.device) -> bool:
    with torch.cuda.device(gpu):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


class Precision:
    """A device and the number format of the computations on it."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device = resolve(name, device), device
        if device.type == "cuda":
            torch.set_float32_matmul_precision("highest" if self.name == "fp32" else "high")
            torch.backends.cudnn.allow_tf32 = self.name != "fp32"

    def autocast(self) -> AbstractContextManager[None]:
        """A context in which operations run in 16 bits where that is safe, if it is to be so."""
        half = HALF.get(self.name)
        return torch.autocast(self.device.type, half) if half else nullcontext()

    def scaler(self) -> torch.amp.GradScaler:
        """Scales the loss for fp16; passes everything through for the others."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")
