"""All that a training loop needs to continue where it was, in the job's `last.pt`.

Each part has `state_dict()` and `load_state_dict()`. By time, all of them are copied, and a thread
writes the copy while training goes on. The best weights so far are in `last.pt` as well as in
`best.pt`, so the two always fit together.
"""

import hashlib
import os
import pickle
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labjobs import layout
from labjobs.data import trees
from labjobs.distributed.collectives import Processes, gathered, is_divided, own
from labjobs.errors import Diverged, JobError, SettingsError, first_line
from labjobs.files import shown, sync_folder, write
from labjobs.job import attempts, identity
from labjobs.job.attempts import Evidence
from labjobs.job.journal import Damaged, Journal, record_of
from labjobs.job.terminal import log
from labjobs.training.progress import Part

# Checkpoints on disk: a whole file or none, sealed, with nothing but data in it.
#
# A checkpoint is what `torch.save` writes, and `torch.load` opens it. It is a zip archive; its
# comment, at the file's end, is the seal: the SHA-256 of all before it. torch checks no checksum of
# its own, so without a seal a flipped bit would be a changed weight.

MARK = b"sha256:"
SEAL = len(MARK) + 64  # bytes of a seal

PLAIN = (str, bytes, bool, int, float, complex, type(None), torch.dtype, torch.device)
"""What torch.load reads with `weights_only`, besides tensors and containers of all these."""


def on_host(content: Any) -> Any:
    """Return a copy of nested values with every tensor in the host's memory, where any machine can
    open it, so that training can go on while it is written. NumPy's numbers become Python's.

    Tensors that are divided among processes are whole in process 0, and empty in the others.
    """

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf.item() if isinstance(leaf, np.generic) else deepcopy(leaf)
        whole = gathered(leaf) if is_divided(leaf) else leaf
        # Not into pinned memory: torch takes up to twice as much of it, and never gives it back.
        return whole.detach().to("cpu", copy=True)

    return trees.mapped(copied, content)


def check_plain(content: Any) -> None:
    """Raise TypeError if nested values hold what could be written, but not be read again."""
    if isinstance(content, dict):
        check_plain([*content.keys(), *content.values()])
    elif type(content) in (list, tuple, set, torch.Size):
        for value in content:
            check_plain(value)
    elif type(content) not in PLAIN and not isinstance(content, Tensor | np.generic):
        raise TypeError(f"a {type(content).__name__}")


def save(path: Path, content: dict[str, Any], previous: Path | None = None) -> None:
    """Write tensors and plain values, and see them onto the disk; what was there is kept under the
    name `previous`. Raises OSError, and leaves what was there, if it cannot be written."""
    try:
        write(path, partial(_fill, content), previous=previous)
        sync_folder(path.parent)
    except BaseException as error:
        if isinstance(error.__context__, OSError):  # torch hides it behind an error of its own
            raise error.__context__ from None
        raise


def load(path: Path, mapped: bool = False) -> dict[str, Any]:
    """Read what `save` wrote, onto the CPU; if `mapped`, the file is not checked, and tensors are
    read when they are used.

    Raises Damaged for a file that is not whole or of another job, JobError for one that holds code.
    """
    if not mapped:
        _check_seal(path)
    content: dict[str, Any]
    try:
        content = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    except pickle.UnpicklingError as error:
        line = "holds more than plain data and was not opened: delete it"
        raise JobError(f"{shown(path)} {line}") from error
    if content.get("id", own := path.parent.parent.name) != own:
        raise Damaged(f"{path.name} is of another job")
    return content


def _fill(content: dict[str, Any], file: Any) -> None:
    torch.save(content, file)
    file.seek(-2, os.SEEK_END)  # an archive ends with the length of its comment
    file.write(SEAL.to_bytes(2, "little"))
    file.seek(0)
    file.write(MARK + hashlib.file_digest(file, "sha256").hexdigest().encode())


def _check_seal(path: Path) -> None:
    left = path.stat().st_size - SEAL
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
        if file.read() != MARK + digest.hexdigest().encode():
            raise Damaged(f"{path.name} is damaged; give the same command again")


# A thread that writes checkpoints while training goes on.


