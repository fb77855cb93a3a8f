"""Asks a server to start programs, and waits for them.

Linux only: pidfds tell when a process ends that is not a child of this one, and a packet socket
separates the requests of several clients. Sources: man7.org/linux/man-pages/man2/pidfd_open.2.html,
man7/unix.7.html.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from labjobs.warm import server

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
        if len(message) > server.LARGEST or len(files) > server.MOST_FILES:
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
        command = [sys.executable, "-P", server.__file__, str(theirs.fileno()), *modules]
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
    return server.TASKS.is_dir()
