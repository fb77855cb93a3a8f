"""A job from the command to its exit status: identity, folder, journal, signals, terminal.

Standard library and tqdm; may import cli, and tracking and sweeps where these report on a job.
"""
