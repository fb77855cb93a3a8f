"""Many jobs: the grid, the queue, the GPUs, Slurm. May import cli, distributed, job and tracking.

sweep    the command behind run.sh, whose shell part is sweep.sh; options: its flags
grid     the lines of the grid; search: lines that are drawn at random
states   what state each job is in; the copy of the code that a sweep runs
gpus     which job has which GPU
queue    what is started when; starter: how, and the check before
slurm    the same by Slurm
"""
