"""How the processes of a job learn that one of them has ended, within seconds and with one line.
Each process is connected to process 0. A process that fails reports that to process 0; if a process
is killed, its connection is closed without a message. A thread of each process listens. If the
process waits for something that will never happen, such as a GPU that waits for another process's
GPU, the thread ends the process.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

GRACE = 5.0
"""Seconds after which a process ends although it still waits for a process that has ended."""

LOST = 1
"""The exit status of processes if process 0 has ended."""

STOPPED = "stopped"
"""Prefix of the message of a process that was ended by a signal."""

Say = Callable[[str], object]
"""Prints a line for a process that has to end without doing so itself."""


class First:
    """Process 0, to which all others are connected; if they may be `apart`, on other machines."""

    def __init__(self, host: str, key: bytes, apart: bool) -> None:
        self._host = host
        self._listener = Listener(("" if apart else host, 0), authkey=key)
        self._others: dict[Connection, int] = {}
        self._lost = self.fault = ""
        self._noticed = threading.Event()
        self.ending = False
        """Whether this process ends on its own, whatever happens to the others."""

    @property
    def address(self) -> Any:
        """Where the others find this process."""
        assert isinstance(self._listener.address, tuple)
        return self._host, self._listener.address[1]

    def listen(self, count: int, say: Say) -> None:
        """Wait until `count` others are connected, and listen to them from then on."""
        for _ in range(count):
            connection = self._listener.accept()
            self._others[connection] = connection.recv()
        self._listener.close()
        threading.Thread(target=self._listen, args=(say,), daemon=True).start()

    def lost(self, seconds: float) -> str:
        """Return in one line which other process has ended, and why if known; empty if none ends
        within this many seconds."""
        self.ending = True
        self._noticed.wait(seconds)
        return self._lost

    def end(self, status: int) -> None:
        """Tell the others with which status this process ends."""
        self.ending = True
        for connection in self._others:
            _send(connection, status)

    def _listen(self, say: Say) -> None:
        ended = wait(list(self._others))[0]
        assert isinstance(ended, Connection)
        number, said = self._others[ended], _received(ended) or ""
        self._lost = f"process {number} has ended" + (f" ({said})" if said else "")
        self.fault = "" if said.startswith(STOPPED) else self._lost
        self._noticed.set()
        time.sleep(GRACE)
        if not self.ending:
            say(self._lost)
            self.end(LOST)
            os._exit(LOST)


class Other:
    """A process that is not process 0."""

    def __init__(self, number: int, address: Any, key: bytes, say: Say) -> None:
        self._number, self._say = number, say
        self._first = Client(address, authkey=key)
        self._first.send(number)
        self._over = threading.Event()
        self._status: int | None = None
        self._ending = False
        threading.Thread(target=self._listen, daemon=True).start()

    def fail(self, line: str) -> None:
        """Tell process 0 why this process ends."""
        _send(self._first, line)

    def follow(self) -> int:
        """Return the exit status of process 0 once that has ended."""
        self._ending = True
        self._over.wait()
        if self._status is None and self._number == 1:
            self._say("process 0 has ended")
        return LOST if self._status is None else self._status

    def _listen(self) -> None:
        self._status = _received(self._first)
        self._over.set()
        time.sleep(GRACE)
        if not self._ending:
            os._exit(self.follow())


def _send(connection: Connection, value: Any) -> None:
    with suppress(OSError):  # it has ended
        connection.send(value)


def _received(connection: Connection) -> Any:
    """The message that a process has sent; None if it has ended without one."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None
