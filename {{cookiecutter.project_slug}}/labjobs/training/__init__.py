"""What a training loop is made of. May import cli, data, devices, distributed, job and tracking.

loop         Job: the loop's position, steps, epochs, logging
progress     how long a job is, where it is, and how fast
checkpoints  what a checkpoint holds, and their files
init_from    weights of another job, and longer jobs
compilation  the forward pass, compiled and under autocast; evaluation in the background; a step as
             one CUDA graph
meters       means of what is measured; outputs: what is kept of examples
optim        Muon, EMA, clipping, early stopping, gradients of several processes
probes       what `find` measures in a job, and --profile
"""

import gc

from labjobs import machine

if not gc.isenabled():  # after launch.begin: torch has been imported by now, and Triton has not
    machine.keep_imported()
