"""A job and whoever started it: what it shows while it runs, and the signals that it heeds.

It shows a bar on a terminal, plain lines elsewhere (tqdm), of numbers that the host already has, so
it never waits for the device. Ctrl-C and other signals are noted, and asked for between steps. A
sweep also sends messages.
"""

import atexit
import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any, Never

from tqdm import tqdm

from labjobs.errors import cause, first_line
from labjobs.exit_status import DONE, FAILED, SIGNALLED
from labjobs.files import PROJECT
from labjobs.privacy import scrub

# How signals end a job: immediately or, while it trains, between two steps, since no checkpoint
# could hold a half-done step. The signals are Ctrl-C (INT), a closed terminal (HUP), TERM, and
# USR1 and USR2, with which Slurm and Grid Engine warn that a job is about to end.

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)

SIGNALS = [
    number
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, *WARNINGS)
    if signal.getsignal(number) is not signal.SIG_IGN  # as Ctrl-C is under run.sh, HUP under nohup
]


class Stopped(BaseException):
    """The job stops before its end, to be continued by the same command."""

    status = DONE


class Interrupted(Stopped):
    """A signal asked the job to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"by {signal.Signals(number).name}")
        self.status = SIGNALLED + number


class Paused(Stopped):
    """The job has reached its --pause-after."""


class Interruption:
    """The signal that has `asked` a job to stop; 0 if none has."""

    holding: "Interruption | None" = None  # that of the job that trains in this process

    def __init__(self) -> None:
        self.asked = 0
        self.ends_waits = True  # False where a signal has to be recorded, whatever is waited for
        self.held = False  # whether signals are only recorded

    def listen(self) -> None:
        """From here on a signal raises Interrupted."""
        handle_signals(self._stop)

    def hold(self) -> None:
        """From here on, a signal is only recorded, for `check` to raise Interrupted."""
        self.held = True
        Interruption.holding = self

    def release(self) -> None:
        """From here on, a signal raises Interrupted again, a recorded one immediately."""
        self.held = False
        self.check()

    def check(self) -> None:
        """Raise Interrupted if a signal has asked for it."""
        if self.asked:
            raise Interrupted(self.asked)

    def _stop(self, number: int, _frame: object) -> None:
        handle_signals(signal.SIG_IGN)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
        self.asked = number
        if not self.held:
            raise Interrupted(number)


@contextmanager
def waiting() -> Iterator[None]:
    """Wait within for what may never come, such as a batch that another process reads: a signal
    raises Interrupted at once, since nothing is half done between steps."""
    found, main = Interruption.holding, threading.main_thread()
    if not found or not found.ends_waits or threading.current_thread() is not main:
        yield
        return
    held, found.held = found.held, False
    try:
        found.check()
        yield
    finally:
        found.held = held


def handle_signals(handler: Any) -> None:
    """Set what the signals do."""
    for number in SIGNALS:
        signal.signal(number, handler)
    # A process that was started with this signal ignored would learn no exit status; torch's own
    # handler would raise as its loaders end.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _leave_signals() -> None:
    """Leave signals to the job, in a process that it forks, such as a pool's; all but TERM, by
    which multiprocessing ends processes."""
    Interruption.holding = None
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            ends = number == signal.SIGTERM
            signal.signal(number, signal.SIG_DFL if ends else signal.SIG_IGN)


os.register_at_fork(after_in_child=_leave_signals)


def begin_again(variable: str, value: str) -> None:
    """Begin the command again with an environment variable that Python reads when it starts, unless
    the variable is set, or Python was started with something else, such as a debugger."""
    words, script = sys.orig_argv[1:], sys.argv[0]
    if variable in os.environ or script not in words:
        return
    if all(word.startswith("-") and word != "-m" for word in words[: words.index(script)]):
        os.environ[variable] = value
        os.execv(sys.executable, [sys.executable, *words])


# What is printed: a reader that has left and a console with few letters change no job.


def prepare_streams() -> None:
    """Make standard output and standard error safe to print to, at the start of a command: what the
    console cannot show is escaped, and what nobody can read any more is thrown away.

    In a locale that is not UTF-8, the command begins again in Python's UTF-8 mode: the words of its
    command line and the names of files are to mean the same on all machines.
    """
    if sys.getfilesystemencoding() != "utf-8":
        begin_again("PYTHONUTF8", "1")
    os.environ.pop("PYTHONIOENCODING", None)  # of this console; processes talk in UTF-8
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # closed: no file of the job's may take its place
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        stream = getattr(sys, name)
        if number and (stream is None or type(stream) is TextIOWrapper):
            if stream:
                stream.flush()
            lasting = BufferedWriter(_Lasting(number, "w", closefd=False))
            encoding, errors = stream.encoding if stream else "utf-8", "backslashreplace"
            by_line = bool(stream and (stream.line_buffering or stream.write_through))  # python -u
            setattr(sys, name, TextIOWrapper(lasting, encoding, errors, line_buffering=by_line))
    atexit.register(_print_the_rest)


def _print_the_rest() -> None:
    """Write what is left in the buffer. If the disk is full, say so, unless something has been said
    already; Python would print a trace."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if not _failures:
            leave(FAILED, f"{os.path.basename(sys.argv[0])}: {cause(error)}")
        os._exit(FAILED)


class _Lasting(FileIO):
    """A file that can be written to after its reader has left, or its terminal was closed."""

    def write(self, data: Any) -> int:
        """Write what can be written."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return len(data)


log = logging.getLogger("job")
log.addHandler(logging.NullHandler())  # a job that cannot be opened has nowhere to log to
log.propagate = False


def progress_bar(steps: int | None, quiet: bool, done: int) -> "tqdm[Never]":
    """Return a bar over the optimizer steps of a job, from those done before; it shows nothing
    where the output is not a terminal."""
    return tqdm(
        total=steps,
        initial=done,
        unit="step",
        disable=quiet or not sys.stdout.isatty(),
        file=sys.stdout,
        leave=False,
        dynamic_ncols=True,
        mininterval=0.5,
        # tqdm's own without the time left, in which it ignores evaluations: their lines have it.
        bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}]",
    )


class Terminal(logging.Handler):
    """Prints log lines above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line, except of what the job's last line says again."""
        if not (record.exc_info or record.__dict__.get("said_last")):
            with suppress(OSError):  # a terminal that was closed; the line is in the log file
                tqdm.write(self.format(record), file=sys.stdout)
                sys.stdout.flush()


_failures: list[int] = []
"""The exit statuses with which last lines were printed on stderr."""


def leave(status: int, line: str) -> int:
    """Print a process's last line, on stderr unless all is well; returns its exit status."""
    _failures.extend([status] * bool(status))
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)  # what is left of a progress bar
    with suppress(OSError):  # a full disk, of which _print_the_rest tells
        print(line, file=sys.stderr if status else sys.stdout, flush=True)
    return status


def as_line(metrics: Mapping[str, float]) -> str:
    """Return metrics in one line: `val_loss 0.04213, val_accuracy 0.9861`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def parts_of(said: str, test: bool = False) -> str:
    """Return those parts of a job's results in one line that lists show: all but the test results,
    by which nothing is chosen; or, if asked for, the `test` results in the place of the best
    evaluation's."""
    left_out = "best_" if test else "test_"
    return ", ".join(part for part in said.split(", ") if not part.startswith(left_out))


def counted(number: int, thing: str) -> str:
    """Return a number of things: `1 job`, `3 jobs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


# Messages to a person who has started a sweep and gone home: NOTIFY is a shell command that gets
# each line on its standard input.

NOTIFY = "NOTIFY"

LONGEST = 60.0  # seconds that a message may take
WIDEST = 1000  # its characters, at most: ntfy takes 4,096 bytes


def notify(line: str, wait: bool = False) -> None:
    """Send a line, if there is a command for it, in the background unless the sweep is over. What
    goes wrong is reported and stops nothing."""
    if command := os.environ.get(NOTIFY):
        text = f"{PROJECT.name}: {scrub(line)[:WIDEST]}\n"
        sending = threading.Thread(target=_send, args=(command, text), daemon=True)
        sending.start()
        if wait:
            sending.join()


def _send(command: str, line: str) -> None:
    how: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    try:
        call = ["bash", "-c", command]
        done = subprocess.run(call, input=line, cwd=PROJECT, timeout=LONGEST, **how)
        problem = f"status {done.returncode}: {done.stderr.strip()}" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = first_line(error)
    if problem:
        leave(FAILED, scrub(f"run.sh: {NOTIFY}: {' '.join(problem.split())}"))
