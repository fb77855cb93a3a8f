"""What a job has learnt, compared to the bit."""

from typing import Any

from torch import Tensor


def plain(value: Any) -> Any:
    """Return nested values with each tensor as its bytes."""
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value
