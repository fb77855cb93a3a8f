"""Starts programs as forks of a server: a process that has imported their libraries already.

A job of seconds would take longer to import torch than to train, and its courier to import MLflow.
Linux only, since a pidfd tells when a process ends that is no child of this one. Elsewhere, and
where a fork would not be safe, programs start cold.

Why not multiprocessing's fork server: the programs here have an environment, files and a session of
their own, as a new Python has; they run their atexit functions; they can ask another server than
the one that they come from; and the workers of their loaders are forks of themselves.
Sources: man7.org/linux/man-pages, pidfd_open(2), unix(7), proc_pid_task(5).
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from io import IOBase
from pathlib import Path
from typing import Any, NoReturn

LOST = -signal.SIGKILL
"""The exit status of a fork whose server was killed first, so that nobody knows the real one."""

LARGEST = 2**22  # bytes of a request, most of which is the environment; the system allows fewer
MOST_FILES = 253  # that the system allows a request to hand over


class Fork:
    """A program that a server has started; it is used like a `subprocess.Popen`."""

    def __init__(self, end: int, replies: socket.socket) -> None:
        self._end, self._replies = end, replies
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended, or LOST. Raises subprocess.TimeoutExpired."""
        if self._status is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork", timeout or 0)
            self._status = int(self._replies.recv(32) or LOST)
            self._replies.close()
            os.close(self._end)
        return self._status

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it is still running."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end, sig)


Process = Fork | subprocess.Popen[bytes]

Server = socket.socket
"""The socket of a process that forks on request, until all who can ask it have closed it."""


