"""Workstations without a queue: `bash run.sh --hosts gpu1,gpu2:0-3`, over OpenSSH and rsync.

This machine alone decides what runs where. A host has places for jobs, as this machine has. To take
one, `ssh` starts `_serve` there, which takes the GPU's locks and says so; then a job's process here
(labjobs.away) has it run the job. If the disks are not shared, the sweep's code was brought to the
host before, and the job's process copies what the job needs there and what it has written back.

Clocks are never compared: a host sends its own clock's time every few seconds and gets it back. It
ends a job if the last time that came back is older than the lease; here, a host counts as gone, and
its job as ended, once nothing was sent back for that long.
"""

import fcntl
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from labjobs import exit_status, files, layout, locks, privacy
from labjobs.errors import DISK_IS_FULL, FULL, SettingsError, few
from labjobs.files import CODE, PROJECT
from labjobs.job import provenance
from labjobs.job.identity import ON_HOST, PLACE
from labjobs.job.terminal import counted, leave
from labjobs.sweeps import gpus, options, states
from labjobs.sweeps.gpus import Gpu
from labjobs.sweeps.options import HERE
from labjobs.sweeps.starter import PAUSE, Running, Starter

LEASE = 60.0  # seconds, unless HOST_SECONDS says otherwise
AGAIN = 10.0  # seconds between two tries to reach a host

SSH = ("ssh", "-oBatchMode=yes", "-oConnectTimeout=15")
DOCS = "python jobs.py docs clusters says what a host needs"
NO_SPACE = os.strerror(FULL[0])


LOOK = """
mkdir -p {project} && cd {project} || exit
if [ "$(cat {token} 2>&1)" = {content} ]; then has=all
else
  mkdir -p data .cache {sweep}/code {sweep}/project || exit
  has=$(command -v rsync)
fi
echo "$has:$PWD"
"""
"""A shell script that says whether a host has all of a sweep, on a shared disk, or has rsync; and
where the project is there."""


class Gone(Exception):
    """A host has gone, and its job has ended. The text says in one line why it counts as gone."""


