"""Asks a server to start programs, and waits for them.

Linux only: pidfds tell when a process ends that is not a child of this one, and a packet socket
separates the requests of several clients. Sources: man7.org/linux/man-pages/man2/pidfd_open.2.html,
man7/unix.7.html.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
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
from typing import Any, NoReturn, Protocol

# Forks for each request, and runs a script or a module there as `python` would.
#
# It is run by its path, with the number of its socket and the modules to import as arguments. It
# imports nothing of the engine, so it can serve any project.

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


LOST = -signal.SIGKILL
"""The exit status of a process whose server was killed first, so that nobody knows the real one."""


class Process(Protocol):
    """A program that was started: a Fork, or a `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Return its process id."""
        ...

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended. Raises subprocess.TimeoutExpired."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, if it is still running."""
        ...


class Fork:
    """A program that a server was asked to start; `replies` is the pipe by which it answers."""

    def __init__(self, replies: int) -> None:
        self._replies = open(replies, "rb", buffering=0)  # noqa: SIM115  (until it has ended)
        self._pid: int | None = None
        self._end: int | None = None
        self._status: int | None = None

    @property
    def pid(self) -> int:
        """Return its process id. Raises OSError if the server has ended before it forked."""
        if self._pid is None:
            line = self._replies.readline()
            if not line:
                self._status = LOST
                raise OSError("the server has ended")
            self._pid = int(line)
            with suppress(ProcessLookupError):  # it has ended already
                self._end = os.pidfd_open(self._pid)
        return self._pid

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended, or LOST. Raises subprocess.TimeoutExpired."""
        if self._status is None and self._has_started(timeout):
            if self._end is not None:
                _await(self._end, timeout)
                os.close(self._end)
            self._status = int(self._replies.readline() or LOST)
            self._replies.close()
        assert self._status is not None
        return self._status

    def _has_started(self, timeout: float | None) -> bool:
        if self._pid is None:
            _await(self._replies.fileno(), timeout)
        with suppress(OSError):
            return bool(self.pid)
        return False

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, if it is still running."""
        if self.poll() is None and self._end is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end, sig)


def _await(file: int, timeout: float | None) -> None:
    """Wait until there is something to read, or until a process has ended."""
    if not select.select([file], [], [], timeout)[0]:
        raise subprocess.TimeoutExpired("a fork", timeout or 0)


class Server:
    """A process that forks on request. It ends when all clients have closed its socket.

    `started` is passed by the process that started it, whose child it is.
    """

    def __init__(
        self, requests: socket.socket, started: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.socket, self._started = requests, started

    def start(
        self,
        words: Sequence[str],
        folder: Path,
        files: Sequence[int],
        *,
        env: Mapping[str, str],
        keep: Sequence[int] = (),
        session: bool = False,
    ) -> Fork:
        """Start `python <words>` in a folder; `files` are its input, output and errors.

        The program keeps the files of `keep` open too, and with `session` has a session of its own.
        Raises OSError if the server has ended.
        """
        request = {
            "words": [*words],
            "folder": str(folder),
            "env": {**env},
            "session": session,
            "umask": _umask(),
        }
        ours, theirs = os.pipe()
        try:
            self._send(request, [theirs, *files, *keep])
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return Fork(ours)

    def learn(self, modules: Iterable[str]) -> None:
        """Make it import further modules before the next fork."""
        with suppress(OSError):
            self._send({"modules": [*modules]}, [])

    def _send(self, request: Mapping[str, Any], files: Sequence[int]) -> None:
        message = json.dumps(request).encode()
        if len(message) > LARGEST or len(files) > MOST_FILES:
            raise OSError("the request is too large")
        socket.send_fds(self.socket, [message], files)


def serve(
    modules: Sequence[str], folder: Path, env: Mapping[str, str], keep: Sequence[int] = ()
) -> Server | None:
    """Start a server that imports these modules, also from a folder; None if the system does not
    support it. The server and its forks keep the files of `keep` open.
    """
    if not _available():
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-P", __file__, str(theirs.fileno()), *modules]
        started = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            pass_fds=(theirs.fileno(), *keep),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return Server(ours, started)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def inherited(variable: str) -> Server | None:
    """Return the server whose socket this process has inherited; a variable has the socket's
    number. The variable is removed, since the processes that this one starts do not inherit the
    socket.
    """
    if number := os.environ.pop(variable, ""):
        with suppress(OSError):  # started by a process that did not pass the socket on
            _inherited[variable] = Server(socket.socket(fileno=int(number)))
    return _inherited.get(variable)


_inherited: dict[str, Server] = {}


def start(
    server: Server | None,
    words: Sequence[str],
    folder: Path,
    files: Sequence[int],
    *,
    env: Mapping[str, str] | None = None,
    keep: Sequence[int] = (),
    session: bool = False,
) -> Process:
    """Start `python <words>` as Server.start does; cold, if there is no server or it has ended."""
    env = os.environ if env is None else env
    if server:
        with suppress(OSError):
            fork = server.start(words, folder, files, env=env, keep=keep, session=session)
            if fork.pid:  # the server reports it after the fork
                return fork
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=env,
        pass_fds=keep,
        stdin=files[0],
        stdout=files[1],
        stderr=files[2],
        start_new_session=session,
    )


def _available() -> bool:
    """Whether this system has what a server needs."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return TASKS.is_dir()


if __name__ == "__main__":
    gc.disable()  # while it imports
    for each in (signal.SIGINT, signal.SIGHUP):  # clients stop their forks by other signals
        signal.signal(each, signal.SIG_IGN)
    sys.path.insert(0, os.getcwd())
    sys.argv[0], requests, *modules = "", *sys.argv[1:]  # no script of a project
    learn(modules)
    if words := answer(socket.socket(fileno=int(requests))):
        try:
            run(words)
        except BaseException as error:
            leave(status_of(error))
        leave(0)