def serve(
    modules: Sequence[str], folder: Path, env: Mapping[str, str], keep: Sequence[int] = ()
) -> Server | None:
    """Start a server that imports these modules, also from a folder; None if the system does not
    support it. The server and its forks keep the files of `keep` open."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), *modules],
            cwd=folder,
            env=env,
            pass_fds=(theirs.fileno(), *keep),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return ours


def teach(server: Server, modules: Iterable[str]) -> None:
    """Make a server import further modules before the next fork."""
    with suppress(OSError):
        server.send(json.dumps({"modules": [*modules]}).encode())


@cache
def inherited(variable: str) -> Server | None:
    """Return the server whose socket this process has inherited; an environment variable has its
    number. The variable is removed, since processes that are started from here have no socket."""
    if number := os.environ.pop(variable, ""):
        with suppress(OSError):  # started by a process that did not pass the socket on
            return socket.socket(fileno=int(number))
    return None


def start(
    server: Server | None,
    words: Sequence[str],
    folder: Path,
    files: Sequence[int],
    *,
    env: Mapping[str, str] | None = None,
    keep: Sequence[int] = (),
    session: bool = False,
    python: Sequence[str] = (sys.executable,),
) -> Process:
    """Start `python <words>` in a folder. If there is no server or it has ended, the command
    `python` starts a new interpreter.

    `files` are its input, output and errors. It keeps the files of `keep` open too, and with
    `session` it has a session of its own.
    """
    env = {**(os.environ if env is None else env)}
    if server:
        umask = os.umask(0o077)  # which can be read only by setting it
        os.umask(umask)
        request = {"words": [*words], "folder": str(folder), "env": env, "session": session}
        request["umask"] = umask  # of a folder that a group shares
        with suppress(OSError):  # it has ended, or the request is too large
            ours, theirs = socket.socketpair()
            with theirs:
                message = json.dumps(request).encode()
                socket.send_fds(server, [message], [theirs.fileno(), *files, *keep])
            _, ends, *_ = socket.recv_fds(ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if ends:
                return Fork(ends[0], ours)
            ours.close()
    how: dict[str, Any] = dict(zip(("stdin", "stdout", "stderr"), files, strict=True))
    how |= {"pass_fds": keep, "start_new_session": session}
    return subprocess.Popen([*python, *words], cwd=folder, env=env, **how)


# The server: this file, run by its path, with the number of its socket and the modules to import.
# It imports nothing of the engine, so that it can serve any project.

TASKS = Path("/proc/self/task")

GPU = {"nvidia-uvm", "kfd"}
"""Files that CUDA and ROCm open when they start, after which a fork cannot use the GPU. Source:
docs.pytorch.org/docs/stable/notes/multiprocessing.html, poison fork."""

HARMLESS = {"jemalloc_bg_thd"}
"""Threads with which a process can be forked safely: jemalloc, a part of pyarrow, prepares for each
fork. Source: its background_thread.c."""


def learn(modules: Iterable[str]) -> None:
    """Import modules. Ends the process if one has started threads, or the GPU."""
    for name in modules:
        if name in sys.modules:
            continue
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            import_module(name)  # if it fails, so will the programs that need it, and say why
        if any(file.resolve().name in GPU for file in Path("/proc/self/fd").iterdir()):
            sys.exit(f"run.sh: no warm start, since {name} uses the GPU when it is imported")
        if _threads() > 1 and not _can_fork():
            sys.exit(f"run.sh: no warm start, since {name} starts threads when it is imported")


def _threads() -> int:
    """The number of threads that could make a fork unsafe."""
    found = 0
    for task in TASKS.iterdir():
        with suppress(OSError):  # it has ended
            found += (task / "comm").read_text("utf-8", "replace").strip() not in HARMLESS
    return found


def _can_fork() -> bool:
    """Whether only one thread is left while this process forks: some libraries see to that."""
    if not _fork():
        os._exit(0)
    os.wait()
    return _threads() == 1


def _fork() -> int:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # see learn()
        return os.fork()


def answer(requests: socket.socket) -> None:
    """Fork for each request, until nobody can ask any more."""
    children: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: the pid, and whom to tell
    while True:
        for ready in select.select([requests.fileno(), *children], [], [])[0]:
            if ready in children:
                pid, replies = children.pop(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(ready)
                with replies, suppress(OSError):  # the client has ended
                    replies.send(b"%d" % status)
                continue
            message, files, *_ = socket.recv_fds(
                requests, LARGEST, MOST_FILES, socket.MSG_CMSG_CLOEXEC
            )
            if not message:
                return
            request = json.loads(message)
            if "modules" in request:
                learn(request["modules"])
                continue
            replies = socket.socket(fileno=files.pop(0))
            if not (pid := _fork()):
                requests.close()
                replies.close()
                for end, (_, client) in children.items():
                    os.close(end)
                    client.close()  # or this client would not notice if the server is killed
                run(request, files[:3])
            end = os.pidfd_open(pid)
            children[end] = pid, replies
            with suppress(OSError):  # likewise
                socket.send_fds(replies, [b"."], [end])
            for file in files:
                os.close(file)


def run(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """Become the program: as a new process would be, but for the modules that are imported."""
    if request["session"]:
        os.setsid()
    os.umask(request["umask"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    try:
        os.chdir(request["folder"])
    except FileNotFoundError:  # its sweep has ended meanwhile
        os._exit(1)
    os.environ.clear()
    os.environ.update(request["env"])
    gc.freeze()
    gc.enable()
    status: object = 0
    try:
        _execute(request["words"])
    except SystemExit as error:
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
    except BaseException as error:
        status, trace = 1, error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    _leave(status & 0xFF if isinstance(status, int) else 1)


def _execute(words: list[str]) -> None:
    """Run a script, or a module after `-m`, as the main one of this process."""
    if words[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), words[1:]
        sys.modules.pop(words[1], None)  # or runpy warns that it was imported before
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        script = Path(words[0]).resolve()
        sys.path[0], sys.argv = str(script.parent), words
        (TASKS.parent / "comm").write_bytes(os.fsencode(script.name))  # what `ps` and `top` call it
        runpy.run_path(str(script), run_name="__main__")


def _leave(status: int) -> NoReturn:
    """End as Python does, but keep the inherited modules: tearing them down takes two seconds, and
    copies memory that the forks share."""
    threading._shutdown()  # type: ignore[attr-defined] # ends pools, waits for other threads
    atexit._run_exitfuncs()
    gc.collect()
    for left_open in gc.get_objects():  # but for what was inherited
        if isinstance(left_open, IOBase) and not left_open.closed:
            with suppress(OSError, ValueError):  # no file to write to
                left_open.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the program has closed it
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    gc.disable()  # while it imports
    for number in (signal.SIGINT, signal.SIGHUP):  # clients stop their forks by other signals
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or no fork could be waited for
    sys.path.insert(0, os.getcwd())
    sys.argv[0], requests, *modules = "", *sys.argv[1:]  # no script of a project
    learn(modules)
    answer(socket.socket(fileno=int(requests)))
    os._exit(0)  # see _leave(); who reads the sweep's output waits for the end of this process
