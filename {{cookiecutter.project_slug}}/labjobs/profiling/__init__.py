"""What `--profile` measures and reports. May import cli, job, data and training."""
