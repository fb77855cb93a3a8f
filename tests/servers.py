"""Real servers for the fault tests: on loopback, on free ports, stopped by their process ids."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import debian
from faults import wait_until


class Server:
    """A server that can be killed and started again at the same address."""

    def __init__(
        self, uri: str, command: list[str], folder: Path, ready: Callable[[], bool], user: str = ""
    ) -> None:
        self.uri = uri
        self._command, self._folder, self._ready = command, folder, ready
        self._user = user or None
        self.start()

    def start(self) -> None:
        """Start it; returns once it answers."""
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=_environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
            )
        wait_until(lambda: self._process.poll() is not None or self._ready(), 300)
        assert self._process.poll() is None, (self._folder / "server.log").read_text()

    def ensure(self) -> "Server":
        """Itself, running."""
        if self._process.poll() is None:
            self.thaw()
        else:
            self.start()
        return self

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait(60)

    def stop(self) -> None:
        """Ask its first process to end at once, as PostgreSQL's immediate mode does."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(60)

    def freeze(self) -> None:
        """Make it hang: it is there and accepts connections, but does not answer."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:  # its id is still its own
            os.killpg(self._process.pid, number)


@contextmanager
def mlflow_server(backend: str) -> Iterator[Server]:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--workers", "1", "--backend-store-uri", backend]
        command += ["--artifacts-destination", f"{folder}/artifacts"]
        server = Server(uri, command, Path(folder), lambda: _answers(f"{uri}/health"))
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def guarded(server: Server, user: str, password: str) -> Iterator[str]:
    """The address of a proxy before a server that asks for a password, or takes it as a token."""
    basic = b64encode(f"{user}:{password}".encode()).decode()

    class Guard(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, kind, content = 401, "text/plain", b""
            if self.headers.get("Authorization") in (f"Basic {basic}", f"Bearer {password}"):
                with closing(HTTPConnection(server.uri.removeprefix("http://"))) as behind:
                    kinds = {"Content-Type": self.headers.get("Content-Type", "")}
                    behind.request(self.command, self.path, body, kinds)
                    reply = behind.getresponse()
                    status, kind = reply.status, reply.headers.get("Content-Type", "")
                    content = reply.read()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Guard) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_port}"
        proxy.shutdown()


@contextmanager
def postgres() -> Iterator[Server]:
    """PostgreSQL on an empty database; it refuses to run as root, so then it has a user."""
    programs = postgres_programs()
    user = "postgres" if os.getuid() == 0 else ""
    port = str(free_port())
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        for path in (Path(folder), data) if user else ():
            shutil.chown(path, user, user)
        make = [str(programs / "initdb"), "--auth=trust", "--username=lab", "--encoding=UTF8"]
        _as(user, [*make, "--no-locale", "--pgdata", str(data)])
        command = [str(programs / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", port]
        asked = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", port]
        server = Server(
            f"postgresql+psycopg://lab@127.0.0.1:{port}/postgres",
            [*command, "-c", "unix_socket_directories="],
            Path(folder),
            lambda: subprocess.run(asked).returncode == 0,
            user,
        )
        try:
            yield server
        finally:
            server.stop()


def postgres_programs() -> Path:
    """The folder of PostgreSQL's programs, which are installed if they are not there."""

    def installed() -> list[Path]:
        found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
        return sorted(found, key=lambda program: int(program.parts[-3]))

    if not installed():
        debian.install("postgresql")
    return installed()[-1].parent


def free_port() -> int:
    """A port that nobody listens on."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _as(user: str, command: list[str]) -> None:
    """Run a command, as another user if one is named."""
    groups: list[str] | None = [] if user else None
    subprocess.run(
        command,
        cwd="/",
        check=True,
        stdout=subprocess.DEVNULL,
        user=user or None,
        group=user or None,
        extra_groups=groups,
    )


def _environment() -> dict[str, str]:
    """This process's, less what makes MLflow behave otherwise in a test."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "PYTEST"))}
    return {**kept, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # 2 processes instead of 10


def _answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
