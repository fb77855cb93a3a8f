"""`python run.py --sync`: send what the tracking store has not got of the jobs on this disk."""

from pathlib import Path

from engine import journal, locks
from engine.courier import turn
from engine.delivery import Delivery, delivered, reason
from engine.job import leave
from engine.store import Elsewhere


def sync(runs_root: Path) -> int:
    """Send what is left of every job that is not running; the exit status."""
    folders = [file.parent for file in sorted(runs_root.expanduser().glob(f"*/{journal.FILE}"))]
    left = [folder for folder in folders if not delivered(folder)]
    sent = 0
    for folder in left:
        lock = locks.take(folder / "lock")
        if lock is None:
            print(f"job {folder.name} is running: its own courier sends it")
            continue
        try:
            _send(folder)
        except Elsewhere as error:
            print(f"job {folder.name} {error}")
        except Exception as error:
            line = f"{sent} of {len(left)} jobs sent; the tracking store: {reason(error)}"
            return leave(3, f"{line}; python run.py --sync sends the rest")
        else:
            sent += 1
            print(f"job {folder.name} sent")
    return leave(0, f"{sent} of {len(left)} jobs sent" if left else "the tracking store has all")


def _send(folder: Path) -> None:
    with turn(folder):
        delivery = Delivery(folder)
        delivery.send()
        delivery.end(delivery.status or "KILLED")
