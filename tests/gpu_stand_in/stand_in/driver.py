"""The functions of torch's C extension that ask the driver, for GPUs that are not there.

Facts of torch that this relies on (2.15; files of github.com/pytorch/pytorch):
- torch/cuda/__init__.py: `_lazy_init` calls `_cuda_init`, which sets `_get_device_properties` and
  `default_generators` of torch.cuda; without NVML the number of GPUs is CUDA's, which goes by
  CUDA_VISIBLE_DEVICES; the current device is each thread's own, at first 0.
- torch/csrc/utils/device_lazy_init.cpp: what is to be put on a GPU calls torch.cuda's `_lazy_init`.
- torch/csrc/cuda/Module.cpp: a forked process cannot use CUDA if its parent has.
- torch/cuda/streams.py: an event is recorded on a stream of the current device.
"""

import json
import os
import sys
import threading
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

CUDA = 1
"""The number of CUDA among torch's device types (c10/core/DeviceType.h)."""

MEMORY = 16 * 2**30
"""Bytes of memory that each GPU says it has."""


@dataclass(frozen=True)
class Properties:
    """What `torch.cuda.get_device_properties` says of a GPU."""

    uuid: str
    name: str
    major: int
    minor: int
    total_memory: int = MEMORY
    multi_processor_count: int = 132
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    L2_cache_size: int = 50 * 2**20


KINDS = {
    "T4": ("T4 (a stand-in)", 7, 5),
    "H100": ("H100 (a stand-in)", 9, 0),
    "RTX 5090": ("RTX 5090 (a stand-in)", 12, 0),
}
"""The name and the compute capability of a kind of GPU; STAND_IN_KIND chooses one."""


class ThisThread(threading.local):
    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, int] = {}


class Driver:
    """What the driver knows: which GPUs there are, and how they are being used."""

    def __init__(self) -> None:
        self.thread = ThisThread()
        self.latest = 0
        """The GPU of the tensor that was made last."""
        self.of_backward: dict[int, int] = {}
        """The streams of the backward pass."""
        self.begun_in = 0
        self.sync_mode = 0
        self.history = False
        self.streams = 0
        self.late: Any = None
        """The queues of a GPU that runs late; see late.py."""
        self.graph: Any = None
        """The graph that is being recorded; see recording.py."""

    @property
    def uuids(self) -> list[str]:
        """The GPUs that this process may see: CUDA_VISIBLE_DEVICES, else all."""
        every = [str(index) for index in range(int(os.environ["STAND_IN_GPUS"]))]
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        return (
            every if seen is None else [one.removeprefix("GPU-") for one in seen.split(",") if one]
        )

    @property
    def recording(self) -> Any:
        """That graph, if what this thread does now is recorded; else None."""
        return self.graph if self.graph and self.graph.stream == self.streams_now else None

    @property
    def streams_now(self) -> dict[int, int]:
        """The current stream of each GPU, in a backward pass too."""
        import torch  # this module is imported with torch's own C extension

        within = torch._C._current_graph_task_id() >= 0
        return self.of_backward if within else self.thread.streams

    def check(self, index: int) -> int:
        """Return an index; raises RuntimeError as CUDA does if there is no such GPU."""
        if index >= len(self.uuids):
            raise RuntimeError("CUDA error: invalid device ordinal")
        return index

    def set_device(self, index: int) -> None:
        self.thread.device = self.check(index)

    def exchange(self, index: int) -> int:
        """Make a GPU this thread's current one, and return the one that was; none if negative."""
        before = self.thread.device
        if index >= 0:
            self.thread.device = self.check(index)
        return before

    def waited(self) -> None:
        if self.sync_mode == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        if self.sync_mode == 1:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)


driver = Driver()

