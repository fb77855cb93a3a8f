"""What `python jobs.py find` does: it runs short jobs of the student's own script and reads from
their journals which learning rate, batch size or number of loader processes to use.

May import cli, job, sweeps and results. Of the jobs, what measures is in training: pace.py and
noise_scale.py.

    command      the command: from its words to what it prints
    target       the job that something is looked for
    trials       jobs run one after another, and their journals read
    rates        `find lr`; valley: where a curve is low, and whether that stands out from its noise
    batch_sizes  `find batch-size`; workers: `find workers`; speeds: what both measure
    noise_scales `find noise-scale`
    answer       what was found, as text and as JSON; drawing: as a figure
"""
