"""Datasets, splits, batches on the device, and augmentation. May import cli, job and
training.devices.
"""
