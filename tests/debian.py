"""Debian's packages of the real servers, installed where that can be done unasked."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def install(*packages: str) -> None:
    """Install packages; test files that run at once do so in turn. Fails the test if it cannot."""
    sudo = [] if os.getuid() == 0 else ["sudo", "-n"]
    install = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "-y"]
    install += ["--no-install-recommends", *packages]
    with (Path(tempfile.gettempdir()) / f"apt-get-{os.getuid()}").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # dpkg first: after an installation that was killed midway, apt-get refuses to go on.
        for command in (["dpkg", "--configure", "-a"], ["apt-get", "update", "-qq"], install):
            if not shutil.which((sudo + command)[0]) or subprocess.run(sudo + command).returncode:
                pytest.fail(f"needed: apt-get install {' '.join(packages)}")
