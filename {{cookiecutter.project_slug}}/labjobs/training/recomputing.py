"""Activation checkpointing: blocks keep only their input, and recompute the rest.

The backward pass then needs only the memory of one block and of the blocks' inputs, at the cost of
about one more forward pass. Source: Chen et al. 2016, arxiv.org/abs/1604.06174;
docs.pytorch.org/docs/stable/checkpoint.html.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recompute_blocks(network: nn.Module) -> int:
    """Have each block of a network recompute its activations; return the number of blocks. The
    names of weights and the results do not change."""
    found = [*blocks(network)]
    for block in found:
        block.forward = _Recomputed(block)
    return len(found)


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of a network.

    A block is an element of a Sequential or a ModuleList with at least two layers that have
    weights, such as those of ResNets, ViTs and this project's ConvNet. A block within a block
    belongs to the outer one.
    """
    for child in module.children():
        listed = isinstance(module, nn.Sequential | nn.ModuleList)
        if listed and not isinstance(child, nn.ModuleList) and _layers(child) > 1:
            yield child
        else:
            yield from blocks(child)


def _layers(module: nn.Module) -> int:
    return sum(bool([*each.parameters(recurse=False)]) for each in module.modules())


class _Recomputed:
    """A block's forward pass, which is repeated in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self._norms = [layer for layer in block.modules() if isinstance(layer, _BatchNorm)]

    def __call__(self, *inputs: Any) -> Any:
        forward = partial(type(self._block).forward, self._block)
        if not torch.is_grad_enabled():
            return forward(*inputs)
        if self._norms:
            return _with_norms(forward, self._norms, *inputs)
        return checkpoint(forward, *inputs, use_reentrant=False)


# Compiled, the second pass would update the statistics again.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _with_norms(forward: Callable[..., Any], norms: list[_BatchNorm], *inputs: Any) -> Any:
    contexts = partial(_contexts, norms)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts)


def _contexts(
    norms: list[_BatchNorm],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The contexts of the first and the second forward pass."""
    return nullcontext(), _statistics_kept(norms)


@contextmanager
def _statistics_kept(norms: list[_BatchNorm]) -> Iterator[None]:
    """Leave the running statistics of batch norms as they are: the first pass has updated them."""
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches
