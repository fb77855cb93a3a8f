"""What a job costs: the counters of real processes."""

import json
import os
import signal
import subprocess
import sys

import pytest
from labjobs import layout, machine
from labjobs.files import write_record
from labjobs.job import journal
from labjobs.tracking import costs
from labjobs.tracking.costs import Meter

pytestmark = pytest.mark.skipif(not machine.PROC.joinpath("self").exists(), reason="needs Linux")

BURN = """
import time
end = time.process_time() + {seconds}
while time.process_time() < end:
    pass
"""

TICK = 0.01
"""Seconds in a tick of the kernel's counters: times are known to within one of them."""

WAIT = "print('there', flush=True); input()\n"


@pytest.fixture
def running():
    """Starts Python with some code and returns the process once that has printed a line."""
    started = []

    def start(code):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-c", code], **pipes)
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_time_of_processes_that_it_has_started_and_that_have_ended(running):
    """As of a loader's workers."""
    ended = f"subprocess.run([sys.executable, '-c', {BURN.format(seconds=0.2)!r}])"
    used = machine.of(running(f"import subprocess, sys\n{ended}\n{WAIT}").pid)[1]
    assert 0.2 - TICK <= used["cpu_seconds"] < 4
    assert 5e6 < used["host_bytes"] < 1e9 and used["seconds"] > 0.1


# Over all processes


def attempt(folder, **tags):
    """An attempt with a journal that has a step, and that journal."""
    path = folder / "1872aa178ea7" / "1f0a3c44"
    path.mkdir(parents=True, exist_ok=True)
    made = journal.Journal(path, 1)
    write_record(path / "settings.json", {"id": "1872aa178ea7", "journal": made.start})
    made.metrics(3, {"train_loss": 1.0}, at=5)
    made.metrics(2, {"best_val_loss": 1.0}, at=6)
    made.tags(tags)
    made.flush()
    return path, made


def test_hours_add_up_and_memory_is_the_most(tmp_path):
    path, made = attempt(tmp_path)
    killed = {"cpu_seconds": 1800.0, "host_bytes": 3e9, "gpu_seconds": 3600.0, "joules": 7.2e6}
    last = {"cpu_seconds": 1000.0, "host_bytes": 2e9, "gpu_seconds": 1000.0, "joules": 3.6e6}
    costs.keep(path, made.start["journal"], {"killed": killed, "last": last})
    ended = {"cpu_seconds": 3600.0, "host_bytes": 1e9, "device_bytes": 4e9, "gpu_seconds": 1800.0}
    made.cost("last", ended)
    made.flush()
    assert costs.totals(path) == pytest.approx(
        {
            "gpu_hours": 1.5,
            "cpu_hours": 1.5,
            "energy_kwh": 3.0,
            "peak_device_memory_gb": 4.0,
            "peak_host_memory_gb": 3.0,
        }
    )
    (line,) = costs.as_lines(path)
    assert (line["step"], line["time"], line["metrics"]) == (3, 6, costs.totals(path))


def test_trainers_that_are_killed_are_known_by_their_couriers(running, tmp_path):
    """Two trainers of one attempt, one after the other."""
    path, _ = attempt(tmp_path)
    seconds = 0.0
    for _ in range(2):
        process = running(BURN.format(seconds=0.2) + WAIT)
        meter = Meter(path, process.pid)
        meter.look(True)
        seconds += machine.of(process.pid)[1]["seconds"]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        meter.look(True, ended=True)
    cost = costs.totals(path)
    assert 0.4 - 2 * TICK <= 3600 * cost["cpu_hours"] < 4
    assert 0.4 - 2 * TICK <= 3600 * cost["gpu_hours"] <= seconds + TICK
    assert len(json.loads((path / layout.COST).read_text())["processes"]) == 2


@pytest.mark.parametrize("content", [None, b"{}", b"[1]", b"\0" * 40])
def test_what_cannot_be_read_costs_nothing(tmp_path, content):
    path, made = attempt(tmp_path)
    made.cost({"device_bytes": 1e9})
    made.flush()
    if content is not None:
        (path / layout.COST).write_bytes(content)
    assert costs.totals(path) == {"peak_device_memory_gb": 1.0}


def test_a_folder_that_is_gone_stops_no_courier(running, tmp_path):
    path, _ = attempt(tmp_path)
    meter = Meter(path, running(WAIT).pid)
    path.rename(tmp_path / "gone")
    meter.look(False)
