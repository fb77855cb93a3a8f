"""What a step costs: floating-point operations, and how many the device could do.

MFU is the share of the device's peak that training makes use of. Source: Chowdhery et al. 2022,
arxiv.org/abs/2204.02311, appendix B.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

PEAKS = {
    "H200": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12},
    "H100 PCIe": {"fp32": 51e12, "tf32": 378e12, "bf16": 756e12, "fp16": 756e12},
    "H100": {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12},
    "A100": {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12},
    "L40S": {"fp32": 91.6e12, "tf32": 183e12, "bf16": 362e12, "fp16": 362e12},
    "V100": {"fp32": 15.7e12, "fp16": 125e12},
}
"""Dense operations a second by a part of a GPU's name and by precision, from nvidia.com's data
sheets."""


def of_step(model: nn.Module, batch: Tensor) -> int | None:
    """Operations of the forward and the backward pass of a batch (B, ...), by a run without data.

    None for a model that does not run without: one that looks at values, or has tensors besides its
    weights and buffers.
    """
    nothing = {
        name: torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    try:
        with FlopCounterMode(display=False) as counter:
            logits = functional_call(model, nothing, (torch.empty_like(batch, device="meta"),))
            logits.sum().backward()
    except Exception:  # there is no end to what a network can do with its inputs
        return None
    return int(counter.get_total_flops())


def peak(device: torch.device, precision: str) -> float | None:
    """Operations a second that a device can do, None if that is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    known = next((peaks for gpu, peaks in PEAKS.items() if gpu in name), {})
    return known.get(precision)
