"""Faults in the engine that only a GPU shows whose host runs ahead; schedules.py looks for them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A change of a file below engine/, and the rules of docs/devices.md that it breaks."""

    name: str
    rules: str
    file: str
    old: str
    new: str
    found: bool = True
    """Whether the schedules find it."""

    def plant(self, project: Path) -> None:
        """Make the change; the text must be there once."""
        path = project / "engine" / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, self
        path.write_text(text.replace(self.old, self.new))


DEVICES = "training/devices.py"

FAULTS = (
    Fault(
        "a device has no index",
        "1",
        DEVICES,
        "return torch.device(found.type, 0) if",
        "return torch.device(found.type) if",
    ),
    Fault(
        "evaluation in the background does not wait for the weights",
        "4",
        DEVICES,
        "            self._stream.wait_stream(self._current())\n",
        "            self._current()\n",
    ),
    Fault(
        "a batch is handed over before it has been copied",
        "4",
        DEVICES,
        "            current.wait_stream(self._stream)\n",
        "",
    ),
    Fault(
        "a batch that was handed over is not marked as used",
        "7",
        DEVICES,
        "                tensor.record_stream(current)\n",
        "                current.query()\n",
    ),
    Fault(
        "measurements are read before they have arrived",
        "5",
        "training/meters.py",
        "                self._copied.synchronize()\n            elif not self._copied.query():",
        "                pass\n            elif not self._copied.query():",
    ),
    Fault(
        "kept outputs are written before they have arrived",
        "5",
        "training/outputs.py",
        "        copied.synchronize()\n",
        "",
    ),
    Fault(
        "a checkpoint is copied without waiting",
        "5, 6",
        "training/checkpoints.py",
        'content.detach().to("cpu", copy=True)',
        'content.detach().to("cpu", copy=True, non_blocking=True)',
    ),
)
