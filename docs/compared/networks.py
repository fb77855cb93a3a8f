"""The networks of the examples, for the scripts beside; in no count."""

from torch import Tensor, nn


class Scaled(nn.Module):
    """A network that takes features and predicts targets in their own units."""

    def __init__(self, name: str, features: Tensor, targets: Tensor) -> None:
        super().__init__()
        count = features.shape[1]
        mlp = (nn.Linear(count, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.network = nn.Sequential(*mlp) if name == "mlp" else nn.Linear(count, 1)
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("std", features.std(0))
        self.register_buffer("target_mean", targets.mean())
        self.register_buffer("target_std", targets.std())

    def forward(self, features: Tensor) -> Tensor:
        """Return predictions (B,) of features (B, F)."""
        scaled = self.network((features - self.mean) / self.std).flatten()
        return scaled * self.target_std + self.target_mean


def generator(latent: int = 32) -> nn.Sequential:
    """Return a network from noise (B, Z) to images (B, 1, 8, 8) in [0, 1]."""
    return nn.Sequential(
        nn.Linear(latent, 32 * 4 * 4),
        nn.Unflatten(1, (32, 4, 4)),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Upsample(8),
        nn.Conv2d(32, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
        nn.Sigmoid(),
    )


def discriminator() -> nn.Sequential:
    """Return a network from images (B, 1, 8, 8) in [0, 1] to logits (B, 1)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 1),
    )
