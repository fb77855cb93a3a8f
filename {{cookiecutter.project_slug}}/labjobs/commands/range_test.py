"""Where a loss is low while the learning rate rises, and whether it stands out from the noise."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

WINDOW = 7  # points in the running mean
BEFORE = 0.1  # fraction of the points, at the start, whose rates are too low to change the loss
SIGMAS = 2.0  # a fall must exceed this many standard deviations of a single point to stand out
OF_THE_FALL = 0.9  # the loss counts as low once it has fallen by this fraction of its whole fall
TO_NORMAL = 1.4826  # standard deviation by median absolute deviation, of normal values

Floats = NDArray[np.float64]


class Valley(NamedTuple):
    """The result of range tests, at the `rates` (n,) before training broke down, with the running
    mean of the loss, over the tests (n,)."""

    rates: Floats
    smooth: Floats
    start: float  # the lowest and the highest rate at which the loss is low
    end: float
    before: float  # the loss before anything happens, and the lowest running mean
    low: float
    noise: float  # the standard deviation of a single point
    rises: bool  # whether the loss rises after the valley, or is not finite

    @property
    def stands_out(self) -> bool:
        """Whether the loss falls by more than its noise."""
        return self.before - self.low > SIGMAS * self.noise

    @property
    def rate(self) -> float | None:
        """The geometric mean of the valley's ends, with two digits; None if it does not stand out
        or has no end."""
        if not (self.stands_out and self.rises):
            return None
        return float(f"{np.sqrt(self.start * self.end):.1e}")

    @property
    def about(self) -> str:
        """How the rate was found, or why there is none, in a few words."""
        if not self.stands_out:
            return (
                f"the loss falls by {self.before - self.low:.3g}, within {SIGMAS:g} standard "
                f"deviations of its noise, {self.noise:.2g}"
            )
        fall = f"from {self.before:.3g} to {self.low:.3g} (noise {self.noise:.2g})"
        if not self.rises:
            return f"the loss falls {fall} and has not risen again at {self.rates[-1]:.2g}"
        return f"the loss falls {fall} and is low from {self.start:.2g} to {self.end:.2g}"


def valley(rates: ArrayLike, losses: Sequence[ArrayLike]) -> Valley:
    """Return the valley in the losses of repeated range tests.

    Args:
        rates: Learning rates, rising (n,).
        losses: The losses of each test (n,), by rate. A test that ended early has fewer values, and
            values may be infinite or NaN.

    Everything after a breakdown is cut off: after the first value that is not finite, or after the
    running mean is as far above its initial level as it had been below it. This works for losses of
    any scale and sign. Raises ValueError if nothing is left.
    """
    every = np.asarray(rates, dtype=float)
    first = max(3, round(BEFORE * len(every)))
    count = min(len(np.asarray(each)) for each in losses)
    values = np.stack([np.asarray(each, dtype=float)[:count] for each in losses])
    wrong = np.flatnonzero(~np.isfinite(values).all(axis=0))
    values = values[:, : wrong[0]] if len(wrong) else values
    smooth = _running_mean(values)
    before, spread = values[:, :first].mean(), values[:, :first].std()
    fallen = before - np.minimum.accumulate(smooth)
    above = np.flatnonzero(smooth > before + np.maximum(fallen, SIGMAS * spread))
    values = values[:, : above[0]] if len(above) else values
    if values.shape[1] <= first:
        raise ValueError(f"only {values.shape[1]} finite values")
    smooth = _running_mean(values)
    count, bottom = len(smooth), int(smooth.argmin())
    low, noise = float(smooth[bottom]), TO_NORMAL * float(np.median(np.abs(values - smooth)))
    high = np.flatnonzero(smooth > low + (1 - OF_THE_FALL) * (before - low) + SIGMAS * noise)
    left, right = high[high < bottom], high[high > bottom]
    return Valley(
        rates=every[:count],
        smooth=smooth,
        start=float(every[left[-1] + 1 if len(left) else 0]),
        end=float(every[right[0] - 1 if len(right) else count - 1]),
        before=float(before),
        low=low,
        noise=noise,
        rises=bool(len(right)) or count < len(every),
    )


def _running_mean(values: Floats) -> Floats:
    """The mean over tests (tests, n), and over WINDOW values around each; fewer at the ends."""
    half, mean = WINDOW // 2, values.mean(axis=0)
    return np.array([mean[max(0, i - half) : i + half + 1].mean() for i in range(len(mean))])
