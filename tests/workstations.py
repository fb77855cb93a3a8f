"""Workstations on this machine, with a real sshd each (machines.py), and disks of their own.

Sources: man.openbsd.org/sshd_config, ssh_config; github.com/wolfcw/libfaketime.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import debian
from faults import kill, wait_until
from machines import BRIDGE, Machine, cable, machines

SSHD = """
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
SetEnv {variables}
"""

SSH = """
Host {name}
HostName {address}
IdentityFile {folder}/key
UserKnownHostsFile /dev/null
StrictHostKeyChecking no
LogLevel ERROR
"""

FAKETIME = f"/usr/lib/{os.uname().machine}-linux-gnu/faketime/libfaketime.so.1"


class Workstation:
    """A machine with an sshd, which sees another disk than this machine in the folder `home`: one
    of a `size`, if one is given. `variables` are those of what runs there."""

    def __init__(self, machine: Machine, folder: Path, home: Path | None, size: str) -> None:
        self.name, self._machine, self._folder = machine.name, machine, folder
        self.variables = {"PATH": os.environ["PATH"]}
        self._mount, self._home = "true", home
        self._daemon: subprocess.Popen[bytes] | None = None
        if home:
            self.disk = folder / f"disk-{self.name}"
            self.disk.mkdir()
            self._mount = f"mount --bind {self.disk} {home}"
        if size:
            self._mount = f"mount -t tmpfs -o size={size} small {home}"

    def start(self) -> None:
        """Start its sshd; returns once it answers."""
        variables = " ".join(f'"{key}={value}"' for key, value in self.variables.items())
        file = self._folder / f"sshd-{self.name}"
        file.write_text(SSHD.format(folder=self._folder, variables=variables))
        with (self._folder / f"log-{self.name}").open("a") as log:
            daemon = f"{self._mount} && exec {shutil.which('sshd')} -D -e -f {file}"
            command = [*self._machine.within, "sh", "-c", daemon]
            self._daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        ssh = ["ssh", "-F", str(self._folder / "config"), self.name, "true"]
        wait_until(lambda: subprocess.run(ssh, capture_output=True).returncode == 0, 60, 0.2)

    def pids(self) -> list[int]:
        """What runs on it."""
        asked = ["ip", "netns", "pids", f"{BRIDGE}-{self.name}"]
        return list(map(int, subprocess.run(asked, capture_output=True, check=True).stdout.split()))

    def plug(self, state: str) -> None:
        """Put its network `up` or `down`."""
        subprocess.run(["ip", "link", "set", cable(self.name), state], check=True)

    def fill(self) -> None:
        """Leave nothing free on its disk."""
        assert self._daemon
        home = f"/proc/{self._daemon.pid}/root{self._home}"
        command = f"head -c 1G /dev/zero >{home}/filler"
        subprocess.run(command, shell=True, capture_output=True)

    def switch_off(self) -> None:
        """Kill all that runs on it, of which nobody is told."""
        self.plug("down")
        while pids := self.pids():
            for pid in pids:
                kill(pid, signal.SIGKILL)
        if self._daemon:
            self._daemon.wait()


@contextmanager
def workstations(
    names: list[str], folder: Path, home: Path | None = None, **sizes: str
) -> Iterator[list[Workstation]]:
    """Workstations, of which this machine's `ssh`, in the folder, knows the names."""
    packages = {"sshd": "openssh-server", "rsync": "rsync", "faketime": "libfaketime faketime"}
    if missing := [packages[each] for each in packages if not shutil.which(each)]:
        debian.install(*" ".join(missing).split())
    Path("/run/sshd").mkdir(exist_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True
    )
    real, wrapped = shutil.which("ssh"), folder / "ssh"
    wrapped.write_text(f'#!/bin/sh\nexec {real} -F {folder}/config "$@"\n')
    wrapped.chmod(0o755)
    with machines(names, folder) as (_, found):
        each = [Workstation(m, folder, home, sizes.get(m.name, "")) for m in found]
        config = [SSH.format(name=m.name, address=m.address, folder=folder) for m in found]
        (folder / "config").write_text("".join(config))
        try:
            yield each
        finally:
            for one in each:
                one.switch_off()
