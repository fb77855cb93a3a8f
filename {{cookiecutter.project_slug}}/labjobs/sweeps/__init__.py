"""Many jobs: the grid, queue, GPUs, clusters, hosts. May import cli, distributed, job and tracking.

sweep    the command behind run.sh, whose shell part is sweep.sh; options: its flags, cluster.toml
queue    which job runs where, until all have ended
grid     the lines of the grid; search: those that draw settings, or stop the worse ones
forecast what jobs will take, from what others took; the hours that a sweep may take
states   what state each job is in; the copy of the code that a sweep runs
gpus     which job has which GPU
starter  how a job is started, and the check before; containers: in the images of a cluster's jobs
arrays   jobs on clusters, by Slurm, Grid Engine, PBS or LSF
hosts    places for jobs on other machines, over ssh
"""
