"""All that a training loop needs to go on where it was, kept in the job's `last.pt`.

    state = TrainingState(job, minutes, model=model, optimizer=optimizer, schedule=schedule)
    with state:  # goes on from last.pt, if there is one; leaves one behind, also if interrupted
        for ...:
            state.step()

Each part has `state_dict()` and `load_state_dict()`. By time, `step` copies all of them and has a
thread write the copy while training goes on. The best weights so far are in `last.pt` as well as in
`best.pt`, so the two always fit together.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from engine.cli.settings import identity
from engine.errors import Diverged, JobError
from engine.job import provenance
from engine.job.folder import Job
from engine.job.interruption import Interrupted
from engine.job.terminal import log
from engine.paths import shown
from engine.stateful import Part
from engine.training import checkpoints

CPU = torch.device("cpu")


class TrainingState:
    """The parts of a training loop, and their checkpoints."""

    def __init__(self, job: Job[Any], minutes: float, **parts: Part) -> None:
        self._job, self._parts = job, parts
        self._best: dict[str, Any] = {}
        self._interval = 60 * minutes
        self._saved = time.monotonic()
        self._writer = Writer()
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._held.enter_context(self._job.interruption.held())
        self._go_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        with self._held, self._writer:
            if kind is None or issubclass(kind, Interrupted):
                self._save()
        if kind is None:
            (self._job.folder / "previous.pt").unlink(missing_ok=True)

    def step(self) -> None:
        """A step is whole. Raises OSError if an earlier checkpoint could not be written."""
        if time.monotonic() - self._saved > self._interval and self._writer.idle:
            self._save()

    def keep_best(self, best: dict[str, Any]) -> None:
        """Write best.pt; the values must not change any more."""
        self._best = best
        self._writer.write(self._job.folder / "best.pt", best)

    def _save(self) -> None:
        content = checkpoints.on_host({name: p.state_dict() for name, p in self._parts.items()})
        content |= {"best": self._best, **self._about()}
        self._job.journal.flush()
        self._writer.act(self._job.journal.sync)  # no checkpoint is ahead of the journal
        folder = self._job.folder
        self._writer.write(folder / "last.pt", content, folder / "previous.pt")
        self._saved = time.monotonic()

    def _about(self) -> dict[str, Any]:
        return {"settings": identity(self._job.settings), "code": provenance.code()}

    def _go_on(self) -> None:
        content = self._read()
        if not content:
            return
        about = self._about()
        if content.get("code") != about["code"]:
            folder = shown(self._job.folder)
            log.warning("going on with other code than before; delete %s to begin anew", folder)
        try:
            if content["settings"] != about["settings"]:
                raise ValueError("it is of another job")
            for name, part in self._parts.items():
                part.load_state_dict(content[name])
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            folder = shown(self._job.folder)
            raise JobError(
                f"its checkpoint does not fit the code; delete {folder} to begin anew"
            ) from error
        if content["best"]:
            self.keep_best(content["best"])

    def _read(self) -> dict[str, Any]:
        """The newest checkpoint that is whole; nothing if there is none.

        A damaged one is put aside, so that it never takes the place of a whole `previous.pt`.
        """
        paths = [self._job.folder / name for name in ("last.pt", "previous.pt")]
        found = [path for path in paths if path.exists()]
        for path in found:
            try:
                content = checkpoints.load(path, CPU)
            except checkpoints.Damaged:
                aside = path.replace(path.with_suffix(".damaged"))
                log.warning("%s is damaged; it was put aside as %s", path.name, aside.name)
            else:
                log.info("going on from %s", path.name)
                return content
        if found:
            log.warning("no checkpoint is left; beginning anew")
        return {}


class Writer:
    """A thread that writes checkpoints in order; of those that wait for a file, only the newest."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._waiting: dict[Path, tuple[dict[str, Any], Path | None]] = {}
        self._tasks: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._finished()

    @property
    def idle(self) -> bool:
        """Whether all is written. Raises what a write has raised."""
        self._finished()
        return not self._tasks

    def act(self, task: Callable[[], None]) -> None:
        """Have something done after what is being written."""
        self._tasks.append(self._thread.submit(task))

    def write(self, path: Path, content: dict[str, Any], previous: Path | None = None) -> None:
        """Have a checkpoint written; see `checkpoints.save`. Weights that are not finite are not
        written, and raise JobError the next time that something is."""
        self._finished()
        self._waiting[path] = content, previous
        self.act(partial(self._write_newest, path))

    def _write_newest(self, path: Path) -> None:
        if path in self._waiting:
            content, previous = self._waiting.pop(path)
            if bad := [name for name, w in content["model"].items() if not _finite(w)]:
                raise Diverged(f"the weights are no longer finite ({bad[0]}); lower --lr")
            checkpoints.save(path, content, previous)

    def _finished(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
        self._tasks = [task for task in self._tasks if not task.done()]


def _finite(weights: Tensor) -> bool:
    """By NumPy: torch would start threads for it beside those that train, and GNU's OpenMP lets all
    threads wait in a slower way once they are more than the cores (GOMP_SPINCOUNT)."""
    return bool(np.isfinite(weights.float().numpy(force=True)).all())
