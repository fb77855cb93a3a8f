"""What `python jobs.py` does: it looks after the jobs of a project. May import job, tracking and
sweeps, and of results what needs no pandas; never torch, so that it answers at once.

    command     the command line
    project     the project's jobs, found on this disk and in the tracking store
    listing     `list`: a line for each job
    details     `show`: all there is to know of one job; attempt: of one attempt at it
    staleness   `stale`: which jobs the present code no longer fits, and why
    dependence  `why`: by which way a job's code reaches a definition
    finders     `find …`: what it takes; labjobs.finding does it
    exporting   `export-model`: what it takes; labjobs.exporting does it
    repeating   `repeat`: which attempts are repeated, and what is printed of them;
                labjobs.repeating runs them
    accepting   `accept`: changes that change no results; replay: a job's first steps once more
"""
