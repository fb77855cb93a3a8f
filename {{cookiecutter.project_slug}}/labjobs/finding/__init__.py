"""`python jobs.py find`: runs short jobs of the student's own script and reads from their journals
which learning rate, batch size or number of loader processes to use.

May import cli, job, sweeps and results. The code that measures in the jobs is in training: pace.py
and noise_scale.py.

    command      the command, from its arguments to its output
    target       the job to find a value for
    trials       runs jobs one after another and reads their journals
    rates        `find lr`; valley: where a curve is low, and whether it stands out from the noise
    batch_sizes  `find batch-size`; workers: `find workers`; speeds: what both measure
    noise_scales `find noise-scale`
    answer       prints what was found, as text or JSON; drawing: draws it
"""
