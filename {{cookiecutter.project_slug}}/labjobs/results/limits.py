"""Limits of axes, chosen to show what is worth seeing; captions say what lies beyond them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from labjobs.results.metrics import Measured

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from labjobs.results.comparison import Curves

HIDDEN = 0.02
"""Fraction of the values that an axis may leave out, the worst ones."""

ROOM = 1.2
"""Space for intervals on either side of the results, relative to the space that the results take.
The t intervals of three or more results never need more; those of two nearly always do."""

MARGIN = 0.05
"""Fraction of an axis that is left empty at either end."""

CUT = " Intervals are cut off at the edges of the axes."


def of_curves(ax: "Axes", curves: "Curves", metric: Measured) -> str:
    """Set the limits of the y axis that panels share, by their curves and not by the intervals. On
    a linear axis, the worst values, such as those of the first steps, are left out. Return what the
    caption has to say about this."""
    each = [line["value"] for lines in curves.values() for line in lines.values()]
    values = metric.checked(np.concatenate(each))
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    scale = ax.yaxis.get_transform()
    ends = [0.0, 1.0] if metric.log else [HIDDEN, 1.0] if metric.sign > 0 else [0.0, 1 - HIDDEN]
    low, high = np.quantile(scale.transform(finite), ends)
    margin = MARGIN * (high - low) or MARGIN * abs(high) or MARGIN
    least, most = scale.inverted().transform(np.array([low - margin, high + margin]))
    ax.set_ylim(least, most)
    beyond = ((finite < least) | (finite > most)).mean()
    said = f" Of all values {beyond:.1%} are beyond the axis." if beyond else ""
    return said + (CUT if any(low < least or high > most for low, high in _bands(ax)) else "")


def of_intervals(axis: "Axis", results: "Iterable[pd.Series[Any]]", metric: Measured) -> str:
    """Set the limits of an axis so that intervals do not crowd the results out. Return what the
    caption has to say about this."""
    values = metric.checked([value for each in results for value in each])
    values = values[np.isfinite(values)]
    if not len(values):
        return ""
    scale = axis.get_transform()
    low, high = scale.transform(np.array([values.min(), values.max()]))
    drawn = scale.transform(axis.get_data_interval())
    room = ROOM * (high - low)
    shown = np.clip(drawn, low - room, high + room)
    if not room or np.array_equal(shown, drawn):
        return ""
    margin = MARGIN * (shown[1] - shown[0])
    least, most = scale.inverted().transform(np.array([shown[0] - margin, shown[1] + margin]))
    change = axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim
    change(least, most)
    return CUT


def _bands(ax: "Axes") -> list[tuple[float, float]]:
    """The lowest and the highest value of each band in the panels of a figure."""
    from matplotlib.collections import PolyCollection

    fig = ax.get_figure(root=True)
    assert fig
    drawn = [(panel, each) for panel in fig.axes for each in panel.collections]
    return [
        each.get_datalim(panel.transData).intervaly
        for panel, each in drawn
        if isinstance(each, PolyCollection)
    ]
