"""Random numbers that the whole process shares, all from the job's seed.

The processes of a job draw the same numbers until it resumes: they make the same network. From then
on each draws its own, so that dropout and augmentation differ between their examples.
"""

import hashlib
import random
from typing import Any

import numpy as np
import torch

from labjobs.errors import JobError
from labjobs.job.ranks import ALONE, Rank
from labjobs.job.terminal import log
from labjobs.training import devices


class GlobalStreams:
    """The global random numbers: torch's on the CPU and on the device, Python's and NumPy's."""

    def __init__(self, seed: int, device: torch.device, rank: Rank = ALONE) -> None:
        _seed_all(seed)
        self._seed, self._device, self._rank = seed, device, rank
        self._common: dict[str, Any] | None = None

    def separate(self) -> None:
        """From here on, each process of the job draws its own numbers."""
        self._common = self.own_state()
        self._begin(self._rank.number)

    def own_state(self) -> dict[str, Any]:
        """Return where each of this process's numbers is, as plain values and tensors."""
        kind, keys, *rest = np.random.get_state(legacy=True)
        return {
            "torch": torch.get_rng_state(),
            "device": {self._device.type: devices.random_state(self._device)},
            "python": random.getstate(),
            "numpy": (kind, np.asarray(keys).tolist(), *rest),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the job's numbers."""
        return self.own_state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put each of them where it was; a device has no numbers of another kind's.

        Raises JobError for the state of another number of processes, if these have drawn numbers.
        """
        processes = [state, *state.get("others", ())]
        if len(processes) == self._rank.size:
            self._restore(processes[self._rank.number])
        elif self._have_drawn(processes):
            raise JobError(
                f"its checkpoint is of {len(processes)} processes, which have drawn random numbers "
                f"(dropout, augmentation), and this job has {self._rank.size}; continue with as "
                "many as before, or start over with --force"
            )

    def _restore(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        if self._device.type in state["device"]:
            devices.set_random_state(self._device, state["device"][self._device.type])
        else:
            log.warning("continuing on another kind of device: the same bits cannot be expected")
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])

    def _have_drawn(self, processes: list[dict[str, Any]]) -> bool:
        """Whether any process has drawn numbers since the job began."""
        now = self.own_state()
        try:
            for number, state in enumerate(processes):
                self._restore(self._common or now)
                self._begin(number)
                if any(not _same(state[name], value) for name, value in self.own_state().items()):
                    return True
            return False
        finally:
            self._restore(now)

    def _begin(self, number: int) -> None:
        """Begin the numbers of a process; those of process 0 go on as they are."""
        if number:
            words = f"{self._seed}/process/{number}"
            digest = hashlib.sha256(words.encode()).digest()
            _seed_all(int.from_bytes(digest[:8], "big") >> 1)


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _same(one: Any, other: Any) -> bool:
    """Whether two nested values are the same."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
