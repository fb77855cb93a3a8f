"""Attempts that run again, for `repeat` and for `accept --verify`: what they logged, with which
flags, and whether the results are the same, bit for bit.
"""

import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from labjobs import exit_status, layout
from labjobs.cli.flags import as_text, option
from labjobs.errors import JobError
from labjobs.files import PROJECT
from labjobs.job import code_evidence, data_evidence, journal, runtime
from labjobs.job.folder import JobFolder
from labjobs.job.identity import identity
from labjobs.job.provenance import INSTALLED
from labjobs.privacy import scrub
from labjobs.tracking import costs, parquet

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Recorded:
    """An attempt at a job, in its folder `path`, with all that is needed to run it again."""

    path: Path

    @property
    def job(self) -> str:
        """The id of the job."""
        return self.path.parent.name

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """What settings.json holds."""
        return journal.record_of(self.path, layout.SETTINGS)

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of its journal. Raises JobError if it is damaged, OSError."""
        if lines := journal.lines_of(self.path):
            return lines
        raise JobError(f"{self.path / layout.JOURNAL} is empty")

    def tag(self, name: str) -> str:
        """Return a tag as it was first logged, since a job may have gone on elsewhere; empty if it
        was not."""
        found = (line["tags"][name] for line in self.lines if name in line.get("tags", {}))
        return str(next(found, ""))

    def copy(self, name: str) -> Path:
        """Return where a copy lies that settings.json names: of its code, of the engine, or the
        list of its packages. Raises JobError if there is none."""
        kept = self.about.get(name)
        file = self.path.parent.parent / str(kept)
        if not kept or not file.is_file():
            what = "list of packages" if name == INSTALLED else "code"
            raise JobError(f"its {what} is not in {self.path.parent.parent.name}/")
        return file

    def check(self) -> None:
        """Raise JobError if it cannot be repeated."""
        settings = self.about.get("settings")
        if not settings:
            raise JobError("its settings.json is damaged or missing")
        if code_evidence.digest(self.path) == code_evidence.MIXED:
            raise JobError(
                "it was continued with changed code, so it belongs to no version of the code"
            )
        if settings.get("minutes"):
            raise JobError("its length is in minutes, so its number of steps varies")
        if (count := self.tag("processes")) not in ("", "1"):
            raise JobError(f"it ran in {count} processes, and repeat starts only one")
        change, why = data_evidence.compare(self.path, data_evidence.last_places(self.path))
        if change:
            raise JobError(f"its data has changed ({change})")
        if why:
            raise JobError(f"its data cannot be checked: {why}")

    def flags(self, job: JobFolder[Any] | None = None) -> list[str]:
        """Return its settings and those flags that can change bits, as on the command line. With
        today's folder of the job, its settings have today's names, and its data lies where it does
        now."""
        recorded = self.about.get("runtime", {})
        words = {**(identity(job.settings) if job else self.about["settings"])}
        words |= {name: value for name, value in recorded.items() if name in runtime.MATTER}
        words["threads"] = self.tag("threads") or "auto"
        if (every := self.lines[0]["start"]["log_every"]) != "auto":  # jobs without steps lack it
            words["log_every"] = every
        words["data_root"] = (job.places if job else data_evidence.last_places(self.path)).data_root
        if self.tag("device") == "cpu":
            words["device"] = "cpu"
        return [f"{option(name)}={as_text(value)}" for name, value in words.items()]


def replay(
    attempt: Recorded, code: Path, flags: Sequence[str], temporary: Path, runs: Path
) -> Recorded:
    """Run the script of an attempt again, as it is in the folder `code`; return the new attempt,
    among others in `runs`. All else that is written lies in a temporary folder.

    Raises JobError if it fails, OSError.
    """
    script = str(code / f"{attempt.about['script']}.py")
    # Without variables that would make it write elsewhere, or log something else.
    elsewhere = (parquet.VARIABLE, runtime.VARIABLE)
    env = {name: value for name, value in os.environ.items() if name not in elsewhere}
    env |= {
        "MLFLOW_TRACKING_URI": f"sqlite:///{temporary}/mlflow.db",
        "PROJECT_FOLDER": str(PROJECT),
        "TMPDIR": str(temporary),
    }
    words = [sys.executable, script, *flags, f"--runs-root={runs}", "--quiet"]
    status, said = run(words, PROJECT, env)
    if status not in (exit_status.DONE, exit_status.NOT_UPLOADED):
        raise JobError(f"it ended with status {status}: {said}")
    found = [path.parent for path in (runs / attempt.job).glob(f"*/{layout.JOURNAL}")]
    if len(found) != 1:
        raise JobError("with this code, it is another job")
    return Recorded(found[0])


def run(
    words: Sequence[str], folder: Path, env: Mapping[str, str], files: Sequence[int] = ()
) -> tuple[int, str]:
    """Run a command in a folder, which holds these files; return its exit status and the last line
    that it printed. When this process is interrupted, so is the command.

    Raises OSError if there is no such command.
    """
    with TemporaryFile() as output:  # a pipe would stay open as long as the job's courier runs
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=files,
            start_new_session=True,
        )
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        output.seek(0)
        said = scrub(output.read().decode(errors="replace"))
    return status, said.strip().rpartition("\n")[2]


# Where results first differ: in the curves, the weights or the outputs for each test example.

OTHER_EACH_TIME = (
    "elapsed_seconds",
    "data_wait_fraction",
    "mfu",
    "find_",
    *costs.NAMES,
)
"""Beginnings of the names of metrics that measure time or the machine."""

SPEED = "_per_second"
"""Endings of the names of speeds."""

Point = tuple[int, str]
"""A step and the name of a metric."""


def curve_points(attempt: Recorded) -> dict[Point, str]:
    """Return the points of all metrics that are the same each time, in the order in which they were
    logged; each value is a text that is different for different floats."""
    return {
        (line["step"], name): repr(value)
        for line in attempt.lines
        for name, value in line.get("metrics", {}).items()
        if not (name.startswith(OTHER_EACH_TIME) or name.endswith(SPEED))
    }


def curve_difference(before: dict[Point, str], after: dict[Point, str]) -> str:
    """Return the first difference between points, by step, in words; empty if all are the same."""
    for step, name in sorted({**before, **after}, key=lambda point: point[0]):
        was, now = (each.get((step, name), "missing") for each in (before, after))
        if was != now:
            return f"{name} at step {step} was {was} and is now {now}"
    return ""


def compare_outputs(before: Path, after: Path) -> tuple[dict[str, int], str]:
    """Return the number of arrays in each file of two attempts, and the first one whose bits are
    not the same, in words.

    Raises JobError if a file is damaged, OSError if it cannot be read.
    """
    counts: dict[str, int] = {}
    for name in (layout.BEST, layout.PREDICTIONS):
        was, now = (_arrays(attempt / name) for attempt in (before, after))
        for array in was | now:
            if was.get(array) != now.get(array):
                return counts, f"{name}: {array} is not the same"
        if was:
            counts[f"arrays in {name}"] = len(was)
    return counts, ""


def _arrays(file: Path) -> dict[str, tuple[Any, ...]]:
    """The arrays in a file of weights or of predictions, by name: type, shape and bytes, since NaN
    is not equal to NaN, and 0.0 is equal to -0.0; none if there is no such file."""
    if not file.exists():
        return {}
    if file.name == layout.BEST:
        import torch  # slow, like NumPy

        from labjobs.training import checkpoints

        kept = checkpoints.load(file, torch.device("cpu"))["models"]
        return {
            name: (each.dtype, each.shape, each.reshape(-1).view(torch.uint8).numpy().tobytes())
            for name, each in _tensors("", kept)
        }
    import numpy as np

    try:
        with np.load(file) as arrays:
            return {name: (each.dtype, each.shape, each.tobytes()) for name, each in arrays.items()}
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise JobError(f"{file.name} is damaged") from error


def _tensors(name: str, nested: Any) -> "Iterator[tuple[str, Tensor]]":
    """The tensors in nested dictionaries, by the names on the way to them."""
    if isinstance(nested, Mapping):
        for key, value in nested.items():
            yield from _tensors(f"{name}.{key}".lstrip("."), value)
    elif hasattr(nested, "untyped_storage"):
        yield name, nested
