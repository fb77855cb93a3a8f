"""One comparison: how alike the layers of two networks are, by debiased linear CKA.

    python compare.py --first 1872aa178ea7 --second 6481210abf0b
    python compare.py --first 1872aa178ea7 --model convnet     # with new weights
    python compare.py --first-model resnet18 --model resnet34 --pretrained --dataset cifar10 \\
      --image-size 224 --layers "layer*,fc" --spatial average    # published weights

The ids are ids of run.py's jobs. similarity.py has the measure, plot_compare.py the figures.
"""

import sys
from collections.abc import Sized
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

from labjobs import launch
from settings import COMPARE_METRICS, CompareSettings, Settings

if __name__ == "__main__":
    command = launch.begin(CompareSettings, COMPARE_METRICS)

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

import data
import jobs
import models
import similarity
from labjobs import Job, JobError, generator

IMAGENET = tuple(f"class {number}" for number in range(1000))
"""The number of classes of published weights, so that the weights of the last layer fit too."""


class Named(NamedTuple):
    """The names of layers, and the flag that has them."""

    patterns: tuple[str, ...]
    flag: str


@dataclass(frozen=True)
class Compared:
    """A network to compare."""

    name: str  # without the seed: `convnet, lr 0.01`
    network: nn.Module
    layers: similarity.Layers
    channels: int  # that its images have

    def fitted(self, images: Tensor) -> Tensor:
        """Return images (B, C, H, W) with its number of channels: grey ones are repeated.

        The network scales them to its size itself. Raises JobError if they do not fit.
        """
        have = images.shape[1]
        if have not in (1, self.channels):
            takes = "1 channel" if self.channels == 1 else f"{self.channels} channels"
            raise JobError(f"{self.name}: takes images with {takes}; the others have {have}")
        return images.expand(-1, self.channels, -1, -1)


def networks(settings: CompareSettings, data_root: Path) -> tuple[Settings, Compared, Compared]:
    """Return the settings by which the data is read, and both networks to compare, on the CPU."""
    first, second = layers_of(settings)
    if settings.first:
        job = jobs.load(settings.first)
        like, spec, one = job.settings, job.spec, of_job(job, first)
    else:
        like = Settings(dataset=settings.dataset)
        spec = data.load(like, data_root).spec
        one = of_model(settings.first_model, True, sized(like, settings), spec, first)
    if settings.second:
        return like, one, of_job(jobs.load(settings.second), second)
    new = settings.model, settings.pretrained
    return like, one, of_model(*new, sized(like, settings), spec, second)


def layers_of(settings: CompareSettings) -> tuple[Named, Named]:
    """Return the names of the layers of both networks."""
    first = Named(settings.layers, "--layers")
    second = Named(settings.second_layers, "--second-layers")
    return first, second if settings.second_layers else first


def sized(like: Settings, settings: CompareSettings) -> Settings:
    """Return the settings of a job, with the image size of those of a comparison."""
    size = settings.image_size
    return like if size == "auto" else replace(like, image_size=size)


def of_job(job: jobs.Loaded, layers: Named) -> Compared:
    """Return the network of a job, named by its model and the settings that are not the default."""
    usual = asdict(Settings())
    changed = {name: value for name, value in asdict(job.settings).items() if value != usual[name]}
    others = [f"{name} {changed[name]}" for name in changed if name not in ("model", "seed")]
    name = ", ".join([job.settings.model, *others])
    chosen = similarity.layers(job.model, *layers)
    return Compared(name, job.model, chosen, job.spec.shape[0])


def of_model(
    name: str, pretrained: bool, like: Settings, spec: models.Spec, layers: Named
) -> Compared:
    """Return a network for some data, with published or random weights.

    Raises SettingsError if it cannot take such data, JobError if published weights are missing.
    """
    if pretrained:
        spec = replace(spec, classes=IMAGENET)
    network = models.make(replace(like, model=name, pretrained=pretrained), spec).eval()
    chosen = similarity.layers(network, *layers)
    kind = "pretrained" if pretrained else "untrained"
    return Compared(f"{name}, {kind}", network, chosen, spec.shape[0])


def blocks_of_images(job: Job[CompareSettings], of: Settings) -> list[Tensor]:
    """Return test images of a job's data on the device, in blocks (B, C, H, W).

    Raises JobError if there are too few.
    """
    test = data.load(of, job.runtime.data_root).test
    count = 0 if test is None else len(cast(Sized, test))
    if test is None or count < similarity.FEWEST:
        raise JobError(f"the data has {count} test examples, {similarity.FEWEST} are needed")
    chosen = torch.randperm(count, generator=generator(0, "compare"))[: job.settings.examples]
    batches = job.batches(Subset(test, chosen.tolist()), job.settings.batch_size)
    return [images for images, _ in batches]


@torch.inference_mode()
def main(job: Job[CompareSettings]) -> dict[str, float]:
    """Log the CKA of each layer of the first network with each of the second, and return what is
    measured, by the names in COMPARE_METRICS."""
    settings = job.settings
    like, *both = networks(settings, job.runtime.data_root)
    images = blocks_of_images(job, like)
    for one in both:
        one.network.to(job.device)

    def features(block: int) -> list[Tensor]:
        """Return the outputs of the layers of both networks for a block of images."""
        return [
            layer
            for one in both
            for layer in similarity.features(
                one.network, one.layers, one.fitted(images[block]), settings.spatial
            )
        ]

    first, second = both
    cka = similarity.debiased_cka(features, len(images))
    cka = cka[: len(first.layers), len(first.layers) :].cpu()
    rows = [
        {
            "first_network": first.name,
            "second_network": second.name,
            "first_layer": one,
            "second_layer": other,
            "examples": sum(map(len, images)),
            "cka": cka[i, j].item(),
        }
        for i, one in enumerate(first.layers)
        for j, other in enumerate(second.layers)
    ]
    job.log_table("cka", rows)
    results = {"last_cka": cka[-1, -1].item()}
    if [*first.layers] == [*second.layers]:
        results["mean_cka"] = cka.diagonal().mean().item()
    return results


def check(job: Job[CompareSettings]) -> None:
    """Raise SettingsError if the job could not run; its inputs may not have run yet."""
    settings, spec = job.settings, models.Spec((3, 224, 224), IMAGENET, (0.5,) * 3, (0.5,) * 3)
    first, second = layers_of(settings)
    with torch.device("meta"):  # shapes only: no weights are made
        if not settings.first:
            of_model(settings.first_model, True, sized(Settings(), settings), spec, first)
        if not settings.second:
            new = settings.model, settings.pretrained
            of_model(*new, sized(Settings(), settings), spec, second)


if __name__ == "__main__":
    sys.exit(command.run(main, check))
