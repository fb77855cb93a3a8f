"""The device that a job runs on; the only module that touches torch.cuda or torch.mps.

On a CUDA GPU the host runs ahead (`runs_ahead`): it tells the device what to do and goes
on. To read a result without waiting, copy it into `pinned` memory, record an `event` and look later
whether it has happened. On a CPU the same calls do nothing, since all is done at once.
Source: docs.pytorch.org/docs/stable/accelerator.html, .../notes/cuda.html.
"""

import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from labjobs import machine
from labjobs.distributed.collectives import Processes
from labjobs.errors import JobError, SettingsError, cause, first_line

KINDS = ("cuda", "mps")  # accelerators that a job can run on
OTHER_BUILDS = "pytorch.org/get-started/locally has builds for all versions of CUDA"
ALLOCATIONS = 100_000  # of memory, the last ones, that are remembered; a step makes some thousands


def choose(name: str) -> torch.device:
    """Return the device of a name, an accelerator with its index; `auto` is one if there is one.

    Raises SettingsError for a device that is not there, and with `auto` if the job was given a GPU
    that torch cannot use. Takes no memory on it.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's; read as CUDA starts
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        if found and found.type in KINDS:
            return torch.device(found.type, 0)
        given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if given.strip() not in machine.NO_GPU:  # it would train on the CPU for days
            raise SettingsError(
                f"--device auto: CUDA_VISIBLE_DEVICES gives this job GPU {given}, which torch "
                f"cannot use: {why_no_cuda()}; --device cpu trains on the CPU"
            )
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"--device {name}: must be auto, cpu, cuda, cuda:N or mps") from error
    index, cpu = device.index or 0, device.type == "cpu"
    count = _module(device).device_count() if device.type in KINDS else int(cpu)
    if index >= count:
        raise SettingsError(f"--device {name}: torch sees no such device; try --device auto")
    return torch.device("cpu") if cpu else torch.device(device.type, index)


def why_no_cuda() -> str:
    """Return why torch has no CUDA GPU, in one line."""
    name = f"torch {torch.__version__}"
    if not (torch.version.cuda or torch.version.hip):
        return f"{name} is built without CUDA, {OTHER_BUILDS}"
    try:
        torch.cuda.init()
    except RuntimeError as error:
        why, given = first_line(error).split(". ")[0], os.environ.get("CUDA_VISIBLE_DEVICES")
        why += "" if given is None else f" (CUDA_VISIBLE_DEVICES is '{given}')"
        why += f"; {OTHER_BUILDS}" if "too old" in why else ""
        return f"{name}, built for CUDA {torch.version.cuda}, says: {why}"
    return f"{name} sees none"


def choose_for(name: str, processes: Processes) -> torch.device:
    """Return the device of this one of a job's processes: on a machine, each takes the next GPU
    that it sees. Slurm may show each a single one.

    Raises SettingsError for an accelerator other than CUDA GPUs, and if two have the same GPU.
    """
    device = choose(name)
    if device.type == "cuda" and ":" not in name:
        device = torch.device("cuda", processes.rank.local % torch.cuda.device_count())
    elif device.type != "cpu":
        raise SettingsError(f"--device {name}: for several processes it must be auto, cuda or cpu")
    gpus = [*filter(None, processes.everyones(tags(device).get("gpu", "")))]
    if len({*gpus}) < len(gpus):
        raise SettingsError(
            f"--device: each of the {len(gpus)} processes needs a GPU of its own, and some have "
            "the same; start fewer on a machine, or add --device cpu"
        )
    return device


def use(device: torch.device, deterministic: bool) -> None:
    """Make a device the current one, before anything is put on it.

    If all is to be deterministic, an operation that cannot be raises RuntimeError. Raises
    SettingsError for a GPU that this torch has no code for.
    Source: docs.pytorch.org/docs/stable/notes/randomness.html.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
        torch.use_deterministic_algorithms(True)
    if device.type == "cuda":
        _refuse_unbuilt(device)
        set_tf32(False)  # torch's own default is TF32 for convolutions
    in_thread(device)


