"""Generators of random numbers, and clocks: which lines of the student's code use them."""

import os
import random
import sys
import time
from collections.abc import Callable
from datetime import datetime
from types import FrameType
from typing import Any, Self

import numpy as np
import torch

from labjobs.checks import places
from labjobs.sources import Place, is_students

GENERATORS: dict[type, Callable[[Any], Any]] = {
    random.Random: random.Random.getstate,
    np.random.Generator: lambda generator: generator.bit_generator.state,
    np.random.RandomState: lambda generator: generator.get_state(),
    torch.Generator: torch.Generator.get_state,
}
"""How to read the state of a generator of random numbers."""

GLOBAL = (random._inst, np.random.mtrand._rand, torch.default_generator)
"""The generators whose states a job saves."""

CLOCKS = (time.time, time.time_ns, time.monotonic, time.perf_counter, datetime.now)


class Draws:
    """Within its context, notes each line that asks a clock or for an unpredictable number.

    `on_draw` is called when Python's, NumPy's or torch's global generator is used. Before Python
    3.12, NumPy's generators are not seen: Python does not report calls of Cython's functions.
    Source: docs.python.org/3/library/sys.html#sys.setprofile.
    """

    def __init__(self, on_draw: Callable[[], None]) -> None:
        self._on_draw = on_draw
        self.unpredictable: list[Place] = []
        self.clocks: list[Place] = []

    def __enter__(self) -> Self:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call":
            return
        owner = getattr(called, "__self__", None)
        if isinstance(owner, tuple(GENERATORS)):
            self._used(owner, called.__name__, frame)
        elif called is os.urandom:
            self._note(self.unpredictable, places.asking(frame))
        elif called in CLOCKS and is_students(frame.f_code.co_filename):
            self._note(self.clocks, places.of(frame))

    def _used(self, generator: object, method: str, frame: FrameType) -> None:
        if method in ("getstate", "get_state"):
            return
        if any(generator is each for each in GLOBAL):
            self._on_draw()
        elif method == "seed":  # by chance, as `random.Random()` does
            self._note(self.unpredictable, places.asking(frame))

    def _note(self, noted: list[Place], place: Place | None) -> None:
        if place and place not in noted:
            noted.append(place)
