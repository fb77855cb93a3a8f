"""Random changes to whole batches of images, drawn for each image. torchvision's transforms make
one random choice for a whole batch. Random numbers come from torch's stream of the images' device,
which the engine saves and restores with the job.
"""

from functools import cache
from typing import overload

import torch
from torch import Tensor


@overload
def random_shift(images: Tensor, /, *, mirror: bool = False) -> Tensor: ...
@overload
def random_shift(images: Tensor, /, *alike: Tensor, mirror: bool = False) -> tuple[Tensor, ...]: ...
def random_shift(
    images: Tensor, /, *alike: Tensor, mirror: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """Return images (B, …, H, W), each shifted by up to an eighth of its height and width; with
    `mirror` also mirrored left to right with probability 1/2.

    What comes in at the edges is a reflection of the image. Images of any number format. Tensors
    of the same size given with them, such as masks (B, H, W), are changed alike, and all returned.
    """
    batch, height, width = len(images), *images.shape[-2:]
    device = images.device
    down = torch.randint(2 * (height // 8) + 1, (batch,), device=device)
    right = torch.randint(2 * (width // 8) + 1, (batch,), device=device)
    if mirror:
        mirrored = torch.rand(batch, device=device) < 0.5
        right = right.add(mirrored, alpha=2 * (width // 8) + 1)
    rows = _sources(height, width, device).index_select(0, down)
    columns = _sources(width, 1, device).index_select(0, right)
    sources = (rows[:, :, None] + columns[:, None, :]).view(batch, 1, height * width)
    changed = tuple(_picked(each, sources) for each in (images, *alike))
    return changed if alike else changed[0]


def _picked(images: Tensor, sources: Tensor) -> Tensor:
    """Return images (B, …, H, W) with the pixels taken from these places, (B, 1, H * W). This takes
    one pass over the images, which are large compared with everything else."""
    planes = images.reshape(len(images), -1, sources.shape[2])
    return planes.gather(2, sources.expand(planes.shape)).view(images.shape)


@cache
def _sources(side: int, apart: int, device: torch.device) -> Tensor:
    """Return the positions that the pixels along a side come from, (shifts, side), for each shift
    by up to an eighth; then the same mirrored. Neighbouring pixels are `apart` indices apart."""
    most = side // 8
    larger = torch.arange(-most, side + most, device=device).abs()
    shifted = torch.minimum(larger, 2 * (side - 1) - larger).unfold(0, side, 1)
    return apart * torch.cat([shifted, shifted.flip(1)])
