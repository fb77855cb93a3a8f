"""The device that a job runs on."""

import os

import torch

from engine.errors import SettingsError


def choose(name: str) -> torch.device:
    """The device of a name; `auto` is a CUDA GPU, else Apple's, else the CPU.

    Raises SettingsError for a device that is not there. Takes no memory on it.
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return found if found and found.type in ("cuda", "mps") else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"--device {name}: must be auto, cpu, cuda, cuda:N or mps") from error
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": torch.mps.device_count()}
    if (device.index or 0) >= counts.get(device.type, 0):
        raise SettingsError(f"--device {name}: torch sees no such device; try --device auto")
    return device


def use(device: torch.device, deterministic: bool) -> None:
    """Make a GPU the current one: events and streams are those of the current one.

    If all is to be deterministic, an operation that cannot be raises RuntimeError.
    Source: docs.pytorch.org/docs/stable/notes/randomness.html.
    """
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
        torch.use_deterministic_algorithms(True)
    if device.type == "cuda":
        torch.cuda.set_device(device)


def tags(device: torch.device) -> dict[str, str]:
    """The device as tags of the run: its model, and the GPU that the driver knows it as."""
    found = {"device": describe(device)}
    if device.type == "cuda":
        found["gpu"] = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return found


def describe(device: torch.device) -> str:
    """The device's model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def wait(device: torch.device) -> None:
    """Return when the device has done all that it was told to."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def free_memory(device: torch.device) -> int:
    """Bytes that the device could still take; for the CPU, the machine's memory not in use."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def cpu_cores() -> int:
    """Cores that this process may use, shared among the jobs that a sweep runs at once."""
    affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("JOBS_AT_ONCE", 1)))
