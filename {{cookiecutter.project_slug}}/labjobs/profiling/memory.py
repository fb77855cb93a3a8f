"""What uses the memory while a job trains."""

import resource
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from labjobs.training import devices


def by_kind(parts: Sequence[object], device: torch.device) -> dict[str, int]:
    """Return bytes by kind, of the models and optimizers among a loop's parts.

    Gradients are as large as the weights that are trained. The rest of the device's peak memory is
    activations, data and other things; on a CPU, only the memory of the whole process is known.
    """
    models = [part for part in parts if isinstance(part, nn.Module)]
    optimizers = [part for part in parts if isinstance(part, torch.optim.Optimizer)]
    weights = [weight for model in models for weight in model.parameters()]
    states = [kept.values() for optimizer in optimizers for kept in optimizer.state.values()]
    kinds = {
        "weights": _bytes(weights),
        "buffers": _bytes(buffer for model in models for buffer in model.buffers()),
        "gradients": _bytes(weight for weight in weights if weight.requires_grad),
        "optimizer": _bytes(v for state in states for v in state if isinstance(v, Tensor)),
    }
    peak = devices.peak_memory(device)
    if peak is None:
        unit = 1 if sys.platform == "darwin" else 1024
        most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return kinds | {"the whole process, at most": most}
    kinds["activations, data and the rest"] = max(0, peak - sum(kinds.values()))
    return kinds | {"the most at once": peak, "free": devices.free_memory(device)}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())
