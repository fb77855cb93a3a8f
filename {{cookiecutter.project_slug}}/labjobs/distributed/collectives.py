"""What the processes of one job exchange: small values between hosts, and tensors.

Small values go through gloo, tensors on a CUDA GPU through NCCL. All processes make the same calls
in the same order, from the main thread. Source: docs.pytorch.org/docs/stable/distributed.html.
"""

import atexit
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from secrets import token_bytes
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors

from labjobs import exit_status
from labjobs.distributed import ranks
from labjobs.distributed.ranks import ALONE, First, Other, Rank
from labjobs.job.terminal import leave

BUCKET = 2**25  # bytes of tensors that are sent together, about

PATIENCE = timedelta(days=1)
"""How long a process waits for another one, such as while that downloads data. A process that has
ended is noticed at once (distributed/ranks.py)."""

STARTED = timedelta(minutes=10)  # how long processes wait for each other at their start


class Processes:
    """The processes of a job, connected with each other if there are several. `rank` is this one's,
    `label` the job's name for itself."""

    def __init__(self, rank: Rank = ALONE) -> None:
        self.rank, self.label = rank, "job"
        self.first: First | None = None
        self.other: Other | None = None
        if rank.size > 1:
            self._connect()

    def _connect(self) -> None:
        dist.init_process_group("gloo", timeout=STARTED)
        atexit.register(dist.destroy_process_group)  # its threads must not outlive the interpreter
        self._hosts: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._tensors: Any = self._hosts
        if self.rank.number == 0:
            key = token_bytes()
            self.first = First(os.environ["MASTER_ADDR"], key, ranks.apart())
            self.tell((self.first.address, key))
            self.first.listen(self.rank.size - 1, self._say)
        else:
            address, key = self.tell(None)
            self.other = Other(self.rank.number, address, key, self._say)
        global _of_this_job
        _of_this_job = self

    def lost(self, error: BaseException) -> bool:
        """Return whether an error says that another process cannot be reached: by an exchange or,
        with --shard, by torch in the forward and backward pass."""
        by_gloo = isinstance(error, RuntimeError) and "gloo" in str(error)
        return isinstance(error, dist.DistError) or by_gloo

    def use(self, device: torch.device) -> None:
        """Exchange tensors on this device from now on."""
        if self.rank.size > 1 and device.type == "cuda":
            self._tensors = dist.new_group(backend="nccl", timeout=PATIENCE, device_id=device)

    def tell(self, value: Any) -> Any:
        """Return the value that process 0 has given; what others give does not matter."""
        box = [value]
        dist.broadcast_object_list(box, group=self._hosts)
        return box[0]

    def everyones(self, value: Any) -> list[Any]:
        """Return the values of all processes, by their number."""
        if self.rank.size == 1:
            return [value]
        found: list[Any] = [None] * self.rank.size
        dist.all_gather_object(found, value, group=self._hosts)
        return found

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the largest of all processes' values, one by one."""
        if self.rank.size == 1:
            return list(values)
        together = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(together, dist.ReduceOp.MAX, group=self._hosts)
        return [float(value) for value in together.tolist()]

    def mesh(self, device: torch.device) -> Any:
        """Return torch's description of the processes, to divide tensors among them."""
        from torch.distributed.device_mesh import DeviceMesh  # slow

        return DeviceMesh.from_group(self._tensors, device.type)

    def wait(self) -> None:
        """Return when all processes have come here."""
        if self.rank.size > 1:
            dist.barrier(group=self._hosts)

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes; all of them get the same bits."""
        self._exchange(tensors, lambda flat: dist.all_reduce(flat, group=self._tensors))

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by process 0's; those on a CPU, as of a network that has not been
        moved yet, go through the hosts."""

        def exchange(flat: Tensor) -> None:
            group = self._hosts if flat.device.type == "cpu" else self._tensors
            dist.broadcast(flat, 0, group=group)

        self._exchange(tensors, exchange)

    def _exchange(self, tensors: Iterable[Tensor], exchange: Callable[[Tensor], object]) -> None:
        """Have tensors exchanged, several of them as a flat one, as torch's own modules do."""
        for bucket in _take_tensors([each.detach() for each in tensors], BUCKET):
            flat = _flatten_dense_tensors(bucket)
            exchange(flat)
            torch._foreach_copy_(bucket, _unflatten_dense_tensors(flat, bucket))

    def _say(self, line: str) -> None:
        leave(exit_status.FAILED, f"{self.label} failed: {line}")


_of_this_job = Processes()


def everyones(value: Any) -> list[Any]:
    """Return the values of all processes of this job, by their number."""
    return _of_this_job.everyones(value)


# Tensors of which each process of a job holds a part (--shard), in code that meets others as well.
# Nothing here imports what torch has for them, which takes a second.


def is_divided(tensor: Any) -> bool:
    """Return whether each process of the job holds a part of a tensor (torch's DTensor)."""
    return hasattr(tensor, "placements")


def own(tensor: Any) -> Tensor:
    """Return the part of a tensor that this process holds; all of it if it is not divided."""
    held: Tensor = tensor.detach().to_local() if is_divided(tensor) else tensor.detach()
    return held


def gathered(tensor: Any) -> Tensor:
    """Return a divided tensor as a whole in process 0, and an empty one in the others, so that the
    host holds it once. All processes call it."""
    whole: Tensor = tensor.detach().full_tensor()
    return whole if tensor.device_mesh.get_rank() == 0 else whole.new_empty(0)
