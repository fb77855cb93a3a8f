"""Where a loss falls while the learning rate rises, and whether that stands out from its noise."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.results.statistics import falling

WINDOW = 7
"""Points of the running mean."""

BEFORE = 0.1
"""Fraction of the points, the first, at whose rates nothing happens yet: the level before."""

SIGMAS = 2.0
"""Standard deviations of a single point that a fall must have."""

OF_THE_FALL = 0.9
"""The fraction of the whole fall that has happened at the rate that is suggested."""

TO_NORMAL = 1.4826
"""From a median absolute deviation to a standard deviation, of normal values."""

Floats = NDArray[np.float64]


class Fall(NamedTuple):
    """What a range test shows. Of the `rates` (n,) those before training broke down."""

    rates: Floats
    mean: Floats
    """The loss at each rate, over the repeats (n,)."""
    smooth: Floats
    """Its running mean (n,)."""
    rate: float
    """The rate that is suggested; NaN if none is."""
    lowest: float
    """The rate at which the loss was lowest."""
    before: float
    low: float
    """The loss before anything happened, and at its lowest."""
    noise: float
    """The standard deviation of a single point."""
    broke_down: bool
    """Whether the loss rose, or was not finite, before the last rate."""

    @property
    def why_not(self) -> str:
        """Why no rate is suggested; empty if one is."""
        if not np.isnan(self.rate):
            return ""
        if self.before - self.low <= SIGMAS * self.noise:
            return (
                f"the loss falls by {self.before - self.low:.3g}, within {SIGMAS:g} standard "
                f"deviations of its noise ({self.noise:.3g})"
            )
        return f"the loss had not risen again at the highest rate, {self.rates[-1]:.3g}"


def fall(rates: ArrayLike, losses: Sequence[ArrayLike]) -> Fall:
    """Return what repeated range tests show.

    Args:
        rates: Learning rates, rising (n,).
        losses: The loss at each rate, of several tests (n,); one that ended early may have fewer
            values, or values that are not finite.

    What comes after the breakdown of any of them is cut off: from the first value that is not
    finite, or from where the running mean is as far above the level before as it had been below it,
    which goes for losses of any scale and sign. On the mean over the tests, up to its lowest point,
    a sequence is fitted that never rises. The suggested rate is the one at which it has come
    OF_THE_FALL of the way down. There is none unless the running mean falls by more than SIGMAS
    standard deviations of a single point, and rises again.
    """
    every = np.asarray(rates, dtype=float)
    count = min(len(np.atleast_1d(each)) for each in losses)
    values = np.stack([np.asarray(each, dtype=float)[:count] for each in losses])
    wrong = np.flatnonzero(~np.isfinite(values).all(axis=0))
    values = values[:, : wrong[0]] if len(wrong) else values
    first = max(3, round(BEFORE * len(every)))
    if values.shape[1] <= first:
        raise ValueError(f"only {values.shape[1]} finite points")
    before, spread = values[:, :first].mean(), values[:, :first].std()
    smooth = _running_mean(values.mean(axis=0))
    fallen = before - np.minimum.accumulate(smooth)
    above = np.flatnonzero(smooth > before + np.maximum(fallen, SIGMAS * spread))
    values = values[:, : max(above[0], first)] if len(above) else values
    mean = values.mean(axis=0)
    smooth = _running_mean(mean)
    bottom, n = int(smooth.argmin()), len(mean)
    noise = TO_NORMAL * float(np.median(np.abs(values - smooth)))
    low = float(smooth[bottom])
    stands_out = before - low > SIGMAS * noise
    ended = n < len(every) or smooth[-WINDOW:].mean() - low > SIGMAS * noise
    fitted = falling(mean[: bottom + 1])
    down = np.flatnonzero(fitted <= before - OF_THE_FALL * (before - low))
    rate = every[down[0]] if stands_out and ended and len(down) else np.nan
    return Fall(
        every[:n], mean, smooth, float(rate), float(every[bottom]), before, low, noise, ended
    )


def _running_mean(values: Floats) -> Floats:
    """The mean of WINDOW values around each; of fewer at the ends."""
    half = WINDOW // 2
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])