class Writer:
    """Writes checkpoints in order; of those that wait for one file, only the newest."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._waiting: dict[Path, tuple[Any, ...]] = {}
        self._tasks: deque[Future[None]] = deque()

    def check(self) -> None:
        """Raise what a write raised."""
        while self._tasks and self._tasks[0].done():
            self._tasks.popleft().result()

    def write(
        self,
        path: Path,
        content: dict[str, Any],
        models: Mapping[str, Mapping[str, Any]],
        previous: Path | None = None,
        first: Callable[[], object] = lambda: None,
    ) -> Future[None]:
        """Have a checkpoint written; see `save`. Its thread calls `first` before.

        If the weights of one of the `models` in it are not finite, nothing is written, and the next
        call raises Diverged.
        """
        self.check()
        self._waiting[path] = content, models, previous, first
        self._tasks.append(self._thread.submit(self._write_newest, path))
        return self._tasks[-1]

    def close(self) -> None:
        """Return once everything is written. Raises what a write raised."""
        self._thread.shutdown()
        self.check()

    def _write_newest(self, path: Path) -> None:
        if path not in self._waiting:
            return
        content, models, previous, first = self._waiting.pop(path)
        for model, weights in models.items():
            if bad := [name for name, weight in weights.items() if not _finite(weight)]:
                line = f"weights of {model} are no longer finite ({bad[0]})"
                raise Diverged(f"{line}; {Diverged.CURE}")
        first()
        save(path, content, previous)


def _finite(weight: Any) -> bool:
    """By NumPy: torch would start threads for it beside those that train, and GNU's OpenMP lets all
    threads wait in a slower way once they are more than the cores (GOMP_SPINCOUNT)."""
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return True
    return bool(np.isfinite(weight.float().numpy(force=True)).all())


# What a training loop continues from, and what it has kept.


class TrainingState:
    """The parts of a training loop and their checkpoints. `best` is the content of best.pt. Raises
    JobError for a part without a state that can be restored.

    Of several processes, all make the same calls; process 0 writes. With `shard`, what is divided
    among them is gathered for it, and divided again by the parts that load it, among any number.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        minutes: float,
        parts: Mapping[str, Part],
        processes: Processes | None = None,
        shard: bool = False,
    ) -> None:
        self._folder, self._journal = folder, journal
        self._processes, self._shard = processes or Processes(), shard
        self._writes = self._processes.rank.number == 0
        self._parts = parts
        self._interval = 60 * minutes
        self._saved = time.monotonic()
        self._writer = Writer()
        self._last: Future[None] | None = None  # the writing of last.pt
        self.best: dict[str, Any] = {}
        for name, part in parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise JobError(f"job.resume: {name} needs state_dict() and load_state_dict()")
            if shard and isinstance(part, Optimizer):
                from labjobs.distributed import fsdp  # slow

                fsdp.prepare(part)
            self._state_of(name)

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint here. Raises OSError if the last was not written."""
        self._writer.check()
        late = time.monotonic() - self._saved > self._interval
        # It may queue behind best.pt, which some loops write in every step, but not behind another.
        return self._writes and late and (self._last is None or self._last.done())

    def save(self, changed: Mapping[str, Any] | None = None) -> None:
        """Copy all parts and have the copy written; `changed` replaces the states of some."""
        states = {name: self._state_of(name) for name in self._parts} | dict(changed or {})
        if not (self._writes or self._shard):
            return
        content = on_host({"schema": 1, "parts": states})
        if not self._writes:
            return
        content |= {"best": self.best, "lines": self._journal.mark}
        self._journal.flush()
        models = [name for name, part in self._parts.items() if isinstance(part, nn.Module)]
        finite = {name: content["parts"][name] for name in models}
        last, previous = self._folder / layout.LAST, self._folder / layout.PREVIOUS
        sync = self._journal.sync  # no checkpoint is ahead of the journal
        self._last = self._writer.write(last, content, finite, previous, sync)
        self._saved = time.monotonic()

    def keep_best(self, content: dict[str, Any]) -> None:
        """Write best.pt; the values must not change any more."""
        self.best = content
        if self._writes:
            self._writer.write(self._folder / layout.BEST, content, content.get("models", {}))
        elif self._shard:  # whole weights are in process 0 alone
            self.best = content | {"models": {}}

    def finish(self) -> None:
        """Return once everything is written. Raises what a write raised."""
        if self._writes:
            self._writer.close()
            (self._folder / layout.PREVIOUS).unlink(missing_ok=True)
        if self._shard:
            self._log_held()  # the others wait for process 0 here
            if not self._writes and (path := self._folder / layout.BEST).exists():
                self.best = load(path, mapped=True)

    def _log_held(self) -> None:
        """Say in the log how much of the weights and the optimizer's state each process holds."""
        states = [part.state_dict() for part in self._parts.values()]
        divided = [leaf for leaf in trees.leaves(states) if is_divided(leaf)]
        held = self._processes.everyones(sum(own(each).nbytes for each in divided))
        parts = ", ".join(f"{each / 1e6:.3g}" for each in held)
        whole = sum(each.nbytes for each in divided) / 1e6
        log.info("--shard: of %.3g MB of state the processes hold %s MB", whole, parts)

    def close(self) -> None:
        """Wait for what is being written. Raises what a write raised."""
        self._writer.close()

    def restore(self, other: Callable[[], dict[str, Any]]) -> None:
        """Continue from the newest whole checkpoint, or else from what `other` returns, if that is
        not empty.

        Raises JobError for a checkpoint that does not fit the code or the journal.
        """
        # Process 0 reads before the others, as it puts damaged files aside, and writes new ones
        # only when all have read the old.
        if not self._writes:
            self._processes.wait()
        self._load(self._read() or other())
        if self._writes:
            self._processes.wait()
        self._processes.wait()

    def _load(self, content: dict[str, Any]) -> None:
        if not content:
            return
        self._journal.check_reaches(content["lines"])
        for name, part in self._parts.items():
            if name not in content.get("parts", {}):
                log.warning("the checkpoint has no %s, which starts from its initial state", name)
                continue
            try:
                part.load_state_dict(content["parts"][name])
            except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
                why = f"does not fit the code ({name}: {first_line(error)})"
                cure = f"--force starts over, or delete {shown(self._folder)}"
                line = f"its checkpoint {why}; {cure}"
                if "of" in content:
                    cure = "settings that change the model or the optimizer must be the same"
                    line = f"{content['of']}: its state {why}; {cure}"
                raise JobError(line) from error
        if content.get("best"):
            self.keep_best(content["best"])

    def _state_of(self, name: str) -> dict[str, Any]:
        state = self._parts[name].state_dict()
        try:
            check_plain(state)
        except TypeError as error:
            only = "only tensors and plain values can be restored"
            raise JobError(f"job.resume: the state of {name} holds {error}; {only}") from error
        return state

    def _read(self) -> dict[str, Any]:
        """The newest checkpoint that is whole; nothing if there is none.

        A damaged one is put aside, so that it never takes the place of a whole `previous.pt`.
        """
        paths = [self._folder / name for name in layout.CHECKPOINTS]
        found = [path for path in paths if path.exists()]
        for path in found:
            try:
                # With --shard process 0 has checked it, and the others need their parts alone.
                content = load(path, mapped=self._shard and not self._writes)
            except Damaged:
                aside = path.replace(path.with_suffix(".damaged"))
                log.warning("%s is damaged; it was put aside as %s", path.name, aside.name)
            else:
                log.info("continuing from %s", path.name)
                return content
        if found:
            log.warning("no checkpoint is left; starting over")
        elif self._journal.has_points:
            log.info(
                "there was no checkpoint yet (one is made every %g minutes: --checkpoint-minutes); "
                "starting over",
                self._interval / 60,
            )
        return {}


