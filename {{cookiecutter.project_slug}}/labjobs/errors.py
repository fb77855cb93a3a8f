"""Errors with a text of one line: what is wrong and what to do about it."""

import difflib
import errno
import os
import re
from collections.abc import Collection, Iterable

from labjobs import exit_status

LIMITS = {errno.EMFILE: "ulimit -n", errno.EFBIG: "ulimit -f"}  # what a shell may have set
FULL = (errno.ENOSPC, errno.EDQUOT)  # numbers of the errors by which a disk is full
DISK_IS_FULL = "the disk is full"


class SettingsError(Exception):
    """A setting has an invalid value. Its text is one line: what is wrong and what to do."""

    status = exit_status.WRONG

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.splitlines()))


class JobError(Exception):
    """A job cannot continue. Its text is one line: the cause and what to do."""


class Elsewhere(JobError):
    """Another process is at work on a job. The text says where."""

    status = exit_status.ELSEWHERE


class Diverged(JobError):
    """A number that training depends on is no longer finite."""

    CURE = "lower the learning rate, or look for NaN in the data"


def require(fine: bool, flag: str, value: object, wanted: str) -> None:
    """Raise SettingsError unless the value of a flag is valid."""
    if not fine:
        raise SettingsError(f"{flag} {value}: must be {wanted}")


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message about an unknown word: the nearest known one or, if none is near,
    `otherwise`, by default all of them."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    every = f"known: {', '.join(known)}" if known else "there are none"
    return f"did you mean {near[0]}?" if near else otherwise or every


def require_known(words: Iterable[str], known: Collection[str], line: str) -> None:
    """Raise SettingsError for a word that is not known, which takes the place of {} in the line."""
    for word in words:
        if word not in known:
            raise SettingsError(f"{line.replace('{}', word)}; {did_you_mean(word, known)}")


def few(names: Iterable[str], most: int) -> str:
    """Return names in words, no more than this many of them: `a, b and 3 more`."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without its full stop; its kind if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


OUT_OF_MEMORY = (
    "out of memory|can't allocate memory|(CUBLAS|CUDNN|CUSOLVER)_STATUS_ALLOC_FAILED|"
    "unable to find an engine to execute this computation"
)
"""How an error says that memory is missing. A GPU that is nearly full fails in its libraries."""

BROKEN_GPU = (
    "uncorrectable (ECC|NVLink) error|device\\(s\\) is/are busy or unavailable|"
    "no CUDA-capable device|fallen off the bus|GPU is lost"
)
"""How an error says that a GPU is broken, or taken away, whatever code runs on it."""


def cause(error: BaseException) -> str:
    """Return an error in one line; one from a loader's process comes with its trace before it."""
    # Libraries that are not in Python say it in words alone.
    in_words = not isinstance(error, OSError) and any(os.strerror(n) in str(error) for n in FULL)
    if in_words or (isinstance(error, OSError) and error.errno in FULL):
        return f"{DISK_IS_FULL}; free some space and give the same command again"
    if isinstance(error, OSError) and error.errno in LIMITS:
        return f"{error.strerror}; raise the limit with `{LIMITS[error.errno]}` in the shell"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    lines = str(error).strip().splitlines() or [""]
    traced = lines[0].startswith("Caught ")
    line = lines[-1] if traced else lines[0]
    if isinstance(error, MemoryError) or re.search(OUT_OF_MEMORY, line):
        return f"out of memory; try a smaller --batch-size ({line})"
    if isinstance(error, SettingsError | JobError):
        return line.split("JobError: ")[-1]
    return line if traced else f"{type(error).__name__}: {line}".removesuffix(": ")
