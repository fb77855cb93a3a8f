"""Random numbers that the whole process shares, all from the job's seed."""

import random
from typing import Any

import numpy as np
import torch

from engine.job.terminal import log
from engine.training import devices


class GlobalStreams:
    """The global random numbers: torch's on the CPU and on the device, Python's and NumPy's."""

    def __init__(self, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        self._device = device

    def state_dict(self) -> dict[str, Any]:
        """Return where each of them is, as plain values and tensors."""
        kind, keys, *rest = np.random.get_state(legacy=True)
        return {
            "torch": torch.get_rng_state(),
            "device": {self._device.type: devices.random_state(self._device)},
            "python": random.getstate(),
            "numpy": (kind, np.asarray(keys).tolist(), *rest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put each of them where it was; a device has no numbers of another kind's."""
        torch.set_rng_state(state["torch"])
        if self._device.type in state["device"]:
            devices.set_random_state(self._device, state["device"][self._device.type])
        else:
            log.warning("continuing on another kind of device: the same bits cannot be expected")
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
