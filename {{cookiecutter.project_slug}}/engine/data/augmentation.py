"""Random changes to training images, on the device, a batch at once, each image its own.

torchvision's transforms draw one random number for a whole batch; here every image has its own
shift and mirroring. Images stay uint8 and are read once, by index.
"""

import torch
from torch import Tensor

from engine.training.seeding import generator


class Augmentation:
    """Shifts (`crop`) and mirrors (`crop-flip`) images (B, C, H, W); `none` returns them as is.

    A shift is a random crop of the image after reflection at its edges by an eighth of its side.
    Its random numbers come from a generator of its own on the device, seeded by the job's seed.
    """

    def __init__(self, kind: str, seed: int, device: torch.device) -> None:
        self._kind = kind
        first = int(torch.randint(2**62, (1,), generator=generator(seed, "augmentation")))
        self._random = torch.Generator(device).manual_seed(first)

    def state_dict(self) -> dict[str, Tensor]:
        """Where the random numbers are."""
        return {"random": self._random.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on with the random numbers from there."""
        self._random.set_state(state["random"])

    def __call__(self, images: Tensor) -> Tensor:
        """The images (B, C, H, W), each changed in its own way."""
        if self._kind == "none":
            return images
        batch, channels, height, width = images.shape
        rows = self._shifted(batch, height)
        columns = self._shifted(batch, width)
        if self._kind == "crop-flip":
            mirrored = self._draw(2, batch).bool()
            columns = torch.where(mirrored, columns.flip(1), columns)
        example = torch.arange(batch, device=images.device).view(-1, 1, 1, 1)
        channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
        return images[example, channel, rows[:, None, :, None], columns[:, None, None, :]]

    def _shifted(self, batch: int, side: int) -> Tensor:
        """Which row (or column) to read for each one of the result, (B, side)."""
        most = side // 8
        shift = self._draw(2 * most + 1, batch) - most
        position = torch.arange(side, device=shift.device) + shift
        position = position.abs()
        return torch.minimum(position, 2 * (side - 1) - position)  # reflected at both edges

    def _draw(self, below: int, batch: int) -> Tensor:
        """Random whole numbers in [0, below), (B, 1)."""
        return torch.randint(below, (batch, 1), generator=self._random, device=self._random.device)
