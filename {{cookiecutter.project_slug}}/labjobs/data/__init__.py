"""Datasets, splits, and batches on the device.

    batches   batches of any dataset; order and trees are its parts
    splits    holding out examples at random, by label, by group and in folds

May import cli, job, distributed and devices.
"""