class Connection:
    """Messages to the other side and from it: dictionaries, each a line of JSON. `said` is the last
    line that was something else, as from ssh."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._rest = read, write, b""
        self.said = ""

    def send(self, **message: Any) -> None:
        """Send a message, unless nobody reads it any more."""
        with suppress(OSError):
            os.write(self._write, json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float = 0.0) -> list[dict[str, Any]] | None:
        """Return the messages that have come, after some seconds at most; None at their end."""
        if not select.select([self._read], [], [], seconds)[0]:
            return []
        data = b""
        with suppress(OSError):
            data = os.read(self._read, 65536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        texts = [line for line in lines if not line.startswith(b'{"')]
        self.said = next((t.decode(errors="replace").strip() for t in texts[::-1] if t), self.said)
        return [json.loads(line) for line in lines if line.startswith(b'{"')]


class Host:
    """A host of a sweep. `folder` is the sweep's there, `places` are the devices of its places."""

    def __init__(self, word: str) -> None:
        found = re.fullmatch(r"(\w[\w.@-]*)(?::(\d+)(?:-(\d+))?)?", word)
        if not found:
            raise SettingsError(f"--hosts {word}: write a host as gpu1, or gpu1:0-3 for some GPUs")
        self.name, first, last = found.groups()
        self.gpus = ",".join(map(str, range(int(first), int(last or first) + 1))) if first else None
        self.folder, self.shared = Path(), False
        self.places: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self, sweep: Path, about: Mapping[str, Any]) -> str:
        """Bring a sweep's code to the host, if it is not there, and learn its places; return in a
        line what is wrong, empty if nothing is."""
        known = options.host(self.name)
        project = known.get("folder", str(PROJECT))
        script = LOOK.format(
            project=shlex.quote(project),
            sweep=f"{layout.SWEEPS}/{sweep.name}",
            token=f"{layout.SWEEPS}/{sweep.name}/{layout.TOKEN}",
            content=(sweep / layout.TOKEN).read_text("utf-8"),
        )
        said, problem = _heard([*SSH, self.name, f"exec sh -c {shlex.quote(script)}"])
        if problem:
            return problem
        has, _, project = said.strip().rpartition("\n")[2].partition(":")
        self.shared, self.folder = has == "all", Path(project, layout.SWEEPS, sweep.name)
        if not self.shared and (problem := self._bring(sweep / "code", has)):
            return problem
        python = Path(sys.executable)
        if python.is_relative_to(PROJECT):
            python = Path(project, python.relative_to(PROJECT))
        root = project if self.shared else f"{self.folder}/project"
        about = {**about, "gpus": self.gpus, "shared": self.shared, "project": project}
        program = ["env", f"PROJECT_FOLDER={root}", "PYTHONUTF8=1"]
        program += [known.get("python", str(python)), "-m", "labjobs.sweeps.hosts"]
        program.append(json.dumps(about))
        self._command = f"cd {shlex.quote(f'{self.folder}/code')} && exec {shlex.join(program)}"
        return self._learn()

    def _bring(self, code: Path, has: str) -> str:
        """Copy the code, if the host has rsync; return what went wrong."""
        if not (has and shutil.which("rsync")):
            return f"there is no rsync {'on this machine' if has else 'there'}; install it"
        links = [path for path in code.rglob("*") if path.is_symlink()]
        secret = {p.name for p in links if any(map(privacy.is_secret, (p, p.resolve())))}
        left_out = [f"--exclude={name}" for name in secret]
        beside = json.loads((code / layout.FROZEN).read_bytes())["ignored"]
        data = [name for name in beside if _is_data(code, name)]  # of which a host has its own
        left_out += ["--exclude=/" + re.sub(r"[][*?\\]", r"\\\g<0>", name) for name in data]
        there = f"{self.name}:{self.folder}/code/"
        return _heard(rsync("--copy-unsafe-links", *left_out, f"{code}/", there))[1]

    def _learn(self) -> str:
        """Ask for the places; the process that answers keeps the sweep's folder there."""
        self._process, self._socket = self.start()
        self._keeper = Connection(self._socket.fileno(), self._socket.fileno())
        until = time.monotonic() + LEASE
        while (messages := self._keeper.receive(PAUSE)) == [] and time.monotonic() < until:
            pass
        if not messages:
            ended = self._keeper.said or "the connection ended"
            late = f"no answer within {LEASE:.0f} s"
            return f"{late if messages == [] else ended}; {DOCS}"
        found, own = messages[0], _versions()
        there, self.places = found["versions"], found["places"]
        differ = [f"{k} {there.get(k, 'missing')}" for k in own if own[k] != there.get(k)]
        wrong = f"other versions than here: {few(differ, 3)}; {DOCS}" if differ else ""
        return str(found["problem"] or wrong)

    def start(self, *words: object) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start `main` there; return the process of ssh, and its input and output."""
        ours, theirs = socket.socketpair()
        command = [*SSH, "-oServerAliveInterval=10", self.name]
        command.append(" ".join([self._command, *map(str, words)]))
        with theirs:
            how: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
            process = subprocess.Popen(command, **how, start_new_session=True)
        return process, ours

    def close(self) -> None:
        """Have the sweep's copy there removed, unless something of the sweep still runs there."""
        if self._process:
            self._keeper.send(clear=True)
            self._socket.shutdown(socket.SHUT_WR)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(AGAIN)
            self._process.kill()


def _is_data(code: Path, name: str) -> bool:
    """Whether what git ignores is only linked into a copy of the code, and is no file in a folder
    of the code that others may read."""
    link = code / name
    is_part = "/" in name and link.is_file() and not privacy.is_private(link)
    return link.is_symlink() and not is_part


def _versions() -> dict[str, str]:
    """The versions on which results may depend."""
    found = dict(each.split() for each in provenance.tags()["versions"].split(", "))
    return found | {"python": "{}.{}".format(*sys.version_info)}


def _heard(command: list[str]) -> tuple[str, str]:
    """What a command prints, and what went wrong."""
    how: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, **how)
    return done.stdout, _problem(done.returncode, done.stderr)


def _problem(status: int, said: str) -> str:
    """What a command has said that failed, in a line; empty if its exit status is 0."""
    if not status:
        return ""
    lines = [line for line in said.strip().splitlines() if not line.startswith("rsync error")]
    return DISK_IS_FULL if NO_SPACE in said else lines[-1] if lines else f"status {status}"


def rsync(*words: str) -> list[str]:
    """Return a command that copies folders, and leaves out files that are being written."""
    return ["rsync", "-rlps", f"--rsh={shlex.join(SSH)}", "--exclude=*.part", *words]


