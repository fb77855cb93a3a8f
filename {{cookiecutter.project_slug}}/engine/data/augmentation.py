"""Random changes to whole batches of images, each image its own.

torchvision's transforms make one random choice for a whole batch. Random numbers come from torch's
stream of the images' device, which the engine saves and restores with the job.
"""

from functools import cache
from typing import overload

import torch
from torch import Tensor


@overload
def random_shift(images: Tensor, /) -> Tensor: ...
@overload
def random_shift(images: Tensor, /, *alike: Tensor) -> tuple[Tensor, ...]: ...
def random_shift(images: Tensor, /, *alike: Tensor) -> Tensor | tuple[Tensor, ...]:
    """Return images (B, …, H, W), each shifted by up to an eighth of its height and width.

    What comes in at the edges is a reflection of the image. Images of any number format. Tensors
    of the same size given with them, such as masks (B, H, W), are shifted alike, and all returned.
    """
    batch, height, width = len(images), *images.shape[-2:]
    down = torch.randint(2 * (height // 8) + 1, (batch,), device=images.device)
    right = torch.randint(2 * (width // 8) + 1, (batch,), device=images.device)
    shifted = tuple(_shifted(each, down, right) for each in (images, *alike))
    return shifted if alike else shifted[0]


def _shifted(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Return the part of each image (B, …, H, W), made larger, that begins so far down and right,
    (B,)."""
    height, width = images.shape[-2:]
    rows, columns = (_reflected(side, images.device) for side in (height, width))
    larger = images.index_select(-2, rows).index_select(-1, columns)
    crops = larger.unfold(-2, height, 1).unfold(-2, width, 1)  # (B, …, down, right, H, W), a view
    return crops[torch.arange(len(images), device=images.device), ..., down, right, :, :]


@cache
def _reflected(side: int, device: torch.device) -> Tensor:
    """Return where the pixels of a side come from that is longer by an eighth at both ends."""
    most = side // 8
    position = torch.arange(-most, side + most, device=device).abs()
    return torch.minimum(position, 2 * (side - 1) - position)
