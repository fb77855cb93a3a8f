"""`python jobs.py sync`: send the results of jobs on this disk that are missing in the targets."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from labjobs import locks
from labjobs.errors import JobError, SettingsError, cause
from labjobs.job import attempts, lines
from labjobs.job.lines import Damaged
from labjobs.job.terminal import leave
from labjobs.tracking import targets
from labjobs.tracking.courier import turn
from labjobs.tracking.delivery import Delivery, delivered
from labjobs.tracking.store import Elsewhere
from labjobs.tracking.target import Target


def sync(runs_root: Path) -> int:
    """Send the missing results of every job that is not running; return the exit status. Raises
    SettingsError if there is no such folder, or a target is not valid.
    """
    targets.check()
    if not runs_root.expanduser().is_dir():
        raise SettingsError(f"--runs-root: there is no folder {runs_root}")
    folders = [file.parent for file in sorted(runs_root.expanduser().glob(f"*/*/{lines.FILE}"))]
    return max(_send_all(folders, kind) for kind in targets.in_use())


def _send_all(folders: Sequence[Path], kind: type[Target]) -> int:
    """Send what one target lacks; return the exit status."""
    left = [folder for folder in folders if not delivered(folder, kind)]
    left = [folder for folder in left if not locks.held(folder / "lock")]
    to = f" to {kind.NAME}" if len(targets.in_use()) > 1 else ""
    sent = 0
    for folder in left:
        try:
            _send(folder, kind)
        except (JobError, Elsewhere) as error:
            leave(1, f"job {folder.parent.name} {error}")
        except Exception as error:
            line = f"{sent} of {len(left)} jobs sent; {kind.NAME}: {kind.reason(error)}"
            return leave(3, f"{line}; python jobs.py sync sends the rest")
        else:
            sent += 1
            print(f"job {folder.parent.name} sent{to}")
    line = f"{sent} of {len(left)} jobs sent{to}" if left else f"{kind.NAME} has all"
    return leave(0 if sent == len(left) else 1, line)


def _send(folder: Path, kind: type[Target]) -> None:
    """Raises JobError for what is wrong with the job's files, or what the target raises."""
    with ExitStack() as held:
        delivery = _open(folder, kind, held)
        delivery.send()
        delivery.end(delivery.status or "KILLED")
        if attempts.status(folder) == "finished" and targets.all_have(folder):
            attempts.drop_checkpoints(folder)


def _open(folder: Path, kind: type[Target], held: ExitStack) -> Delivery:
    try:
        if lock := locks.take(folder / "lock"):
            held.enter_context(lock)
            held.enter_context(turn(folder))
            return Delivery(folder, kind)
    except (OSError, Damaged) as error:
        raise JobError(f"cannot be sent: {cause(error)}") from error
    raise JobError("is running and uploads its results itself")
