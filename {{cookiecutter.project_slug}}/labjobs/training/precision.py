"""The number format of the forward pass and the loss.

fp32: everything in 32 bits. tf32: matrix products of 19-bit inputs on the tensor cores. bf16, fp16:
autocast to 16 bits, weights and optimizer in 32; fp16 needs its loss scaled, bf16 does not.
Source: docs.pytorch.org/docs/stable/amp.html, .../notes/cuda.html#tf32-on-ampere.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch

from labjobs.errors import SettingsError
from labjobs.training import devices

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """A number format on a device; `auto` is bf16 where a GPU computes in it, else fp32.

    With `keep_weights`, weights in 16 bits are kept until the end of the forward pass. Raises
    SettingsError for a format that the device does not have. The GPU is not asked before the
    first use, so that jobs can be checked on a machine whose GPUs are taken.
    """

    def __init__(self, name: str, device: torch.device, keep_weights: bool = True) -> None:
        unknown_yet = device.type == "meta"  # Slurm will give a GPU
        if name in ("fp16", "tf32") and device.type != "cuda" and not unknown_yet:
            raise SettingsError(
                f"--precision {name}: needs a CUDA GPU, this job runs on {device.type}"
            )
        self._asked, self._device, self._keep_weights = name, device, keep_weights

    @cached_property
    def name(self) -> str:
        """The format, with `auto` resolved."""
        if self._asked != "auto":
            return self._asked
        return "bf16" if devices.computes_in_bf16(self._device) else "fp32"

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context for the forward pass: operations run in 16 bits where that is safe, if
        asked for. What is left in 32 bits goes by the format too, backward pass included."""
        if self._device.type == "cuda":
            torch.set_float32_matmul_precision("highest" if self.name == "fp32" else "high")
            torch.backends.cudnn.allow_tf32 = self.name != "fp32"
        half = HALF.get(self.name)
        if not half:
            return nullcontext()
        return torch.autocast(self._device.type, half, cache_enabled=self._keep_weights)