class Slot(Gpu):
    """A place for one job on a host. What `files` has, while it is held, is the connection, which
    the job's process inherits and the host's locks depend on."""

    def __init__(self, host: Host, number: int) -> None:
        super().__init__({}, number)
        self.host, self.device = host, f"{host.name} {host.places[number]}"
        self._process: subprocess.Popen[bytes] | None = None

    def take(self) -> bool:
        """Ask for it, if that has not been done; return whether it is held by now."""
        if not self._process:
            if time.monotonic() < self._next_look:
                return False
            self._process, connected = self.host.start(self._number)
            self.files = [connected.detach()]
            self._connection = Connection(self.files[0], self.files[0])
        messages, why = self._connection.receive(), ""
        for message in messages or ():
            if "held" in message:
                about = {"host": self.host.name, "fd": self.files[0]}
                about |= {"folder": "" if self.host.shared else f"{self.host.folder}/project"}
                self.env = {PLACE: json.dumps(about)}
                return True
            why = message["why"]
        if messages is None:
            why = why or self._connection.said or "does not answer"
        if why:
            self.why = why
            self.leave_alone()
        return False

    def leave_alone(self) -> None:
        """Release it, and do not ask for it for a while."""
        self._next_look = time.monotonic() + AGAIN
        self.release()

    def release(self) -> None:
        """Release it, also if it was only asked for."""
        super().release()
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


class Hosts:
    """The hosts that a sweep names, and whether it also runs jobs `here`. Raises SettingsError for
    words that name none."""

    def __init__(self, words: str) -> None:
        self._slots: list[Slot] | None = None
        names, self._hosts, self.here = set[str](), list[Host](), not words
        for word in filter(None, words.split(",")):
            host = Host(word)
            if host.name in names:
                raise SettingsError(f"--hosts: {host.name} is named twice")
            names.add(host.name)
            if host.name == HERE:
                self.here, self.gpus = True, host.gpus
            else:
                self._hosts.append(host)
        if self._hosts and not shutil.which("ssh"):
            raise SettingsError("--hosts: there is no ssh on this machine")

    gpus: str | None = None  # of this machine

    def slots(self, sweep: Path, wanted: Sequence[object]) -> list[Slot]:
        """Return the places on all hosts, the first of each host first, as they are `wanted` from
        gpus.places. Raises SettingsError, after a line for each host that cannot be used."""
        if self._slots is None and self._hosts:  # each is prepared once
            lease = options.from_environment("HOST_SECONDS", LEASE)
            about = {"wanted": wanted, "lease": lease}
            files.write_text(sweep / layout.TOKEN, uuid4().hex)
            with ThreadPoolExecutor(len(self._hosts)) as pool:
                found = [*pool.map(lambda host: host.prepare(sweep, about), self._hosts)]
            wrong = [(host, why) for host, why in zip(self._hosts, found, strict=True) if why]
            for host, why in wrong:
                leave(exit_status.WRONG, f"run.sh: {host.name}: {why}")
            if wrong:
                line = f"{len(wrong)} of {counted(len(found), 'host')} cannot be used"
                raise SettingsError(f"{line}; nothing was started")
            each = ((n, host) for host in self._hosts for n in range(len(host.places)))
            self._slots = [Slot(host, n) for n, host in sorted(each, key=lambda pair: pair[0])]
        return self._slots or []

    def close(self) -> None:
        """Leave nothing of the sweep on the hosts."""
        for host in self._hosts:
            host.close()


# The side of a job's process here (labjobs.away).


class Session:
    """A place on a host, in the process of the job that runs there. `status` is the job's exit
    status, once it has ended. All methods raise Gone."""

    def __init__(self, place: str) -> None:
        about = json.loads(place)
        self.host, self.folder = about["host"], about["folder"]
        self._connection = Connection(about["fd"], about["fd"])
        self._lease = options.from_environment("HOST_SECONDS", LEASE)
        self._heard = time.monotonic()
        self.asked = 0
        self.status: int | None = None

    def ask(self, number: int, _frame: object = None) -> None:
        """Ask the job to stop, by a signal."""
        self.asked = self.asked or number

    def run(self, attempt: str, words: list[str], act: Callable[[], object]) -> int:
        """Run a job in its attempt's folder, `act` all the time meanwhile; return its status."""
        env = {k: v for k, v in os.environ.items() if not self.folder and k not in OF_A_MACHINE}
        self._connection.send(attempt=attempt, words=words, env=env)
        told = 0
        while self.status is None:
            self.attend()
            if self.asked and not told:
                told = self.asked
                self._connection.send(signal=told)
            act()
        return self.status

    def attend(self) -> None:
        """Answer the host for a moment."""
        messages = self._connection.receive(PAUSE)
        for message in messages or ():
            self.status = message.get("ended", self.status)
            if "beat" in message:
                self._heard = time.monotonic()
                self._connection.send(beat=message["beat"])
        silent = time.monotonic() - self._heard
        if messages is None:
            time.sleep(max(0.0, self._lease + 2 - silent))  # by then, its job has ended
            raise Gone(f"{self.host} has gone ({self._connection.said or 'the connection ended'})")
        if silent > self._lease + 2:
            raise Gone(f"{self.host} has not answered for {self._lease:.0f} s")

    def pause(self, seconds: float) -> None:
        """Answer the host for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.attend()

    def copy(self, *words: str) -> str:
        """Copy files by rsync; return what went wrong, empty if nothing did."""
        process = subprocess.Popen(rsync(*words), stderr=subprocess.PIPE)
        try:
            while process.poll() is None:
                self.attend()
        finally:
            process.kill()
            said = process.communicate()[1].decode(errors="replace")
        return _problem(process.returncode, said)


OF_A_MACHINE = ("CUDA_VISIBLE_DEVICES", PLACE, "JOBS_AT_ONCE", "OMP_NUM_THREADS", "COURIERS")
"""Variables of this machine that a host's jobs do not get."""


