"""Random changes to whole batches of images, each image its own.

torchvision's transforms make one random choice for a whole batch. Random numbers come from torch's
stream of the images' device, which the engine saves and restores with the job.
"""

from functools import cache

import torch
from torch import Tensor


def random_shift(images: Tensor) -> Tensor:
    """Return images (B, C, H, W), each shifted by up to an eighth of its height and width.

    The empty edges are filled by reflection. Images keep their number format and are read once.
    """
    batch, channels, height, width = images.shape
    device = images.device
    example = torch.arange(batch, device=device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=device).view(1, -1, 1, 1)
    row = _random_windows(batch, height, device).view(batch, 1, height, 1)
    column = _random_windows(batch, width, device).view(batch, 1, 1, width)
    return images[example, channel, row, column]


def _random_windows(batch: int, side: int, device: torch.device) -> Tensor:
    """Return where each pixel along a side is read from, shifted by chance, (B, side)."""
    windows = _windows(side, device)
    return windows[torch.randint(len(windows), (batch,), device=device)]


@cache
def _windows(side: int, device: torch.device) -> Tensor:
    """Return where the pixels along a side are read from, for every shift, (shifts, side)."""
    most = side // 8
    position = torch.arange(-most, side + most, device=device).abs()
    reflected = torch.minimum(position, 2 * (side - 1) - position)
    return reflected.unfold(0, side, 1).contiguous()