def _refuse_unbuilt(device: torch.device) -> None:
    """Raise SettingsError if no operation could run on a GPU: torch's wheels have code for some
    generations, where it runs on GPUs that are no older; a driver compiles what is in PTX,
    `compute_90`, for all later ones. Source: docs.nvidia.com/cuda/cuda-compiler-driver-nvcc,
    GPU Compilation.
    """
    has, built = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    codes = [re.match(r"(sm|compute)_(\d+)(\d)", code) for code in built]
    known = [(code[1], (int(code[2]), int(code[3]))) for code in codes if code]  # not of ROCm
    fits = (has >= least and (kind == "compute" or has[0] == least[0]) for kind, least in known)
    if known and not any(fits):
        name = f"{describe(device)}, of compute capability {has[0]}.{has[1]}"
        raise SettingsError(
            f"--device: torch {torch.__version__} has no code for {name}, only {', '.join(built)}; "
            f"{OTHER_BUILDS}"
        )


def set_tf32(on: bool) -> None:
    """Have CUDA GPUs compute what is in 32 bits in TF32, or not: of the whole process, in the
    backward pass and outside of forward functions too."""
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


def in_thread(device: torch.device) -> None:
    """Make a device the current one of this thread; a new thread begins with the first of a kind.

    Events, streams and pinned memory are those of the current device.
    """
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)


def tags(device: torch.device) -> dict[str, str]:
    """Return the device as tags of the run: its model and, of a CUDA GPU, its UUID."""
    found = {"device": describe(device)}
    if device.type == "cuda":
        found["gpu"] = str(torch.cuda.get_device_properties(device).uuid)
    return found


def describe(device: torch.device) -> str:
    """Return the device's model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def wait(device: torch.device) -> None:
    """Return when the device has done all that it was told to."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def wait_for_stream(device: torch.device) -> None:
    """Return when a device has done all work queued so far on its current stream."""
    if runs_ahead(device):
        _module(device).current_stream(device).synchronize()


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a device; on a CPU, the machine's available memory."""
    if device.type == "cpu":
        return machine.available_memory()
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return int(_module(device).mem_get_info(device)[0])


def reset_peak_memory(device: torch.device) -> None:
    """Reset the record of the most memory that tensors have taken on a device."""
    if runs_ahead(device):
        _module(device).reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that tensors took on a device; None where torch does not count them."""
    return int(_module(device).max_memory_allocated(device)) if runs_ahead(device) else None


def runs_ahead(device: torch.device) -> bool:
    """Return whether a device has streams, and copies from and to pinned memory on its own."""
    return device.type == "cuda"


def pinned(shape: Iterable[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros in the host's memory, to and from which the device copies on its own.

    `copy_(…, non_blocking=True)` of it does not wait where the device `runs_ahead`.
    """
    return torch.zeros(tuple(shape), dtype=dtype, pin_memory=runs_ahead(device))


def event(device: torch.device) -> Any:
    """Return an event of the current device: `record` places it after the work queued so far on the
    current stream, `query` and `synchronize` ask and wait for that. On a CPU it has happened."""
    return _module(device).Event()


