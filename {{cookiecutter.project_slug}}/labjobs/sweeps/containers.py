"""Jobs in containers: in an image of podman's, or in a file of Apptainer's, which ends in .sif.

The image has the packages; all else is the machine's: files under the same paths, environment,
network, users, and the cgroup of a cluster's task, so that its limits hold and a container ends
with it. Podman and Apptainer pass signals on to the job, and its exit status back.

Sources: docs.podman.io, podman-run(1); apptainer.org, user guide, `apptainer exec`;
github.com/cncf-tags/container-device-interface, for GPUs.
"""

import hashlib
import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from labjobs.errors import JobError, SettingsError, cause
from labjobs.files import PROJECT
from labjobs.job.provenance import IMAGE
from labjobs.sweeps.clusters import ask, expanded

SIF = ".sif"
AT = "@sha256:"  # between the name of an image and its digest
NVIDIA = Path("/dev/nvidiactl")

SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32"}
SYSTEM |= {"opt", "proc", "root", "run", "sbin", "sys", "usr", "var"}
"""Folders at the root that an image has of its own; others, such as /home, are the machine's."""

PACKAGES = ("PYTHONPATH=", "PYTHONHOME=", "PYTHONNOUSERSITE=1")
"""What keeps the machine's own packages out."""

USUAL = ("PATH=/usr/local/bin:/usr/bin:/bin", "LD_LIBRARY_PATH=")
"""What an image that says nothing of it gets in place of the machine's."""

PODMAN = (
    *("podman", "run", "--rm", "--pull=never", "--env-host", "--entrypoint=python"),
    *("--network=host", "--ipc=host", "--uts=host", "--security-opt=label=disable"),
    *("--cgroups=disabled", "--log-driver=passthrough"),
)
"""Without a cgroup and a log of its own: limits are the task's, and output goes to its file."""


def digested(name: str) -> str:
    """Return an image with its digest, `NAME@sha256:…`: that of its contents. Raises SettingsError
    if it is not on this machine."""
    try:
        if not name.endswith(SIF):
            return name + AT + ask("podman", "image", "inspect", "--format={{.Id}}", name).strip()
        path = PROJECT / expanded(name)
        with path.open("rb") as file:
            return f"{path}{AT}{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except (OSError, SettingsError) as error:
        raise SettingsError(f"container {name}: {cause(error)}") from error


def python(image: str, folder: Path) -> list[str]:
    """Return the words that start the Python of a digested image in a folder. Raises SettingsError
    if podman cannot be asked."""
    name, _, digest = image.rpartition(AT)
    env = (*PACKAGES, f"{IMAGE}={image}")
    if name.endswith(SIF):
        words = ["apptainer", "exec", *["--nv"] * NVIDIA.exists(), f"--pwd={folder}"]
        words += [f"--bind={','.join(_folders())}", *(f"--env={each}" for each in env)]
        return [*words, name, "python"]
    # The machine's environment would replace the image's.
    own = json.loads(ask("podman", "image", "inspect", "--format={{json .Config.Env}}", digest))
    words = [*PODMAN, *(f"--env={each}" for each in (*USUAL, *env, *(own or ())))]
    words += [f"--volume={each}:{each}:rslave" for each in _folders()]
    words.append(f"--workdir={folder}")
    words += ["--userns=keep-id", "--group-add=keep-groups"] if os.getuid() else []
    words += ["--device=nvidia.com/gpu=all"] if NVIDIA.exists() else []
    return [*words, digest]


def again(image: str) -> list[str]:
    """Return the words that start Python as an attempt did that recorded this image, or none.
    Raises JobError if the same image is not on this machine."""
    if image in ("", os.environ.get(IMAGE)):
        return [sys.executable]
    name, _, digest = image.rpartition(AT)
    with suppress(SettingsError):
        if digested(name if name.endswith(SIF) else digest).endswith(digest):
            return python(image, PROJECT)
    raise JobError(f"its image {name} (sha256:{digest[:12]}) is not on this machine")


def _folders() -> list[str]:
    """The folders of this machine that jobs see: all but the system's, and those that they need."""
    others = [path for path in Path("/").iterdir() if path.name not in SYSTEM and path.is_dir()]
    needed = (PROJECT, Path.home(), Path(tempfile.gettempdir()))
    return [str(path) for path in (*others, *(each for each in needed if each.parts[1] in SYSTEM))]
