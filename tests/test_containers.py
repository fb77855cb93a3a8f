"""Jobs in containers: a real podman, an image of the project's own Containerfile, a real Slurm."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import Project, assert_as_undisturbed, silent, wait_until
from podmans import BASE, IMAGE, Podman
from slurms import HELD, PAUSE, Cluster, arrays, listed, slurm
from sweeps import Lab, light, write_grid

pytestmark = [pytest.mark.full, pytest.mark.root]

TOML = '[lab]\nsystem = "slurm"\ncontainer = "{}"\n'


@pytest.fixture(scope="module")
def podman(make: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    podman = Podman(tmp_path_factory.mktemp("podman"))
    podman.build(make(engine="package"))  # a minute, most of it for packages
    yield podman
    podman.do("rmi", "--force", IMAGE, BASE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm(gpus=1, largest_array=10) as cluster:
        yield cluster


@pytest.mark.long
def test_a_job_that_trains(
    project: Project, podman: Podman, cluster: Cluster, tmp_path: Path
) -> None:
    """It is preempted, with a warning, and goes on: its bits are those of a job that ran in no
    container. It repeats in its image, whatever the image's name is given to, until it is gone."""
    image = f"{IMAGE}-once"
    podman.do("build", f"--tag={image}", "-", given=f"FROM {IMAGE}\nLABEL use=once\n".encode())
    here = project.copy(tmp_path / "here")
    write_grid(here.root, "--device cpu --epochs 4 --batch-size 256")
    here.edit_loop("        model.train()\n", HELD)
    there = here.copy(tmp_path / "there")
    there.env |= cluster.env | podman.env
    (there.root / "cluster.toml").write_text(TOML.format(image))
    (there.root / "hold").touch()
    silent(here.do("bash", "run.sh", CUDA_VISIBLE_DEVICES="0", GPU_LOCKS=str(tmp_path / "locks")))
    arrays(there.do("bash", "run.sh", "--on", "lab"), 1)
    (job,) = listed(there.do("bash", "run.sh", "--list"))

    def is_held() -> bool:
        return bool([*there.root.glob("runs/*/*/held")])

    wait_until(is_held, 300, PAUSE)
    cluster.preempt()
    wait_until(lambda: sum(cluster.restarts().values()) == 1, 300, PAUSE)
    wait_until(is_held, 300, PAUSE)
    (there.root / "hold").unlink()
    cluster.wait_until_empty()
    output = (there.folder(job) / "output.txt").read_text()
    assert f"job {job} interrupted: by SIGUSR1; the same command continues it" in output
    assert_as_undisturbed(there, job, here, job)
    assert podman.left() == []
    (digest,) = podman.do("image", "inspect", "--format={{.Id}}", image).split()
    journal = (there.folder(job) / "metrics.jsonl").read_text()
    assert f'"container": "{image}@sha256:{digest}"' in journal
    assert there.folder(job).stat().st_uid == os.getuid()

    podman.do("tag", BASE, image)
    repeat = ("python", "jobs.py", "repeat", job)
    there.env["CUDA_VISIBLE_DEVICES"] = "0"  # which the job writes down
    assert f"job {job}: same: " in silent(there.do(*repeat)).stdout
    podman.do("rmi", digest)
    lines = there.do(*repeat).stdout.splitlines()
    missing = f"its image {image} (sha256:{digest[:12]}) is not on this machine"
    assert f"job {job}: not repeated: {missing}" in lines
    podman.do("untag", image, image)


def test_how_jobs_end(lab: Lab, podman: Podman, cluster: Cluster) -> None:
    """One fails and one is killed, which leaves nothing; the image of a third has no Python."""
    lab.env |= cluster.env | podman.env
    toml = lab.project.root / "cluster.toml"
    toml.write_text(TOML.format(IMAGE))
    lab.write_grid(light(ends="failed", says="no")(1), light(seconds=600)(2))
    arrays(lab.sweep("--on", "lab"), 2)
    killed = [*listed(lab.sweep("--list"))][1]
    wait_until(lambda: (lab.project.folder(killed) / "ran").exists(), 300, PAUSE)
    pid = podman.do("inspect", "--format={{.State.Pid}}", *podman.left())
    os.kill(int(pid), signal.SIGKILL)
    cluster.wait_until_empty()
    assert [state for state, _ in listed(lab.sweep("--list")).values()] == ["failed", "interrupted"]
    assert podman.left() == []

    toml.write_text(TOML.format(BASE))
    lab.write_grid("--seed 3")
    arrays(lab.sweep("--on", "lab"), 1)
    cluster.wait_until_empty()
    (printed,) = lab.project.root.glob(".sweeps/*/slurm-*.txt")
    said = r"job \w{12} ended with status 127: Error: .*executable file `python` not found"
    assert re.search(said, printed.read_text())


def test_the_check_of_a_cluster(fresh: Project, podman: Podman, cluster: Cluster) -> None:
    """It looks from within: the image's Python, and what is there for it."""
    fresh.env |= cluster.env | podman.env
    (fresh.root / "cluster.toml").write_text(TOML.format(IMAGE) + "gpus = 0\n")
    said = silent(fresh.do("python", "jobs.py", "cluster", "check", "lab")).stdout
    inside = rf"^ok   in {IMAGE}@sha256:\w{{64}}: Python [\d.]+ in /opt/environment, labjobs"
    assert re.search(inside, said, re.M)
    assert re.search("^ok   store: ", said, re.M) and re.search("^ok   data: ", said, re.M)