# The host's side: `python -m labjobs.sweeps.hosts ABOUT [PLACE]`, in the sweep's code.


def main(about: Mapping[str, Any], number: int | None = None) -> None:
    """Say which places there are, or serve one of them, until the connection ends."""
    connection = Connection(sys.stdin.fileno(), sys.stdout.fileno())
    own, places, problem = not about["shared"], list[Gpu](), ""
    lock = [locks.opened(CODE.parent / layout.LOCK, mode=0o600)] if own else []
    for file in lock:
        fcntl.flock(file, fcntl.LOCK_SH)  # the sweep's folder is in use
    try:
        places = gpus.places(about["gpus"], *about["wanted"])
    except SettingsError as error:
        problem = str(error)
    if number is not None:
        starter = Starter(CODE, len(places), lock, about["wanted"][1], warm=False)
        _serve(connection, places[number], starter, about["shared"], about["lease"])
        return
    if own:
        _link(Path(about["project"]))
        states.clear_snapshots(CODE.parent, lambda _: False)
    devices = [place.device for place in places]
    connection.send(places=devices, problem=problem, versions=_versions())
    while not (messages := connection.receive(LEASE)) and messages is not None:
        pass
    if messages and own:  # the sweep has ended
        with suppress(BlockingIOError):
            fcntl.flock(lock[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(CODE.parent)


def _link(project: Path) -> None:
    """Make a folder that looks like the project's, with its files, data and caches."""
    with suppress(FileExistsError):
        (CODE / "data").symlink_to(project / "data")
    for path in (*CODE.iterdir(), project / layout.CACHE):
        with suppress(FileExistsError):
            (PROJECT / path.name).symlink_to(path)


def _serve(
    connection: Connection, place: Gpu, starter: Starter, shared: bool, lease: float
) -> None:
    """Take a place and run the job that is sent, until the connection has ended."""
    if not place.take():
        connection.send(why=place.why)
        return
    connection.send(held=place.device)
    job: Running | None = None
    attempt, status = Path(), None
    alive, next_beat, stopped = time.monotonic(), 0.0, False
    while True:
        messages = connection.receive(PAUSE)
        now = time.monotonic()
        for message in messages or ():
            if "words" in message:
                attempt = Path(PROJECT, message["attempt"])
                on_host = {ON_HOST: "shared" if shared else "fetched"}
                place.env = message["env"] | on_host | place.env
                job = Running(attempt, message["words"], starter, place)
            elif "signal" in message and job:
                job.send_signal(message["signal"])
            alive = max(alive, message.get("beat", alive))
        if job and status is None and (status := job.status()) is not None:
            job.ending(status)
            connection.send(ended=status)
        if messages is None:
            alive = min(alive, now - lease / 2)
            time.sleep(PAUSE)
        elif now >= next_beat:
            next_beat = now + lease / 10
            connection.send(beat=now)
        if now - alive >= lease / 2 and job and not stopped:
            stopped = True
            job.send_signal(signal.SIGTERM)
        # Its process here takes a while until it has sent the job, and after it has ended.
        if now - alive > (lease if job and status is None else 10 * lease):
            os.killpg(0, signal.SIGKILL)  # with all that the job has started
        if messages is None and (not job or status is not None):
            break
    if job and not shared:
        shutil.rmtree(attempt.parent, ignore_errors=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), *map(int, sys.argv[2:]))
