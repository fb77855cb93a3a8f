"""`bash run.sh --hosts`: workstations with a real sshd, with and without a shared disk."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import debian
import pytest
from faults import OFTEN, Project, assert_as_undisturbed, ended, kill, silent, succeeded, wait_until
from slurms import listed
from sweeps import make_gpus, write_grid, write_lines
from workstations import FAKETIME, Workstation, workstations

pytestmark = [pytest.mark.full, pytest.mark.root]

NAMES = ["gpu1", "gpu2", "gpu3"]
JOB = " ".join(("--device cpu --threads 1 --epochs 10 --batch-size 256", *OFTEN))

HELD = """\
        model.train()
        time.sleep(0.1)
        while job.step and os.path.exists("{}") and not job._folder.interruption.asked:
            time.sleep(0.05)
"""
"""In the training loop: a job waits after its first epoch for as long as there is a file."""


@pytest.fixture
def here(project: Project, tmp_path: Path) -> Project:
    """A project on a disk that hosts may not see, whose jobs wait while held, and `ssh`."""
    (tmp_path / "home").mkdir()
    here = project.copy(tmp_path / "home" / "project")
    here.edit_loop("        model.train()\n", HELD.format(tmp_path / "hold"))
    here.env |= {"PATH": f"{tmp_path}:{here.env['PATH']}", "HOST_SECONDS": "20"}
    return here


@pytest.fixture
def count(pytestconfig: pytest.Config) -> int:
    """Jobs of a grid."""
    return int(pytestconfig.getoption("--host-jobs"))


def jobs_on(project: Project, host: str) -> list[Path]:
    """The attempts whose last place was on a host, and of which a checkpoint has come back."""
    outputs = project.root.glob("runs/*/*/output.txt")
    of_host = (p.parent for p in outputs if f"started on {host}" in p.read_text())
    return [each for each in of_host if (each / "last.pt").exists()]


def test_hosts_that_fail(here: Project, tmp_path: Path, count: int) -> None:
    """One is switched off, the clock of another is behind, the disk of a third is full: each job
    ends with the bits of an undisturbed one."""
    write_grid(here.root, *(f"{JOB} --seed {seed}" for seed in range(count)))
    alone = here.copy(tmp_path / "alone")
    succeeded(alone.do("bash", "run.sh"))
    with workstations(NAMES, tmp_path, tmp_path / "home", gpu3="30m") as hosts:
        off, behind, small = hosts
        behind.variables |= {"LD_PRELOAD": FAKETIME, "FAKETIME": "-30s"}
        for host in hosts:
            host.start()
        (tmp_path / "hold").touch()
        sweep = here.command("bash", "run.sh", "--hosts", "gpu1,gpu2,gpu3", "--per-gpu", "1")
        wait_until(lambda: len(jobs_on(here, "gpu1") + jobs_on(here, "gpu3")) == 2, 300)
        small.fill()
        off.switch_off()
        (tmp_path / "hold").unlink()
        done = ended(sweep)
    print(done.stdout)
    assert silent(done).stdout.endswith(f"{count} of {count} jobs finished, {count} of them now\n")
    assert "gpu3: the disk is full: no more jobs are started there" in done.stdout
    assert "goes on elsewhere: gpu1 has not answered for 20 s" in done.stdout
    jobs = listed(here.do("bash", "run.sh", "--list"))
    assert {*jobs.values()} == {("finished", "")}
    for job in jobs:
        assert_as_undisturbed(here, job, alone, job)


@pytest.mark.long
def test_a_shared_disk(here: Project, tmp_path: Path) -> None:
    """Nothing is copied, and each GPU has one job. Ctrl-C ends what runs on all hosts; the same
    command goes on."""
    write_grid(here.root, *(f"{JOB} --seed {seed}" for seed in range(4)))
    alone = here.copy(tmp_path / "alone")
    succeeded(alone.do("bash", "run.sh"))
    (tmp_path / "rsync").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "rsync").chmod(0o755)
    with workstations(NAMES[:2], tmp_path) as hosts:
        for number, host in enumerate(hosts):
            machine = tmp_path / f"machine{number}"
            make_gpus(machine, 2)
            host.variables |= {"PATH": f"{machine}:{host.variables['PATH']}"}
            host.variables |= {"GPU_LOCKS": str(machine / "locks")}
            host.start()
        (tmp_path / "hold").touch()
        sweep = here.command("bash", "run.sh", "--hosts", "gpu1:0,gpu2:0-1")
        wait_until(lambda: len([*here.root.glob("runs/*/*/last.pt")]) == 3, 300)
        os.killpg(sweep.pid, signal.SIGINT)
        stopped = ended(sweep)
        assert stopped.returncode == 130, stopped
        # Couriers may still deliver what their jobs have written.
        wait_until(lambda: [len(host.pids()) for host in hosts] == [1, 1], 300)
        (tmp_path / "hold").unlink()
        assert sorted(word for word, _ in states(here)) == ["interrupted"] * 3 + ["pending"]
        done = here.do("bash", "run.sh", "--hosts", "gpu1:0,gpu2:0-1")
        assert silent(done).stdout.endswith("4 of 4 jobs finished, 4 of them now\n")
    places = {"gpu1 GPU-0", "gpu2 GPU-0", "gpu2 GPU-1"}
    assert {*re.findall(r"started on (.*):", stopped.stdout + done.stdout)} == places
    for job in listed(here.do("bash", "run.sh", "--list")):
        assert_as_undisturbed(here, job, alone, job)


@pytest.mark.long
def test_jobs_that_wait_for_others(here: Project, tmp_path: Path) -> None:
    """Jobs that begin with another one's weights, in a row, and jobs of which halving stops some:
    what runs and what comes out is as on one machine."""
    rates = [f"job {JOB} --schedule constant --lr {lr}" for lr in ("1e-2", "1e-3", "1e-4")]
    after = [f"first=$(job {JOB})", f'second=$(job {JOB} --seed 1 --init-from "$first")']
    after += [f'job {JOB} --seed 2 --init-from "$second"']
    write_lines(here.root, "halving 3 2e", *rates, "keep_all", *after)
    alone = here.copy(tmp_path / "alone")
    succeeded(alone.do("bash", "run.sh"))
    with workstations(NAMES[:2], tmp_path, tmp_path / "home") as hosts:
        for host in hosts:
            host.start()
        silent(here.do("bash", "run.sh", "--hosts", "gpu1,gpu2", "--per-gpu", "1"))
    jobs, wanted = (listed(each.do("bash", "run.sh", "--list")) for each in (here, alone))
    assert jobs == wanted
    words = [word for word, _ in jobs.values()]
    assert sorted(words) == ["finished"] * 4 + ["stopped"] * 2
    for job, (word, _) in jobs.items():
        if word == "finished":
            assert_as_undisturbed(here, job, alone, job)
        else:
            assert here.journalled(job) == alone.journalled(job)


BRING = """
from pathlib import Path
from labjobs.sweeps import hosts, states
states.take_snapshot(Path("copy"))
host = hosts.Host("near")
host.folder = Path("there").absolute()
print(host._bring(Path("copy"), "rsync"))
"""


def test_a_host_gets_no_secrets_and_of_what_git_ignores_only_files_of_the_code(
    project: Project, tmp_path: Path
) -> None:
    own = project.copy(tmp_path / "project")
    (tmp_path / "ssh").write_text(
        '#!/bin/sh\nuntil [ "$1" = near ]; do shift; done; shift; exec "$@"\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    own.env |= {"PATH": f"{tmp_path}:{own.env['PATH']}"}
    if not shutil.which("rsync"):
        debian.install("rsync")
    succeeded(own.do("git", "init", "--quiet"))
    with (own.root / ".gitignore").open("a") as file:
        file.write("*.so\n*.key\n/ops/private/\n/weights.pt\n")
    names = (
        "ops/a.py",
        "ops/a.so",
        "ops/b.key",
        "ops/private/c.txt",
        "weights.pt",
        "data/d",
        ".env",
    )
    for name in names:
        (own.root / name).parent.mkdir(parents=True, exist_ok=True)
        (own.root / name).touch()
    (own.root / "ops" / "b.key").chmod(0o600)
    (own.root / "ops" / "gone.so").symlink_to("nowhere")
    (own.root / "there" / "code").mkdir(parents=True)
    assert succeeded(own.do("python", "-c", BRING)).stdout == "\n"
    found = {path.relative_to(own.root / "there/code") for path in own.root.glob("there/code/**/*")}
    assert {*map(Path, ("ops", "ops/a.py", "ops/a.so"))} == {
        p for p in found if p.parts[0] == "ops"
    }
    assert not {*map(Path, ("weights.pt", "data", ".env"))} & found
    copied = {path.name for path in own.root.glob("copy/ops/*")}
    assert {"a.so", "b.key", "private"} <= copied  # which only links to them


def test_what_a_host_lacks(here: Project, tmp_path: Path) -> None:
    """One line for each host, and nothing is started."""
    write_grid(here.root, JOB)

    def said(hosts: str) -> list[str]:
        done = here.do("bash", "run.sh", "--hosts", hosts)
        assert done.returncode == 2 and not [*here.root.glob("runs/*/*/output.txt")], done
        return [line.removeprefix("run.sh: ") for line in done.stderr.splitlines()]

    with workstations(NAMES[:2], tmp_path, tmp_path / "home") as hosts:
        first, bare = hosts
        (tmp_path / "bin").mkdir()
        for name in ("sh", "mkdir", "cat", "env"):
            (tmp_path / "bin" / name).symlink_to(shutil.which(name))
        bare.variables["PATH"] = str(tmp_path / "bin")
        for host in hosts:
            host.start()
        assert said("gpu1,gpu1") == ["--hosts: gpu1 is named twice"]
        (line,) = said("gpu1:0-")
        assert line == "--hosts gpu1:0-: write a host as gpu1, or gpu1:0-3 for some GPUs"
        *lines, last = said("nowhere,gpu1,gpu2")
        assert lines[0].startswith("nowhere: ssh: Could not resolve hostname nowhere: ")
        assert lines[1:] == ["gpu2: there is no rsync there; install it"]
        assert last == "2 of 3 hosts cannot be used; nothing was started"
        (here.root / "cluster.toml").write_text('[hosts.gpu1]\npython = "/nowhere/python"\n')
        line, _ = said("gpu1")
        assert line.startswith("gpu1: ") and "/nowhere/python" in line
        (here.root / "cluster.toml").write_text('[hosts.gpu1]\npythn = "python"\n')
        (line,) = said("gpu1")
        assert line.startswith("cluster.toml: [hosts.gpu1] pythn: must be folder = ")
        (here.root / "cluster.toml").unlink()
        (tmp_path / "key.pub").write_text("")
        line, _ = said("gpu1")
        assert line.startswith("gpu1: ") and "Permission denied" in line
        first.switch_off()
        line, _ = said("gpu1")
        assert line.startswith("gpu1: ssh: connect to host ")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_random_kills(here: Project, tmp_path: Path, seed: int) -> None:
    """A host, a network, a job, a connection or run.sh itself ends at a random instant; the same
    command does the rest."""
    write_grid(here.root, *(f"{JOB} --seed {seed}" for seed in range(3)))
    alone = here.copy(tmp_path / "alone")
    succeeded(alone.do("bash", "run.sh"))
    chance = random.Random(seed)
    what = chance.choice(["host", "network", "job", "connection", "run.sh"])
    command = ("bash", "run.sh", "--hosts", "gpu1,gpu2", "--per-gpu", "1")
    with workstations(NAMES[:2], tmp_path, tmp_path / "home") as hosts:
        for host in hosts:
            host.start()
        sweep = here.command(*command)
        wait_until(lambda: any(here.root.glob("runs/*/*/output.txt")), 300)
        time.sleep(chance.uniform(0, 20))
        end(what, chance.choice(hosts), sweep, tmp_path)
        done = ended(sweep)
        assert "Traceback" not in done.stdout + done.stderr
        assert done.returncode in (0, 1, 3, -signal.SIGKILL), done
        assert here.do(*command).returncode == 0
    assert {*states(here)} == {("finished", "")}
    for job in listed(here.do("bash", "run.sh", "--list")):
        assert_as_undisturbed(here, job, alone, job)


def states(project: Project) -> list[tuple[str, str]]:
    return [*listed(project.do("bash", "run.sh", "--list")).values()]


def end(what: str, host: Workstation, sweep: "subprocess.Popen[str]", folder: Path) -> None:
    """End something of a sweep."""
    match what:
        case "host":
            host.switch_off()
            host.plug("up")
            host.start()
        case "network":
            host.plug("down")
            time.sleep(30)
            host.plug("up")
        case "job":
            for pid in host.pids()[-1:]:
                kill(pid)
        case "connection":
            asked = ["pgrep", "-f", f"ssh -F {folder}/config .*{host.name}"]
            for pid in subprocess.run(asked, capture_output=True).stdout.split():
                kill(int(pid))
        case "run.sh":
            kill(sweep.pid)
