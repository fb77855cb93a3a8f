"""Ticks in plain numbers. This module imports matplotlib, so it is imported late."""

from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, ScalarFormatter

from labjobs.results.style import LARGE, SMALL, names, number, signed

MOST, LEAST = 6, 3
"""Labelled ticks."""


class PlainTicks(ScalarFormatter):
    """Labels of a linear axis; very small and very large numbers have their own exponents, rather
    than one at the end of the axis, which could be missed."""

    def format_ticks(self, values: Any) -> list[str]:
        """Return the labels of all ticks."""
        if SMALL <= max(map(abs, values), default=1) < LARGE:
            return super().format_ticks(values)
        places = [float(value) for value in values]
        texts = names(places)
        return [signed(texts[place]) for place in places]

    def get_offset(self) -> str:
        """Return no text for the axis' end."""
        return ""


class LogTicks(LogLocator):
    """Few ticks on a logarithmic axis: 1, 2, 3 and 5 in each decade, only powers of ten if there
    would be too many, and steps of equal size if there would be too few."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the places of ticks between two ends."""
        low, high = sorted((vmin, vmax))
        if not 0 < low < high:
            return np.array([])
        decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)))
        for each in ((1, 2, 3, 5), (1, 3), (1,)):
            places = np.multiply.outer(decades, each).ravel()
            places = places[(low <= places) & (places <= high)]
            if len(places) <= MOST:
                break
        if len(places) < LEAST:
            linear = MaxNLocator(LEAST + 1, steps=[1, 2, 5, 10])
            places = np.asarray(linear.tick_values(low, high))
            places = places[(low <= places) & (places <= high)]
        return places[:: -(-len(places) // MOST)]


def plain(value: float, _place: float) -> str:
    """Return the label of a tick."""
    return number(value)