class SideStream:
    """A queue of work on a device, which goes on while the current stream does something else.

    Within its context, which one thread at a time may be in, a thread sends its work there. On a
    device with a single queue, such as a CPU, everything goes through that one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.raw = _module(device).Stream(device) if runs_ahead(device) else None  # torch's own

    def __enter__(self) -> Self:
        if self.raw:
            self._context = _module(self._device).stream(self.raw)
            self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.raw:
            self._context.__exit__(*error)

    def wait_stream(self) -> None:
        """Have what comes next on it wait for what the current stream has been told so far."""
        if self.raw:
            self.raw.wait_stream(self._current())

    def synchronize(self) -> None:
        """Wait until the device has done all that is on it."""
        if self.raw:
            self.raw.synchronize()

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        """Have the current stream wait for it, and own the tensors that were made on it."""
        if self.raw:
            current = self._current()
            current.wait_stream(self.raw)
            for tensor in tensors:
                tensor.record_stream(current)

    def _current(self) -> Any:
        return _module(self._device).current_stream(self._device)


def recorded(function: Callable[[], None], stream: SideStream) -> torch.cuda.CUDAGraph:
    """Return what a function tells a CUDA GPU to do, as a graph; nothing of it is done. Other
    threads may go on with theirs, and torch's random numbers go on with each replay.

    Source: docs.pytorch.org/docs/stable/generated/torch.cuda.CUDAGraph.html.
    """
    graph = torch.cuda.CUDAGraph()
    failed: list[BaseException] = []
    try:
        with torch.cuda.graph(graph, stream=stream.raw, capture_error_mode="thread_local"):
            try:
                function()
            except BaseException as error:
                # The end of the recording then raises another one, which says less.
                failed.append(error)
                raise
    except Exception as error:
        raise (failed or [error])[0] from None
    return graph


def record_allocations(device: torch.device) -> None:
    """Remember the last ALLOCATIONS on a CUDA GPU, with the lines of Python that they come from.

    With C++ lines too, torch looks up their names for minutes when it writes the record: 461 s
    against 4 s in github.com/pytorch/torchtitan/pull/3628.
    """
    if device.type == "cuda":
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=ALLOCATIONS)


def dump_allocations(device: torch.device, path: Path) -> bool:
    """Write the record to a file for docs.pytorch.org/memory_viz and end it; False without one."""
    if device.type != "cuda":
        return False
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)
    return True


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)


@cache
def computes_in_bf16(device: torch.device) -> bool:
    """Return whether a CUDA GPU computes in bf16, and so in TF32; older ones emulate bf16. Asking
    takes no memory on the GPU."""
    return bool(torch.version.hip) or torch.cuda.get_device_capability(device) >= (8, 0)


def is_slow_in_fp32(device: torch.device) -> bool:
    """Return whether a GPU has tensor cores for fp16 at most, as V100 and T4: no bf16, no TF32."""
    return device.type == "cuda" and not computes_in_bf16(device)


# What a machine's GPUs can do, by trying it: for `jobs.py gpu`.

Answer = tuple[str, str, bool]  # about what, what was found, and whether it works


def answers() -> Iterator[Answer]:
    """Yield what torch has, each GPU that it sees, and what works on them. Waits for the GPUs."""
    yield "torch", f"{torch.__version__}, built for CUDA {torch.version.cuda}", True
    try:
        device = choose("auto")
    except SettingsError as error:
        yield "GPU", str(error), False
        return
    if device.type != "cuda":
        yield "GPU", f"jobs run on {device.type}: {why_no_cuda()}", device.type != "cpu"
        return
    every = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    for gpu in every:
        yield _tried(f"GPU {gpu.index}", _summary, gpu)
    formats = "bf16, fp16, TF32 and fp32; --precision auto is bf16, TF32 only if asked for"
    if is_slow_in_fp32(device):
        formats = "fp32 and fp16; bf16 is emulated, TF32 is fp32; --precision fp16 is the fast one"
    yield "formats", formats, True
    yield _tried("torch.compile", _compiled, device, cure="; --compile off trains without")
    yield _tried("CUDA graphs", _repeated, device, cure="; --graph off trains without")
    if every[1:]:
        yield _tried("NCCL", _added_up, *every, cure="; NCCL_DEBUG=INFO says more")


def _tried(name: str, trial: Callable[..., str], *gpus: torch.device, cure: str = "") -> Answer:
    try:
        return name, trial(*gpus), True
    except Exception as error:
        return name, f"{cause(error)}{cure}", False


def _summary(gpu: torch.device) -> str:
    use(gpu, deterministic=False)
    about = torch.cuda.get_device_properties(gpu)
    free, whole = free_memory(gpu) / 2**30, about.total_memory / 2**30
    able = f"compute capability {about.major}.{about.minor}, for which this torch has code"
    return f"{about.name}, {able}; {free:.1f} of {whole:.1f} GiB are free"


def _compiled(gpu: torch.device) -> str:
    began = time.monotonic()
    _require(torch.compile(lambda x: (2 * x + 1).sum())(torch.ones(1000, device=gpu)), 3000)
    return f"works; the first function took {time.monotonic() - began:.1f} s"


def _repeated(gpu: torch.device) -> str:
    number = torch.ones((), device=gpu)

    def double() -> None:
        number.mul_(2)

    graph = recorded(double, SideStream(gpu))
    for _ in range(3):
        graph.replay()
    _require(number, 8)
    return "work"


def _added_up(*gpus: torch.device) -> str:
    numbers = [torch.ones(1, device=gpu) for gpu in gpus]
    torch.cuda.nccl.all_reduce(numbers)
    for number in numbers:
        _require(number, len(gpus))
    return f"{torch.cuda.nccl.version()} adds up over {len(gpus)} GPUs"


def _require(number: Tensor, right: float) -> None:
    if float(number) != right:
        raise JobError(f"gives {float(number)} instead of {right}: do not trust this GPU")


FORMATS = ("auto", "fp32", "tf32", "bf16", "fp16")

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The number format of the forward pass and the loss; `auto` is bf16 where a GPU computes in
    it, else fp32.

    fp32: everything in 32 bits. tf32: matrix products of 19-bit inputs on the tensor cores. bf16,
    fp16: autocast to 16 bits, weights and optimizer in 32, and what is left in 32 bits is exact;
    fp16 needs its loss scaled. Source:
    docs.pytorch.org/docs/stable/amp.html, .../notes/cuda.html#tf32-on-ampere.

    With `keep_weights`, weights in 16 bits are kept until the end of the forward pass. Raises
    SettingsError for a format that the device does not have. The GPU is not asked before the
    first use, so that jobs can be checked on a machine whose GPUs are taken.
    """

    def __init__(self, name: str, device: torch.device, keep_weights: bool = True) -> None:
        if name in ("fp16", "tf32") and device.type not in ("cuda", "meta"):  # Slurm's GPU is meta
            raise SettingsError(
                f"--precision {name}: needs a CUDA GPU, this job runs on {device.type}"
            )
        self._asked, self._device, self._keep_weights = name, device, keep_weights

    @cached_property
    def name(self) -> str:
        """The format, with `auto` resolved. Raises SettingsError for one that this GPU emulates, or
        silently replaces."""
        if self._asked in ("bf16", "tf32") and is_slow_in_fp32(self._device):
            raise SettingsError(
                f"--precision {self._asked}: {describe(self._device)} does not compute in it; "
                "fp16 is fast there, and fp32 exact"
            )
        if self._asked != "auto":
            return self._asked
        in_bf16 = self._device.type == "cuda" and computes_in_bf16(self._device)
        return "bf16" if in_bf16 else "fp32"

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context for the forward pass: 16 bits where that is safe, if asked for."""
        half = HALF.get(self.name)
        if not half:
            return nullcontext()
        return torch.autocast(self._device.type, half, cache_enabled=self._keep_weights)


class GlobalStreams:
    """The global random numbers: torch's on the CPU and on the device, Python's and NumPy's, all
    from the job's seed.

    The processes of a job draw the same numbers until it resumes: they make the same network. From
    then on each draws its own, so that dropout and augmentation differ between their examples.
    """

    def __init__(self, seed: int, device: torch.device, processes: Processes | None = None) -> None:
        _seed_all(seed)
        self._seed, self._device, self._processes = seed, device, processes or Processes()
        self._begun: dict[str, Any] = {}

    def separate(self) -> None:
        """From here on, each process of the job draws its own numbers."""
        if number := self._processes.rank.number:  # those of process 0 go on as they are
            digest = hashlib.sha256(f"{self._seed}/process/{number}".encode()).digest()
            _seed_all(int.from_bytes(digest[:8], "big") >> 1)
        self._begun = self._own_state()

    def state_dict(self) -> dict[str, Any]:
        """Return where the numbers of process 0 are, as plain values and tensors, with those of the
        others."""
        own = self._own_state()
        mine = {**own, "drawn": not same(own, self._begun)}
        first, *others = self._processes.everyones(mine)
        return {**first, "others": others}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put each of them where it was; a device has no numbers of another kind's.

        Raises JobError for the state of another number of processes, if these have drawn numbers.
        """
        everyones, rank, device = [state, *state["others"]], self._processes.rank, self._device
        if len(everyones) == rank.size:
            own = everyones[rank.number]
            torch.set_rng_state(own["torch"])
            if device.type != "cpu" and device.type in own["device"]:
                _module(device).set_rng_state(own["device"][device.type], device)
            random.setstate(own["python"])
            np.random.set_state(own["numpy"])
        elif any(each["drawn"] for each in everyones):
            raise JobError(
                f"its checkpoint is of {len(everyones)} processes, which have drawn random numbers "
                f"(dropout, augmentation), and this job has {rank.size}; continue with as "
                "many as before, or start over with --force"
            )

    def _own_state(self) -> dict[str, Any]:
        on_host, device = host_numbers(), self._device
        own = on_host["torch"] if device.type == "cpu" else _module(device).get_rng_state(device)
        return {**on_host, "device": {device.type: own}}


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def host_numbers() -> dict[str, Any]:
    """Return where the host's global random numbers are."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    of_numpy = (kind, np.asarray(keys).tolist(), *rest)
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": of_numpy}


def same(one: Any, other: Any) -> bool:
    """Return whether two nested values are the same."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)
