"""Datasets, splits, batches on the device, and augmentation.

    images        images in folders, and their statistics
    masks         images with the class of each pixel
    decoded       a cache on disk of what was decoded from files
    published     published datasets, as torchvision fetches and reads them
    splits        holding out examples at random, by label, by group and in folds
    apportioning  how many, and which groups
    augmentation  random changes to whole batches of images
    batches       batches on the device; order, resident, workers and processes are its parts
    streams       batches of examples without an index; stream_parts is its part
    trees         batches of any nesting of tensors
    seeds         independent random streams from one seed
    remembering   functions of a dataset that work only once for the same one

May import cli, job and training.devices.
"""
