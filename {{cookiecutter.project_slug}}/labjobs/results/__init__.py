"""Tables, statistics and figures of finished jobs. The only package that imports pandas, SciPy
and matplotlib; may import cli, job and tracking.

    tables        jobs, their curves, and what they logged and kept
    metrics       what the jobs measured, as their project declared it
    groups        what the jobs differ in; means, fractions, intervals, differences
    comparison    what a figure distinguishes of that, and what its caption says about it
    figures       figures at their printed size, their axes and legends
    plots         what is drawn on the axes; text: labels, names and numbers that fit
    searches      figures of a search, and what they are drawn from
    figure_files  the files of a figure, and where it comes from
    print_check   whether they print right
    plotting      the command line of plot.py, and what every caption says
    style         pages of venues, fonts, colours, and how numbers are written
"""

import os
import sys

if "IPython" not in sys.modules:  # a notebook's backend, which `!python plot.py` there inherits
    os.environ.pop("MPLBACKEND", None)
