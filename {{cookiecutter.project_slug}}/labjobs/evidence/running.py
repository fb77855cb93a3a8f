"""Which functions of a project really run in a job.

From Python 3.12 on, finding out costs next to nothing: Python reports the first call of each
(docs.python.org, sys.monitoring). Python 3.11 would have to report every call.
"""

import atexit
import inspect
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

TOOLS = (4, 3)
"""Tool ids for Python's monitoring that are not reserved for any kind of tool."""


class Watch:
    """Collects the functions below a folder that have run, in all threads of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.join(folder, "")
        self._ran: set[CodeType] = set()

    @property
    def ran(self) -> set[CodeType]:
        """The code of those functions so far."""
        return self._ran.copy()  # other threads go on

    def note(self, called: CodeType) -> None:
        """Note that a function was called."""
        is_function = called.co_flags & inspect.CO_OPTIMIZED  # not the body of a module or class
        if is_function and os.path.abspath(called.co_filename).startswith(self._folder):
            self._ran.add(called)

    def forget(self) -> None:
        """Begin anew."""
        self._ran.clear()


def begin(folder: Path, on_any_python: bool = False) -> Watch:
    """Note from now on which functions below a folder run, and return the notes.

    On Python 3.11, the collection stays empty unless the first call has `on_any_python`, which
    slows the process down.
    """
    global _watch
    if _watch is None:
        _watch = Watch(folder)
        _report_calls(_watch, on_any_python)
    _watch.forget()
    if sys.version_info >= (3, 12):
        sys.monitoring.restart_events()
    return _watch


_watch: Watch | None = None


def _report_calls(watch: Watch, on_any_python: bool) -> None:
    """Have Python tell the watch which functions are called."""
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        free = next((tool for tool in TOOLS if monitoring.get_tool(tool) is None), None)
        if free is None:  # debuggers or profilers use them all
            return

        def started(called: CodeType, _offset: int) -> Any:
            """Note a function at its first call, and ask for no further ones."""
            watch.note(called)
            return monitoring.DISABLE  # for this function only

        monitoring.use_tool_id(free, __name__)
        monitoring.register_callback(free, monitoring.events.PY_START, started)
        monitoring.set_events(free, monitoring.events.PY_START)
        atexit.register(monitoring.set_events, free, monitoring.events.NO_EVENTS)
    elif on_any_python:

        def called(frame: FrameType, event: str, _about: Any) -> None:
            """Note a function each time that it is called."""
            if event == "call":
                watch.note(frame.f_code)

        threading.setprofile(called)
        sys.setprofile(called)
        atexit.register(sys.setprofile, None)
