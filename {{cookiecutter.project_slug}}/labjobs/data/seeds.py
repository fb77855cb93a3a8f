"""Independent random streams from one seed."""

import hashlib

import torch


def generator(seed: int, *use: str | int) -> torch.Generator:
    """Return a generator on the CPU for one use of a seed: `generator(seed, "order", epoch)`.

    Streams for different uses are independent; the same use always gives the same stream.
    """
    words = "/".join(map(str, (seed, *use)))
    number = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")
    return torch.Generator().manual_seed(number >> 1)
