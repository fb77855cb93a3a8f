"""Random numbers: one stream for each use, all from the job's seed."""

import hashlib

import torch


def generator(seed: int, *use: str | int) -> torch.Generator:
    """A generator on the CPU for one use of a seed: `generator(seed, "order", epoch)`.

    Different uses give streams that have nothing in common; the same use gives the same stream.
    """
    words = "/".join(map(str, (seed, *use)))
    number = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")
    return torch.Generator().manual_seed(number >> 1)
