"""Which lines of some folder's Python files have run."""

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


def record(path: str, folder: str) -> None:
    """Append each line below a folder to a file the first time that it runs, as `below/file:line`.

    The processes of a job write to the same file; a line is there as soon as it has run.
    Source: docs.python.org/3/library/sys.html#sys.settrace.
    """
    seen: set[tuple[str, int]] = set()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def call(frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        return line if frame.f_code.co_filename.startswith(folder) else None

    def line(frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        at = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and at not in seen:
            seen.add(at)
            os.write(file, f"{at[0].removeprefix(folder)}:{at[1]}\n".encode())
        return line

    sys.settrace(call)
    threading.settrace(call)
