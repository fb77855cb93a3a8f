"""run.sh, its queue, servers and jobs killed at random instants; the next run.sh does the rest."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from faults import ended, kill, succeeded, wait_until
from sweeps import Lab, assert_one_at_a_time, light, processes

pytestmark = pytest.mark.full

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
WHOM = ("run.sh", "queue", "server", "couriers", "job")
GPUS = 3


def of(lab: Lab) -> str:
    """What all processes of a lab's sweeps have in their environment."""
    return f"INTERVALS={lab.intervals_file}"


def victim(sweep: subprocess.Popen[str], lab: Lab, whom: str) -> int | None:
    """The pid of run.sh, or of one of the other processes of its sweep."""
    if whom == "run.sh":
        return sweep.pid
    return next((pid for pid, each in processes(of(lab)).items() if each == whom), None)


def free(lock: Path) -> bool:
    """Whether nobody holds a lock."""
    return subprocess.run(["flock", "--nonblock", str(lock), "true"]).returncode == 0


@pytest.mark.parametrize("place", ["grid", "code"])
def test_where_run_sh_is_killed_before_the_first_job_no_job_goes_on(lab, place):
    lab.write_grid(*(light(seconds=5)(seed) for seed in range(2)))
    sweep = lab.start()
    wait_until(lambda: any(lab.project.root.glob(f".sweeps/*/{place}")))
    kill(sweep.pid, signal.SIGKILL)
    wait_until(lambda: "queue" not in processes(of(lab)).values())
    rows = json.loads(succeeded(lab.sweep("--list", "--json")).stdout)
    assert not {"running", "finished", "unsent"} & {row["state"] for row in rows}


def test_killed_at_random_instants(lab, pytestconfig):
    chance, hit = random.Random(0), Counter[str]()
    jobs = [light(seconds=1)(seed) for seed in range(4)]
    kills = pytestconfig.getoption("kills")
    while hit.total() < kills:
        jobs += [light(seconds=1)(len(jobs) + more) for more in range(2)]
        lab.write_grid(*jobs)
        sweep = lab.start()
        whom, number = chance.choice(WHOM), chance.choice(SIGNALS)
        wait = chance.uniform(0, 8 if whom == "run.sh" else 1.5)
        wait_until(lambda s=sweep, w=whom: s.poll() is not None or bool(victim(s, lab, w)))
        instant = time.monotonic() + wait
        while sweep.poll() is None and time.monotonic() < instant:
            time.sleep(0.01)
        pid = victim(sweep, lab, whom)
        if sweep.poll() is None and pid:
            kill(pid, number)
            hit[f"{number.name} to {whom}"] += 1
        out, err = sweep.communicate(timeout=300)
        assert "Traceback" not in out + err
        assert_fair_end(sweep.returncode, whom, number)
    succeeded(lab.sweep())
    outcomes = [json.loads(p.read_text()) for p in lab.project.root.glob("runs/*/*/outcome.json")]
    assert [outcome["status"] for outcome in outcomes] == ["finished"] * len(jobs)
    assert max(Counter(i.job for i in lab.intervals()).values()) == 1
    assert_one_at_a_time(lab.intervals())
    wait_until(lambda: not processes(of(lab)))
    assert all(map(free, (lab.machine / "locks").iterdir()))
    print(f"{kills} kills, {len(jobs)} jobs finished once:", dict(sorted(hit.items())))


def assert_fair_end(code: int, whom: str, number: int) -> None:
    """run.sh's exit status says what has happened to it."""
    if whom not in {"run.sh", "queue"}:
        assert code in {0, 1}
    else:
        stopped = 130 if number == signal.SIGINT else 143
        assert code in {0, -number, 128 + number, stopped}


STOPPING = "run.sh: stopping the jobs because of {}; a second Ctrl-C kills them\n"


@pytest.mark.parametrize(
    ("handler", "number", "printed", "status"),
    [
        ("lambda *_: time.sleep(2) or sys.exit(143)", signal.SIGHUP, ["a signal", ""], 143),
        ("signal.SIG_IGN", signal.SIGINT, ["Ctrl-C", "run.sh: killing the jobs\n"], 130),
    ],
)
def test_a_second_signal(lab, handler, number, printed, status):
    """A terminal that closes says so twice, and the jobs are asked to stop all the same. A second
    Ctrl-C kills a job that does not listen to the first."""
    text = (lab.project.root / "run.py").read_text()
    handled = f"import signal; signal.signal(signal.SIGTERM, {handler}); time.sleep("
    (lab.project.root / "run.py").write_text(text.replace("time.sleep(", handled, 1))
    lab.write_grid(light(seconds=600)(0))
    sweep = lab.start()
    wait_until(lambda: bool(list(lab.project.root.glob("runs/*/*/ran"))))
    for line in (STOPPING.format(printed[0]), printed[1]):
        os.killpg(sweep.pid, number)  # as a terminal does
        assert sweep.stderr and sweep.stderr.readline() == line
    stopped = ended(sweep)
    assert stopped.returncode == status
    assert stopped.stdout.endswith("; 1 interrupted\n")
    wait_until(lambda: not processes(of(lab)))
