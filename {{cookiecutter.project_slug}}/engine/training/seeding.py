"""Random numbers: one stream for each use, all from the job's seed."""

import hashlib
import random
from typing import Any

import numpy as np
import torch

from engine.job.terminal import log


def generator(seed: int, *use: str | int) -> torch.Generator:
    """A generator on the CPU for one use of a seed: `generator(seed, "order", epoch)`.

    Different uses give streams that have nothing in common; the same use gives the same stream.
    """
    words = "/".join(map(str, (seed, *use)))
    number = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")
    return torch.Generator().manual_seed(number >> 1)


class GlobalStreams:
    """The streams that everyone shares: torch's on the CPU and on the device, Python's, numpy's."""

    def __init__(self, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        self._type = device.type
        self._device = torch if device.type == "cpu" else torch.get_device_module(device)

    def state_dict(self) -> dict[str, Any]:
        """Where each stream is, as plain values and tensors."""
        kind, keys, *rest = np.random.get_state(legacy=True)
        return {
            "torch": torch.get_rng_state(),
            "device": {self._type: self._device.get_rng_state()},
            "python": random.getstate(),
            "numpy": (kind, np.asarray(keys).tolist(), *rest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put each stream where it was; a device has none of another kind's."""
        torch.set_rng_state(state["torch"])
        if self._type in state["device"]:
            self._device.set_rng_state(state["device"][self._type])
        else:
            log.warning("going on on another kind of device: not the same bits as on the first one")
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
