"""Random changes to whole batches of images, each image its own.

torchvision's transforms make one random choice for a whole batch. Random numbers come from torch's
stream of the images' device, which the engine saves and restores with the job.
"""

from functools import cache

import torch
from torch import Tensor


def random_shift(images: Tensor) -> Tensor:
    """Return images (B, C, H, W), each shifted by up to an eighth of its height and width.

    What comes in at the edges is a reflection of the image. Images of any number format.
    """
    batch, _, height, width = images.shape
    device = images.device
    rows, columns = _reflected(height, device), _reflected(width, device)
    larger = images.index_select(2, rows).index_select(3, columns)
    crops = larger.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, down, right, H, W), a view
    down = torch.randint(crops.shape[2], (batch,), device=device)
    right = torch.randint(crops.shape[3], (batch,), device=device)
    return crops[torch.arange(batch, device=device), :, down, right]


@cache
def _reflected(side: int, device: torch.device) -> Tensor:
    """Return where the pixels of a side come from that is longer by an eighth at both ends."""
    most = side // 8
    position = torch.arange(-most, side + most, device=device).abs()
    return torch.minimum(position, 2 * (side - 1) - position)
