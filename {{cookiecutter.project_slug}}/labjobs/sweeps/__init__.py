"""Many jobs: the grid, the queue, the GPUs, Slurm. May import cli, job and tracking."""
