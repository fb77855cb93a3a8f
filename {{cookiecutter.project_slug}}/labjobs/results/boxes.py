"""Boxes of text on a page: two corners (2, 2) of an upright one, four (4, 2) of a turned one."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.path import Path


def corners(ink: "Path") -> NDArray[Any]:
    """Return the corners (4, 2) of a box around outlines, one after the other."""
    points = np.concatenate(ink.to_polygons(closed_only=False))  # get_extents() is 200 times slower
    (left, bottom), (right, top) = points.min(axis=0), points.max(axis=0)
    return np.array([[left, bottom], [right, bottom], [right, top], [left, top]])


def beyond(corners: NDArray[Any], box: NDArray[Any]) -> float:
    """Return by how much corners (4, 2) lie outside a box of two corners (2, 2)."""
    return float(max((box[0] - corners).max(), (corners - box[1]).max()))


def outside(corners: NDArray[Any], box: NDArray[Any]) -> bool:
    """Return whether corners (4, 2) lie completely outside a box of two corners (2, 2)."""
    return bool((corners.max(0) < box[0]).any() or (corners.min(0) > box[1]).any())


def depth(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return how far one of two rectangles, by their corners (4, 2), would have to move to be clear
    of the other; negative if they are apart. Source: the separating axis theorem."""
    sides = np.array([one[1] - one[0], one[3] - one[0], other[1] - other[0], other[3] - other[0]])
    axes = (sides / np.linalg.norm(sides, axis=1, keepdims=True)).T
    a, b = one @ axes, other @ axes
    return float((np.minimum(a.max(0), b.max(0)) - np.maximum(a.min(0), b.min(0))).min())