# What a job has kept, read back: its best weights, and what they belong to.

S = TypeVar("S")


@dataclass(frozen=True)
class Best(Generic[S]):
    """A job's best weights by model name, with its settings, spec and metrics."""

    settings: S
    spec: dict[str, Any]
    weights: dict[str, dict[str, Tensor]]
    metrics: dict[str, float]


def best_weights(job_id: str, kind: type[S], runs_root: Path | None = None) -> Best[S]:
    """Return what a job kept as its best, on the CPU; its settings are of the given kind, or of its
    script's, if that is derived from it.

    Of several attempts it is the one with the present code and data, or else the last one that
    finished. Raises JobError if it has kept no weights or they are damaged, and within a job if it
    is not one of that job's inputs or from other code or data; SettingsError if today's settings
    cannot say what the job's were.
    """
    attempt, evidence = attempt_to_load(job_id, runs_root)
    path = attempt / layout.BEST
    try:
        kept = load(path)
    except Damaged as error:
        raise JobError(f"{shown(path)} is damaged; --force makes the job start over") from error
    script = record_of(attempt, layout.SETTINGS).get("script", identity.DEFAULT)
    own = identity.kind_of(script)
    try:
        derived = own if own and issubclass(own, kind) else kind
        settings = identity.restore(derived, kept["settings"])
    except SettingsError as error:
        raise SettingsError(f"job {job_id} of {script}.py: {error}") from error
    attempts.refuse_input(job_id, evidence.change)
    if evidence.remark:
        warnings.warn(f"job {job_id}: {evidence.remark}", stacklevel=3)
    return Best(settings, kept["spec"], kept["models"], kept["metrics"])


def attempt_to_load(job_id: str, runs_root: Path | None = None) -> tuple[Path, Evidence]:
    """Return the folder of the attempt whose weights count, and whether it has the present code and
    data. Raises JobError if the job has kept no weights."""
    root = runs_root or attempts.runs_root()
    job = root / job_id
    found = [path for path in attempts.all_of(job) if (path / layout.BEST).exists()]
    if not job.is_dir():
        cure = "; give the whole id" * any(root.glob(f"{job_id}*"))
        raise JobError(f"{shown(job)}: there is no such job here{cure}")
    if not found:
        line = "a job that trains keeps them from its first evaluation on"
        if any((path / layout.ADOPTED).exists() for path in attempts.all_of(job)):
            line = "it was adopted without them; adopt it again, published with --weights"
        raise JobError(f"{shown(job)}: no weights are kept; {line}")
    found.sort(key=lambda path: attempts.status_of(path) == "finished")
    each = [(path, attempts.evidence_of(job_id, path, root)) for path in reversed(found)]
    return next((one for one in each if not one[1].change), each[0])
