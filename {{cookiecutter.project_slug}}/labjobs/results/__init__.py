"""Tables, statistics and figures of finished jobs. The only package that imports pandas, SciPy
and matplotlib; may import cli, job and tracking.

    tables        jobs and their curves
    metrics       what the jobs measured, as their project declared it
    groups        what the jobs differ in
    comparison    what a figure tells apart of that
    statistics    means, intervals, differences, Kaplan–Meier curves
    outputs       what jobs kept of each test example; predictions: the classes among it
    figures       figures at their printed size
    plots         what is drawn on their axes; images: text in images
    captions      what is said below them
    figure_files  their files; provenance: where they come from
    print_check   whether they print right; pdf_check: what was written
    plotting      the command line of plot.py
    style, venues fonts, colours and numbers; pages and text sizes
"""
