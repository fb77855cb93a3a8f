"""Forks for each request, and runs a script or a module there as `python` would.

It is run by its path, with the number of its socket and the modules to import as arguments. It
imports nothing of the engine, so it can serve any project.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.util import find_spec
from io import IOBase
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

LARGEST = 150_000
"""Bytes of a request, most of which is the environment."""

MOST_FILES = 32
"""Files that a request can hand over."""

TASKS = Path("/proc/self/task")
"""This process's threads. Source: man7.org/linux/man-pages/man5/proc_pid_task.5.html."""

FILES = Path("/proc/self/fd")
"""The files that this process has open, as links."""

GPU = {"nvidia-uvm", "kfd"}
"""Files that CUDA and ROCm open when they start, after which a fork cannot use the GPU. Source:
docs.pytorch.org/docs/stable/notes/multiprocessing.html, poison fork."""

HARMLESS = {"jemalloc_bg_thd"}
"""Names of threads with which a process can be forked safely: jemalloc, a part of pyarrow, prepares
for each fork. Source: its background_thread.c."""


class Child:
    """A server's fork, and the pipe by which the server answers for it."""

    def __init__(self, pid: int, replies: int) -> None:
        self._pid, self.replies = pid, replies
        self.end = os.pidfd_open(pid)
        self._say(pid)

    def report(self) -> None:
        """Report the exit status of the process, which has ended."""
        self._say(os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]))
        self.close()

    def close(self) -> None:
        """Close its files; another fork, which inherits them, must do so too."""
        close([self.end, self.replies])

    def _say(self, number: int) -> None:
        with suppress(BrokenPipeError):
            os.write(self.replies, b"%d\n" % number)


def answer(requests: socket.socket) -> list[str]:
    """Fork for each request. Returns no words in the server, once all clients have closed the
    socket, and the command line of its program in a fork."""
    children: dict[int, Child] = {}
    while True:
        for ready in select.select([requests.fileno(), *children], [], [])[0]:
            if ready != requests.fileno():
                children.pop(ready).report()
                continue
            message, files, *_ = socket.recv_fds(
                requests, LARGEST, MOST_FILES, socket.MSG_CMSG_CLOEXEC
            )
            if not message:
                return []
            request = json.loads(message)
            if "modules" in request:
                learn(request["modules"])
            elif not is_read(files[0]):  # the client has ended
                close(files)
            elif pid := fork():
                child = Child(pid, files[0])
                children[child.end] = child
                close(files[1:])
            else:
                requests.close()
                for child in children.values():
                    child.close()
                os.close(files[0])
                become(request, files[1:4])
                return list(request["words"])


def close(files: Iterable[int]) -> None:
    """Close files by their numbers."""
    for file in files:
        os.close(file)


def is_read(pipe: int) -> bool:
    """Whether a process still holds the other end of a pipe."""
    poll = select.poll()
    poll.register(pipe, 0)
    return not poll.poll(0)


def become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Give this process the environment that a new process would have."""
    if request["session"]:
        os.setsid()
    os.umask(request["umask"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    script = Path(request["words"][0]).resolve()
    sys.path[0] = os.getcwd() if script.name == "-m" else str(script.parent)
    os.environ.clear()
    os.environ.update(request["env"])
    gc.freeze()
    gc.enable()


def run(words: list[str]) -> None:
    """Run a script, or a module after `-m`, as the main one of this process."""
    main = ModuleType("__main__")
    if words[0] == "-m":
        spec = find_spec(words[1])
        assert spec and spec.origin and isinstance(spec.loader, InspectLoader)
        main.__spec__, main.__package__, main.__file__ = spec, spec.parent, spec.origin
        code, sys.argv = spec.loader.get_code(words[1]), [spec.origin, *words[2:]]
    else:
        script = Path(words[0]).resolve()
        (TASKS.parent / "comm").write_text(script.name)  # what `ps` and `top` call it
        main.__file__ = str(script)
        code, sys.argv = compile(script.read_bytes(), script, "exec"), words
    sys.modules["__main__"] = main
    assert code
    exec(code, vars(main))


def status_of(error: BaseException) -> int:
    """Return the exit status for an uncaught exception, and print the exception."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    if isinstance(error, SystemExit):
        print(error.code, file=sys.stderr)
    else:
        trace = error.__traceback__
        for _ in "<module>", "run":  # the frames of this file
            trace = trace and trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    return 1


def leave(status: int) -> NoReturn:
    """End this process as Python does, except that inherited modules are not torn down.

    Tearing them down takes two seconds, and copies memory that the forks share.
    """
    threading._shutdown()  # type: ignore[attr-defined] # ends pools, waits for other threads
    atexit._run_exitfuncs()
    gc.collect()
    for left_open in gc.get_objects():  # except what was inherited
        if isinstance(left_open, IOBase) and not left_open.closed:
            with suppress(OSError, ValueError):  # no file to write to
                left_open.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def learn(modules: Iterable[str]) -> None:
    """Import modules. Ends the process if one has started threads, or the GPU."""
    for name in modules:
        if name in sys.modules:
            continue
        before = _threads()
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            import_module(name)  # if it fails, so will the programs that need it, and say why
        if _uses_gpu():
            sys.exit(f"run.sh: no warm start, since {name} uses the GPU when it is imported")
        if _threads() > before and not _can_fork():
            sys.exit(f"run.sh: no warm start, since {name} starts threads when it is imported")


def fork() -> int:
    """Fork without Python's warning about threads; learn() has checked them."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return os.fork()


def _can_fork() -> bool:
    """Whether a fork is safe: this process has one thread while it forks, which some libraries
    ensure themselves."""
    if not fork():
        os._exit(0)
    os.wait()
    return _threads() == 1


def _uses_gpu() -> bool:
    return any(file.resolve().name in GPU for file in FILES.iterdir())


def _threads() -> int:
    """The number of threads that could make a fork unsafe."""
    found = 0
    for task in TASKS.iterdir():
        with suppress(OSError):  # it has ended
            found += (task / "comm").read_text().strip() not in HARMLESS
    return found


if __name__ == "__main__":
    gc.disable()  # while it imports
    for number in (signal.SIGINT, signal.SIGHUP):  # clients stop their forks by other signals
        signal.signal(number, signal.SIG_IGN)
    sys.path.insert(0, os.getcwd())
    learn(sys.argv[2:])
    if words := answer(socket.socket(fileno=int(sys.argv[1]))):
        try:
            run(words)
        except BaseException as error:
            leave(status_of(error))
        leave(0)
