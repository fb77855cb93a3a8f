"""What --init-from gives a job to start from: another job's best weights, or its final state.

A job records how long it has trained in `outcome.json`. A longer job needs this record to
continue it.
"""

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from labjobs import layout
from labjobs.cli import flags
from labjobs.cli.flags import as_text
from labjobs.errors import JobError, SettingsError, few
from labjobs.job import attempts, journal
from labjobs.job.folder import JobFolder
from labjobs.job.identity import as_command, identity
from labjobs.job.journal import Damaged
from labjobs.job.runtime import LENGTHS
from labjobs.job.terminal import counted, log
from labjobs.settings import HELD_OUT, Span, Weights
from labjobs.training import checkpoints
from labjobs.training.progress import Length, Part, Position

# Whether a longer job may continue a shorter one.
#
# The result must be that of a job which does all steps itself. So only the length and the schedule
# may differ, and each step that was done must have had the learning rate that the longer job would
# have used. To compare them, the student's schedule is called for both jobs.

MAY_DIFFER = (*LENGTHS, "schedule", "init_from")  # in a longer job that continues another
PER_EPOCH = 100  # steps, where schedules are compared before the data is read


class Timing(Protocol):
    """What a schedule may know about a job before its next step; a job has all of it itself."""

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole job; None while --minutes are not measured yet."""

    @property
    def fraction_done(self) -> float:
        """Fraction of the job that is done."""

    def span(self, span: Span) -> int:
        """Return a span such as --warmup as a number of steps."""


Factor = Callable[[Any, Timing, int], float]
"""What learning rates are multiplied by in the next step: of settings, the timing, and how often
the monitored metric has not improved."""


def planned(total: int, steps_per_epoch: int, step: int) -> Any:
    """Return the timing of a job of this length before a step."""
    steps: Callable[[Span], int] = lambda span: span.steps(steps_per_epoch or None)  # noqa: E731
    return SimpleNamespace(step=step, total_steps=total, fraction_done=step / total, span=steps)


class Trained(NamedTuple):
    """The training that a job has done; `early`: it stopped before its full length."""

    steps: int
    steps_per_epoch: int
    early: bool


def can_go_on(settings: Any, factor: Factor | None, done: Trained) -> bool:
    """Return whether a longer job could continue, tested with one that is twice as long and has the
    same schedule. False if the schedule is unknown or the length is in minutes."""
    if factor is None or not done.steps:
        return False
    return not extension_problem(settings, settings, factor, done, 2 * done.steps)


def extension_problem(
    settings: Any, before: Any, factor: Factor, done: Trained, total: int = 0, fork: bool = False
) -> str:
    """Return why a job, of `total` steps if not as its settings say, cannot continue what a job
    with the settings `before` has done, and what to do about it; empty if it can. As a fork it may
    have any settings, but that job must have been able to go on."""
    if getattr(settings, "minutes", 0) or getattr(before, "minutes", 0):
        return "both jobs need a length in --steps or --epochs, not in --minutes"
    mine, theirs = identity(settings), identity(before)
    for name in () if fork else {**mine, **theirs}.keys() - MAY_DIFFER:
        if mine.get(name) != theirs.get(name):
            here, there = as_text(mine.get(name)), as_text(theirs.get(name))
            differs = f"{flags.option(name)} is {here}, but was {there} in that job"
            return f"{differs}; only the length and the schedule may differ"
    length = Length(settings)
    length.steps_per_epoch = done.steps_per_epoch
    total = total or length.total or 0
    settings, steps = before if fork else settings, counted(done.steps, "step")
    if done.early:
        return f"it stopped early, after {steps}, so its length did not end it; see --patience"
    if total <= done.steps:
        return f"it has done {steps}, and this job has {total}; make this job longer"
    if not Position(settings, length).is_evaluated(done.steps):
        every = as_text(settings.eval_every)
        ended = f"it ended between two evaluations, after {steps}"
        return f"{ended}; its length must be a multiple of --eval-every {every}"
    return _schedule_problem(settings, before, factor, done, total)


def _schedule_problem(settings: Any, before: Any, factor: Factor, done: Trained, total: int) -> str:
    """Why the learning rates of steps that are done would have been others; empty if they are the
    same."""
    # The last step comes first, since most schedules differ there.
    for step in chain((done.steps - 1,), range(done.steps - 1)):
        now = planned(total, done.steps_per_epoch, step)
        then = planned(done.steps, done.steps_per_epoch, step)
        for plateaus in (0, 1):  # the actual number is unknown
            lr, lr_then = factor(settings, now, plateaus), factor(before, then, plateaus)
            if lr != lr_then:
                rates = f"the learning rate would be {lr:.4g} of its highest, but was {lr_then:.4g}"
                return (
                    f"in step {step + 1} {rates}; up to there, the schedule must not depend on the "
                    "length, like --schedule constant"
                )
    return ""


READER = "read_length"  # in outcome.json: where the length was read outside of the schedule


class Beginning:
    """The attempt from which a job starts; it goes on after the `done` steps of another job."""

    done = 0

    def __init__(self, folder: JobFolder[Any]) -> None:
        self._folder = folder
        given = getattr(folder.settings, "init_from", None)
        self._given = given if isinstance(given, Weights) else None
        self._factor: Factor | None = None
        self._taken = False
        self._reader = ""

    def take(self, models: Mapping[str, nn.Module]) -> None:
        """Give models the other job's best weights, as far as they fit; says in the log what does
        not. Of models on the meta device it is only checked whether any do.

        Raises SettingsError if none do, or if that job has trained on what is held out here.
        """
        if not self._given or not (attempt := self._attempt):
            return
        self._check_held_out(self._given.job)
        if self._given.last:
            return
        if not (attempt / layout.BEST).exists():
            raise SettingsError(f"{self._flag}: that job has kept no weights")
        kept = dict(self._opened(attempt / layout.BEST)["models"])
        fits = {name: _fitting(model, kept.get(name, {})) for name, model in models.items()}
        if not any(name in fits[m] for m in models for name, _ in models[m].named_parameters()):
            line = f"none of its weights fit; that job kept weights of {', '.join(kept)}"
            raise SettingsError(f"{self._flag}: {line}")
        for name, model in models.items():
            if any(weight.is_meta for weight in model.parameters()):
                continue
            missing, _ = model.load_state_dict(fits[name], strict=False)
            count, own = len(fits[name]), len(model.state_dict())
            log.info("%s: %d of %d weights of %s are taken", self._flag, count, own, name)
            unused = [each for each in kept.get(name, {}) if each not in fits[name]]
            for what, names in (("keep their initial values", missing), ("are not used", unused)):
                if names:
                    log.warning("%s: of %s %s: %s", self._flag, name, what, few(names, 8))
            self._taken = True

    def _check_held_out(self, job: str) -> None:
        """Raise SettingsError if a job has trained on what is held out here."""
        known = attempts.settings_of(job, self._root)
        mine, theirs = identity(self._folder.settings), identity(known[0]) if known else {}
        if mine.get("dataset") != theirs.get("dataset"):
            return
        for name in HELD_OUT:
            here, there = mine.get(name), theirs.get(name, mine.get(name))
            if here not in (None, there) and (here or name != "val_fraction"):
                line = f"{flags.option(name)} is {here}, but was {there} in that job, which trained"
                raise SettingsError(f"{self._flag}: {line} on examples held out here")

    def check(self, factor: Factor) -> None:
        """Raise SettingsError if the job has to continue another one and cannot."""
        self._factor = factor
        given, folder = self._given, self._folder
        if not given or not given.last or not (attempt := self._attempt):
            return
        known = attempts.settings_of(given.job, self._root)
        if not known or (attempts.has_checkpoint(folder.path) and not folder.runtime.force):
            return
        before, script = known
        if script != folder.script:
            raise SettingsError(f"{self._flag}: is a job of {script}.py")
        done = journal.record_of(attempt, layout.OUTCOME)
        again = f"{as_command(before, script)} --force runs it again"
        if "steps" not in done:
            line = f"that job did not record how long it trained; {again}"
            raise SettingsError(f"{self._flag}: {line}")
        if reader := done.get(READER):
            raise SettingsError(
                f"{self._flag}: that job read its own length in {reader}, outside of the schedule, "
                "or chose its batches there; a longer one may differ; run it without --init-from"
            )
        trained = Trained(done["steps"], done["steps_per_epoch"], done["early"])
        if problem := extension_problem(folder.settings, before, factor, trained, fork=given.fork):
            raise SettingsError(f"{self._flag}: {problem}")
        if not (attempt / layout.LAST).exists():
            raise SettingsError(f"{self._flag}: the last.pt of that job is gone; {again}")

    def check_end(self) -> None:
        """Raise SettingsError if its schedule lets no fork go on from its end."""
        if not self._factor:
            raise SettingsError("check() in run.py has to call job.check_schedule(…)")
        settings, length = self._folder.settings, Length(self._folder.settings)
        length.steps_per_epoch = PER_EPOCH
        done = Trained(length.total or 0, PER_EPOCH, early=False)
        if problem := _schedule_problem(settings, settings, self._factor, done, 2 * done.steps):
            raise SettingsError(f"no job can go on from it: in one twice as long, {problem}")

    def state(self, parts: Mapping[str, Part], steps_per_epoch: int | None) -> dict[str, Any]:
        """Return the state at the end of the other job's training, for these parts of this one;
        empty if this one starts anew.

        Raises JobError if the state cannot be read or fits only another number of steps per epoch,
        or if run.py does not do what --init-from needs.
        """
        if not self._given:
            return {}
        if not self._given.last:
            if not self._taken:
                raise JobError(f"{self._flag}: run.py has to call job.init(…) before job.resume(…)")
            return {}
        if not self._factor or not (attempt := self._attempt):
            raise JobError(f"{self._flag}: check() in run.py has to call job.check_schedule(…)")
        content = self._opened(attempt / layout.LAST)
        position = content["parts"]["job.position"]
        position["over"] = False
        if content["best"]:
            content["best"]["id"] = self._folder.id
            content["best"]["settings"] = identity(self._folder.settings)
        self.done = position["step"]
        if self._given.fork:
            theirs = content["parts"]["job.length"]["steps_per_epoch"]
            if steps_per_epoch not in (None, theirs):
                line = f"an epoch had {theirs} steps there, and has {steps_per_epoch} here"
                raise JobError(f"{self._flag}: {line}; give both jobs the same batches")
            _keep_own_rates(content["parts"], parts)
        log.info("continuing job %s after %d steps", self._given.job, self.done)
        return {**content, "lines": (0, 0), "of": self._flag}

    def note_length_read(self, by: FrameType | None) -> None:
        """Note who reads the length of the job, if it is not the schedule, or chooses its batches:
        a longer job might have trained differently."""
        if self._reader or not by:
            return
        schedule = getattr(self._factor, "__code__", None)
        frame: FrameType | None = by
        while frame and frame.f_code is not schedule:
            frame = frame.f_back
        if not frame:
            self._reader = f"{Path(by.f_code.co_filename).name}:{by.f_lineno}"

    def note_end(self, trained: Trained) -> None:
        """Record how long the job has trained, and whether a longer one could continue."""
        goes_on = not self._reader and can_go_on(self._folder.settings, self._factor, trained)
        about = {READER: self._reader, attempts.GOES_ON: goes_on}
        self._folder.trained = {**trained._asdict(), **about}

    @property
    def _flag(self) -> str:
        return f"--init-from {self._given}"

    @property
    def _root(self) -> Path:
        return attempts.runs_root(self._folder.runs_root)

    @property
    def _attempt(self) -> Path | None:
        """The other job's attempt; None if that job has not run yet, as when a sweep is checked."""
        return attempts.finished_at(self._given.job, self._root) if self._given else None

    def _opened(self, path: Path) -> dict[str, Any]:
        try:
            return checkpoints.load(path)
        except Damaged as error:
            line = f"its {path.name} is damaged; run that job again with --force"
            raise JobError(f"{self._flag}: {line}") from error


def _keep_own_rates(states: dict[str, dict[str, Any]], parts: Mapping[str, Part]) -> None:
    """Let optimizers take over the moments alone, not the rates and decays of the other job; and
    not those of an optimizer of another kind, or with other groups."""
    for name, part in parts.items():
        own = part.state_dict().get("param_groups")
        theirs = states.get(name, {}).get("param_groups")
        if own and theirs and not _moments_fit(own, theirs):
            log.warning("%s begins without moments: that job had another optimizer", name)
            states[name] = part.state_dict()
        elif own and theirs:
            states[name]["param_groups"] = [
                mine | {"params": other["params"]} for mine, other in zip(own, theirs, strict=True)
            ]


def _moments_fit(own: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    """Whether one optimizer's moments fit another, going by the groups of both: of as many
    parameters, with the same options."""
    sizes, others = ([len(group["params"]) for group in groups] for groups in (own, theirs))
    return sizes == others and own[0].keys() <= theirs[0].keys()


def _fitting(model: nn.Module, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = model.state_dict()
    return {n: each for n, each in kept.items() if n in own and own[n].shape == each.shape}
