"""Checks of a PDF: its page, its fonts and their sizes."""

import re
import zlib

import numpy as np

SCRIPT = 0.7
"""Ratio of the size of a superscript or subscript in mathtext to its base, as in TeX."""

EXACT = 0.005
"""Inches by which a page may differ from its size."""

INCH = 72
"""Points of an inch."""


def check(data: bytes, width: float, height: float, least: float) -> list[str]:
    """Return what is wrong with a PDF that matplotlib wrote; sizes are in inches, the smallest
    allowed text in points."""
    found = []
    boxes = [box.split() for box in re.findall(rb"/MediaBox\s*\[([^]]+)\]", data)]
    pages = [[float(side) / INCH for side in box] for box in boxes]
    if len(pages) != 1 or not np.allclose(pages, [[0, 0, width, height]], atol=EXACT):
        found.append(f"the PDF's page is not {width:g} x {height:g} in")
    if b"/Type3" in data:
        found.append("the PDF has Type 3 fonts; set pdf.fonttype to 42")
    sizes = pdf_sizes(data)
    if sizes and b"/FontFile2" not in data:
        found.append("the PDF has text without its TrueType font")
    if sizes and min(sizes) < SCRIPT * least - 0.01:
        found.append(f"the PDF has text of {min(sizes):.1f} pt, under {SCRIPT * least:.1f}")
    return found


def pdf_sizes(data: bytes) -> list[float]:
    """Return the sizes of fonts, in points, in a PDF that matplotlib wrote."""
    streams = re.findall(rb"stream\r?\n(x.+?)\r?\nendstream", data, re.DOTALL)
    texts = [zlib.decompressobj().decompress(stream) for stream in streams]
    found = [size for text in texts for size in re.findall(rb"/F\S+ ([\d.]+) Tf", text)]
    return [float(size) for size in found]