GENERATORS: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Those of GPUs by their C++ objects: torch hands on these, not the Python ones."""


def replace(c: ModuleType) -> None:
    for name, function in (_devices(c) | _queues(c) | _memory() | _nccl()).items():
        setattr(c, name, function)
    c._cudart.cudaMemGetInfo = lambda device: (MEMORY // 2, MEMORY)
    c._set_cudnn_enabled(False)  # its kernels are a GPU's alone; torch has others for each


def _note_start() -> None:
    """Note, for a test, that CUDA starts in this process, and in what order it numbers GPUs."""
    if path := os.environ.get("STAND_IN_STARTS"):
        order = os.environ.get("CUDA_DEVICE_ORDER")
        with open(path, "a") as file:
            print(json.dumps({"words": sys.argv, "order": order}), file=file)


def _devices(c: Any) -> dict[str, Any]:
    def init() -> None:
        if driver.begun_in not in (0, os.getpid()):
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        if not driver.uuids:
            raise RuntimeError("No CUDA GPUs are available")
        driver.begun_in = os.getpid()
        _note_start()
        import torch

        every = range(len(driver.uuids))
        torch.cuda.default_generators = tuple(torch.Generator(f"cuda:{i}") for i in every)
        kind = KINDS[os.environ.get("STAND_IN_KIND", "H100")]
        torch.cuda._get_device_properties = lambda i: Properties(driver.uuids[i], *kind)

    def wait(gpu: int | None = None) -> None:
        driver.waited()
        if driver.late:
            driver.late.drain_gpu(driver.thread.device if gpu is None else gpu)

    forked = {"_cuda_isInBadFork": lambda: driver.begun_in not in (0, os.getpid())}
    return forked | {
        "_cuda_init": init,
        "_cuda_getDeviceCount": lambda: len(driver.uuids),
        "_cuda_getDevice": lambda: driver.thread.device,
        "_cuda_setDevice": driver.set_device,
        "_cuda_exchangeDevice": lambda index: driver.exchange(index),
        "_cuda_maybeExchangeDevice": lambda index: driver.exchange(index),
        "_cuda_synchronize": wait,
        "_accelerator_getAccelerator": lambda: c.device("cuda"),
        "_cuda_set_sync_debug_mode": lambda mode: setattr(driver, "sync_mode", mode),
        "_cuda_get_sync_debug_mode": lambda: driver.sync_mode,
        "_accelerator_getDeviceIndex": lambda: driver.thread.device,
        "_accelerator_setDeviceIndex": driver.set_device,
        "_accelerator_exchangeDevice": driver.exchange,
        "_accelerator_maybeExchangeDevice": driver.exchange,
        "_accelerator_synchronizeDevice": wait,
    }


def key(stream: Any) -> tuple[int, int]:
    return stream.device_index, stream.stream_id


def _queues(c: Any) -> dict[str, Any]:
    """Streams and events: what is told to a GPU is done at once, unless it runs late."""

    class Stream(c.Stream):  # type: ignore[misc]
        def __new__(cls, priority: int = 0, stream_id: int = -1, device_index: int = 0, **_: Any):
            if stream_id < 0:
                driver.streams += 1
                stream_id, device_index = driver.streams, driver.thread.device
            return super().__new__(
                cls, stream_id=stream_id, device_index=device_index, device_type=CUDA
            )

        @property
        def cuda_stream(self) -> int:
            return self.stream_id

        def query(self) -> bool:
            return driver.late is None or bool(driver.late.mark(key(self)).done)

        def synchronize(self) -> None:
            driver.waited()
            if driver.late:
                driver.late.drain(key(self))

    class Event(c.Event):  # type: ignore[misc]
        cuda_event = 0
        mark: Any = None

        def __new__(cls, enable_timing: bool, blocking: bool, interprocess: bool, external: bool):
            return super().__new__(cls, f"cuda:{driver.thread.device}")

        def record(self, stream: Stream) -> None:
            if stream.device_index != driver.thread.device:
                raise RuntimeError("Event device does not match recording stream's device")
            self.mark = driver.late.mark(key(stream)) if driver.late else None

        def wait(self, stream: Stream) -> None:
            assert stream.device_type == CUDA
            if self.mark:
                driver.late.bar(key(stream), self.mark)

        def query(self) -> bool:
            if self.mark:
                driver.late.some()
            return self.mark is None or bool(self.mark.done)

        def synchronize(self) -> None:
            driver.waited()
            if self.mark:
                driver.late.until(self.mark)

    def current(index: int) -> tuple[int, int, int]:
        index = driver.thread.device if index < 0 else index
        return driver.thread.streams.get(index, 0), index, CUDA

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        assert device_type == CUDA
        driver.thread.device = device_index
        driver.thread.streams[device_index] = stream_id

    return {
        "_CudaStreamBase": Stream,
        "_CudaEventBase": Event,
        "_cuda_getCurrentStream": current,
        "_cuda_getDefaultStream": lambda index: (0, max(0, index), CUDA),
        "_cuda_setStream": set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: driver.recording is not None,
    }


def _memory() -> dict[str, Any]:
    def snapshot(*_: object) -> dict[str, Any]:
        if not driver.history:
            raise RuntimeError("the stand-in was not asked to record allocations")
        return {"segments": [], "device_traces": [], "allocator_settings": {}}

    def record(
        enabled: str | None, context: str | None, stacks: str, entries: int, *_: Any
    ) -> None:
        if enabled and (stacks != "python" or entries > 10**6):
            raise RuntimeError("the dump of this record would take minutes")
        driver.history = bool(enabled)

    peak = {"allocated_bytes": {"all": {"peak": 2**20, "current": 2**19}}}
    return {
        "_cuda_memorySnapshot": snapshot,
        "_cuda_record_memory_history": record,
        "_cuda_memoryStats": lambda device: peak,
        "_cuda_resetPeakMemoryStats": lambda device: None,
        "_cuda_emptyCache": lambda: None,
    }


def _nccl() -> dict[str, Any]:
    def all_reduce(inputs: Any, outputs: Any, *_: Any) -> None:
        whole = sum(each.cpu() for each in inputs)
        for each in outputs:
            each.copy_(whole)

    return {"_nccl_all_reduce": all_reduce}
