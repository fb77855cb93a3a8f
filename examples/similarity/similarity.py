"""How alike the layers of networks are: linear CKA, debiased, in blocks of examples.

Linear CKA (Kornblith et al. 2019, arxiv.org/abs/1905.00414) is the cosine between two layers' Gram
matrices, which hold the inner products of the features of each two examples. Here it is computed
with the unbiased estimator of HSIC (Song et al. 2012, jmlr.org/papers/v13/song12a.html), as by
Nguyen et al. 2021 (arxiv.org/abs/2010.15327), so that it is about 0 for independent features, even
if there are more of them than examples.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from labjobs import JobError, Normalized, SettingsError, did_you_mean

Layers = dict[str, nn.Module]

FEWEST = 4
"""Examples that the unbiased estimator needs."""

ROUNDING = 1e-12
"""Fraction of its sum of squares below which a layer's HSIC with itself is a rounding error."""


def debiased_cka(features: Callable[[int], Sequence[Tensor]], blocks: int) -> Tensor:
    """Return the debiased linear CKA between all layers (L, L), in [-1, 1].

    `features(block)` returns the features of a block of examples in each layer, L tensors (B, P)
    of float64; it is called for each pair of blocks. A layer that does not distinguish the
    examples, as far as the estimator can see, has no CKA: its row and its column are NaN. This
    happens if features are the same for all examples or for all but one, or if all examples are
    equally far apart. Raises ValueError for fewer than 4 examples.

    The value is that of all examples together and not a mean over blocks, so their size changes
    only its last digits. With n examples in blocks of B, and P features in all layers together,
    memory is for about 3·B·P + L·B² + L·n numbers, and n²·(P + L²) / 2 multiplications are made.
    """
    products, sums = torch.zeros(()), []
    for row in range(blocks):
        left = features(row)
        if row == 0:
            origins = [layer[:1] + (layer - layer[:1]).mean(0) for layer in left]
        left = _centred(left, origins)
        sums.append(left[0].new_zeros(len(left), len(left[0])))
        for column in range(row + 1):
            same = column == row
            right = left if same else _centred(features(column), origins)
            grams = torch.stack([one @ other.T for one, other in zip(left, right, strict=True)])
            if same:
                grams.diagonal(dim1=1, dim2=2).zero_()  # no example is paired with itself
            else:
                sums[column] += grams.sum(1)
            sums[row] += grams.sum(2)
            flat = grams.flatten(1)
            products = products + (1 if same else 2) * (flat @ flat.T)
    hsic = _hsic(products, torch.cat(sums, 1))
    own = hsic.diagonal()
    norms = own.where(own > ROUNDING * products.diagonal(), torch.nan).sqrt()
    return hsic / torch.outer(norms, norms)


def _centred(features: Sequence[Tensor], origins: Sequence[Tensor]) -> list[Tensor]:
    """Return features (B, P) less an origin (1, P), about their mean.

    This does not change the HSIC, but large means would hide small differences. The origin of
    features that are constant is exactly their value.
    """
    return [layer - origin for layer, origin in zip(features, origins, strict=True)]


def _hsic(products: Tensor, sums: Tensor) -> Tensor:
    """Return n (n - 3) times the unbiased HSIC (L, L), HSIC₁ of Song et al. 2012.

    `products` is tr(K̃L̃) for all pairs of Gram matrices without their diagonals (L, L), `sums` the
    sums of their rows (L, n).
    """
    n = sums.shape[1]
    if n < FEWEST:
        raise ValueError(f"{n} examples are too few; at least {FEWEST} are needed")
    totals = sums.sum(1)
    whole = torch.outer(totals, totals) / ((n - 1) * (n - 2))
    return products + whole - 2 / (n - 2) * (sums @ sums.T)


def layers(network: nn.Module, patterns: Sequence[str], flag: str) -> Layers:
    """Return the layers whose names match a pattern, in the network's order.

    `*` stands for anything but a dot. The names are those of `network.named_modules()`, without the
    wrapper that normalizes images. Raises SettingsError, which names the flag, if a pattern
    matches nothing.
    """
    inner = network.network if isinstance(network, Normalized) else network
    known = {name: module for name, module in inner.named_modules() if name}
    chosen = set[str]()
    for pattern in patterns:
        matching = {name for name in known if _matches(name, pattern)}
        if not matching:
            alike = [name for name in known if name.count(".") == pattern.count(".")]
            near = did_you_mean(pattern, alike or [name for name in known if "." not in name])
            raise SettingsError(f"{flag} {pattern}: the network has no such layer; {near}")
        chosen |= matching
    if not chosen:
        raise SettingsError(f"{flag}: name at least one layer")
    return {name: module for name, module in known.items() if name in chosen}


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def features(
    network: nn.Module, chosen: Layers, images: Tensor, spatial: Literal["flatten", "average"]
) -> list[Tensor]:
    """Return the outputs of layers for images (B, C, H, W): for each layer a tensor (B, P) of
    float64.

    If a layer gives a tuple, such as attention, its first element counts. Raises JobError for a
    layer that is not run exactly once, or does not give a tensor with a row for each image.
    """
    found: dict[str, Tensor] = {}

    def keep(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        """Keep what a layer gives."""
        value = output[0] if isinstance(output, tuple) and output else output
        if name in found:
            raise JobError(f"layer {name} is run more than once; name the layer that it is part of")
        if not isinstance(value, Tensor) or value.ndim < 1 or len(value) != len(images):
            what = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise JobError(f"layer {name} gives {what}, not a tensor with a row for each image")
        found[name] = _rows(value, spatial)
        if not found[name].isfinite().all():
            raise JobError(f"layer {name} gives numbers that are not finite")

    with ExitStack() as hooks:
        for name, module in chosen.items():
            hooks.enter_context(module.register_forward_hook(partial(keep, name)))
        network(images)
    if missing := [name for name in chosen if name not in found]:
        raise JobError(f"layer {missing[0]} is not run; leave it out")
    return [found[name] for name in chosen]


def _rows(value: Tensor, spatial: str) -> Tensor:
    """Return an output as (B, P), in float64: a copy, since the next layer may work in place.

    `average` is the mean over H and W of (B, C, H, W), and over T of (B, T, D).
    """
    if value.device.type == "mps":  # which has no float64
        value = value.cpu()
    exact = value.to(torch.float64, copy=True)
    if spatial == "average" and exact.ndim == 4:
        exact = exact.mean((2, 3))
    elif spatial == "average" and exact.ndim == 3:
        exact = exact.mean(1)
    return exact.flatten(1)
