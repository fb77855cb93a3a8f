"""Machines on this one: each with a network and a name of its own, connected by a bridge.

They are network namespaces, which need root. Everything else is shared, as by machines with one
network file system, but for the folder `private`, of which each has its own.
Sources: man7.org/linux/man-pages/man8/ip-netns.8.html, man1/nsenter.1.html.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import debian

BRIDGE = f"lab{os.getpid()}"
NETWORK = f"10.77.{os.getpid() % 250}"


class Machine(NamedTuple):
    name: str
    address: str
    within: tuple[str, ...]


@contextmanager
def machines(names: list[str], folder: Path) -> Iterator[tuple[str, list[Machine]]]:
    """This machine's address, and other machines; they are removed afterwards."""
    if not shutil.which("ip"):
        debian.install("iproute2")
    (folder / "private").mkdir(parents=True)
    here = f"{NETWORK}.1"
    addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, 2)}
    known = {"localhost": "127.0.0.1", os.uname().nodename: here} | addresses
    (folder / "hosts").write_text("".join(f"{at} {name}\n" for name, at in known.items()))
    try:
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("address", "add", f"{here}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        yield here, [_machine(name, at, folder) for name, at in addresses.items()]
    finally:
        for name in names:  # those that were made
            _ip("link", "delete", cable(name), check=False)  # now; a namespace takes its time
            _ip("netns", "delete", f"{BRIDGE}-{name}", check=False)
        _ip("link", "delete", BRIDGE)


def cable(name: str) -> str:
    """The name of a machine's connection, on the side of the bridge."""
    return f"{name}-{os.getpid()}"


def _machine(name: str, address: str, folder: Path) -> Machine:
    network = f"{BRIDGE}-{name}"
    _ip("netns", "add", network)
    _ip("link", "add", cable(name), "type", "veth", "peer", "name", "eth0", "netns", network)
    _ip("link", "set", cable(name), "master", BRIDGE, "up")
    _ip("-n", network, "address", "add", f"{address}/24", "dev", "eth0")
    for device in ("eth0", "lo"):
        _ip("-n", network, "link", "set", device, "up")
    script = (
        f"mount --bind {folder}/hosts /etc/hosts && mount -t tmpfs private {folder}/private && "
        f'hostname {name} && exec "$@"'
    )
    begin = ("nsenter", f"--net=/run/netns/{network}", "unshare", "--uts", "--mount")
    return Machine(name, address, (*begin, "sh", "-c", script, name))


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)
