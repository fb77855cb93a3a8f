"""Datasets, splits, batches on the device, and augmentation.

    batches   batches of any dataset; order and trees are its parts
    splits    holding out examples at random, by label, by group and in folds
    vision    images from files, published datasets, random changes to batches

May import cli, job, distributed and devices.
"""
