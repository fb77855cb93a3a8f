"""What --init-from gives a job to start from: another job's best weights, or its final state.

A job records how long it has trained in `trained.json`. A longer job needs this record to
continue it.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labjobs.cli import Weights
from labjobs.errors import JobError, SettingsError
from labjobs.files import write_record
from labjobs.job import attempts, inputs, lines
from labjobs.job.folder import JobFolder
from labjobs.job.identity import as_command, identity
from labjobs.job.terminal import log
from labjobs.training import checkpoints, longer
from labjobs.training.longer import Factor, Trained

NAMED = 8
"""Largest number of unfitting weights that are named; further ones are only counted."""

CPU = torch.device("cpu")


class Beginning:
    """The attempt from which a job starts."""

    def __init__(self, folder: JobFolder[Any]) -> None:
        self._folder = folder
        given = getattr(folder.settings, "init_from", None)
        self._given = given if isinstance(given, Weights) else None
        self._factor: Factor | None = None
        self._taken = False

    def take(self, models: Mapping[str, nn.Module]) -> None:
        """Give models the other job's best weights, as far as they fit; says in the log what does
        not. Of models on the meta device it is only checked whether any do.

        Raises SettingsError if none do.
        """
        if not self._given or self._given.last or not (attempt := self._attempt):
            return
        kept = self._best_of(attempt)
        fitting = {name: _fitting(model, kept.get(name, {})) for name, model in models.items()}
        if not any(_has_parameter(model, fitting[name]) for name, model in models.items()):
            has = ", ".join(kept)
            raise SettingsError(
                f"{self._flag}: none of its weights fit; that job kept weights of {has}"
            )
        for name, model in models.items():
            if any(weight.is_meta for weight in model.parameters()):
                continue
            model.load_state_dict(fitting[name], strict=False)
            count, own = len(fitting[name]), len(model.state_dict())
            level = logging.INFO if 2 * count > own else logging.WARNING
            log.log(level, "%s: %d of %d weights of %s are taken", self._flag, count, own, name)
            lines = list(_misfits(model, kept.get(name, {})))
            for line in lines[:NAMED]:
                log.warning("%s: %s.%s", self._flag, name, line)
            if len(lines) > NAMED:
                log.warning("%s: and %d more do not fit", self._flag, len(lines) - NAMED)
            self._taken = True

    def check(self, factor: Factor) -> None:
        """Raise SettingsError if the job has to continue another one and cannot."""
        self._factor = factor
        given, folder = self._given, self._folder
        if not given or not given.last or not (attempt := self._attempt):
            return
        known = inputs.settings_of(given.job, self._root)
        if not known or (attempts.has_checkpoint(folder.path) and not folder.runtime.force):
            return
        before, script = known
        if script != folder.script:
            raise SettingsError(f"{self._flag}: is a job of {script}.py")
        done = lines.record_of(attempt, attempts.TRAINED)
        again = f"{as_command(before, script)} --force runs it again"
        if not done:
            raise SettingsError(
                f"{self._flag}: that job did not record how long it trained; {again}"
            )
        trained = Trained(done["steps"], done["steps_per_epoch"], done["early"])
        if problem := longer.problem(folder.settings, before, factor, trained):
            raise SettingsError(f"{self._flag}: {problem}")
        if not (attempt / "last.pt").exists():
            raise SettingsError(f"{self._flag}: the last.pt of that job is gone; {again}")

    def state(self) -> dict[str, Any]:
        """Return the state at the end of the other job's training; empty if this one starts anew.

        Raises JobError if the state cannot be read, or run.py does not do what --init-from needs.
        """
        if not self._given:
            return {}
        if not self._given.last:
            if not self._taken:
                raise JobError(f"{self._flag}: run.py has to call job.init(…) before job.resume(…)")
            return {}
        if not self._factor or not (attempt := self._attempt):
            raise JobError(f"{self._flag}: check() in run.py has to call job.check_schedule(…)")
        content = self._opened(attempt / "last.pt")
        position = content["parts"]["job.position"]
        position["over"] = False
        if content["best"]:
            content["best"]["settings"] = identity(self._folder.settings)
        log.info("continuing job %s after %d steps", self._given.job, position["step"])
        return {**content, "lines": 0}

    def note_end(self, trained: Trained) -> None:
        """Record how long the job has trained, and whether a longer one could continue."""
        content = {
            "schema": 1,
            "id": self._folder.id,
            **trained._asdict(),
            attempts.GOES_ON: longer.goes_on(self._folder.settings, self._factor, trained),
        }
        write_record(self._folder.path / attempts.TRAINED, content)

    @property
    def _flag(self) -> str:
        return f"--init-from {self._given}"

    @property
    def _root(self) -> Path:
        return inputs.runs_root(self._folder.runs_root)

    @property
    def _attempt(self) -> Path | None:
        """The other job's attempt; None if that job has not run yet, as when a sweep is checked."""
        return inputs.attempt_at(self._given.job, self._root) if self._given else None

    def _best_of(self, attempt: Path) -> dict[str, dict[str, Tensor]]:
        if not (attempt / "best.pt").exists():
            raise SettingsError(f"{self._flag}: that job has kept no weights")
        return dict(self._opened(attempt / "best.pt")["models"])

    def _opened(self, path: Path) -> dict[str, Any]:
        try:
            content = checkpoints.load(path, CPU)
            return _whole(content, path.parent) if "shards" in content else content
        except checkpoints.Damaged as error:
            line = f"its {path.name} is damaged; run that job again with --force"
            raise JobError(f"{self._flag}: {line}") from error


def _whole(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    from labjobs.training import shards  # slow

    return shards.filled(content, folder)


def _fitting(model: nn.Module, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = model.state_dict()
    return {
        name: weight
        for name, weight in kept.items()
        if name in own and own[name].shape == weight.shape
    }


def _has_parameter(model: nn.Module, fitting: Mapping[str, Tensor]) -> bool:
    return any(name in fitting for name, _ in model.named_parameters())


def _misfits(model: nn.Module, kept: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield a line for each weight that does not fit."""
    own = model.state_dict()
    for name, weight in own.items():
        if name not in kept:
            yield f"{name} keeps its initial values: that job has no weight of this name"
        elif kept[name].shape != weight.shape:
            here, there = tuple(weight.shape), tuple(kept[name].shape)
            shapes = f"its shape is {here}, but {there} in that job"
            yield f"{name} keeps its initial values: {shapes}"
    for name in sorted(kept.keys() - own.keys()):
        yield f"{name} of that job is not used: this job has no weight of this name"
