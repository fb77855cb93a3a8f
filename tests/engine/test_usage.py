"""What a job costs: the counters of real processes."""

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


def test_time_and_memory_of_processes_that_it_has_started(running):
    """As of a loader's workers; not of those that have a session of their own, as a courier has."""
    child = f"data = b'x' * 100_000_000\n{BURN.format(seconds=0.5)}{WAIT}"
    code = """
import subprocess, sys
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
processes = [
    subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=own, **pipes)
    for own in {own}
]
for each in processes:
    each.stdout.readline()
print("there", flush=True)
input()
"""
    alone, two, other = (
        machine.of(running(code.format(child=child, own=own)).pid)[1]
        for own in ((), (False, False), (False, True))
    )
    assert two["cpu_seconds"] - alone["cpu_seconds"] >= 0.9
    assert other["cpu_seconds"] < two["cpu_seconds"] - 0.25
    assert 2e8 <= two["host_bytes"] - alone["host_bytes"] < 3e8
    assert 1e8 <= other["host_bytes"] - alone["host_bytes"] < 1.5e8


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
    last = {"cpu_seconds": 3600.0, "host_bytes": 2e9, "gpu_seconds": 1800.0, "joules": 3.6e6}
    used = {"killed": killed, "last": last}
    journal.note_sent(path, made.start["journal"], processes=used)
    for most in (4e9, 3e9):
        made.cost({"device_bytes": most})
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


class Driver:
    """NVML with a GPU that uses 300 W."""

    NVMLError = RuntimeError

    now = 1000.0

    def nvmlInit(self): ...

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != "GPU-1":
            raise RuntimeError
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        return int(300_000 * self.now)


@pytest.fixture
def driver(monkeypatch):
    """That driver in the place of the real one."""
    made = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_energy_is_power_times_time(driver):
    before = costs.joules("1")
    driver.now += 40
    assert costs.joules("1") - before == pytest.approx(300 * 40)
    assert costs.joules("2") == 0


@pytest.mark.parametrize("content", [None, b"{}", b"[1]", b"\0" * 40])
def test_what_cannot_be_read_costs_nothing(tmp_path, content):
    path, made = attempt(tmp_path)
    made.cost({"device_bytes": 1e9})
    made.flush()
    if content is not None:
        (path / layout.SENT).write_bytes(content)
    assert costs.totals(path) == {"peak_device_memory_gb": 1.0}


def test_a_folder_that_is_gone_stops_no_courier(running, tmp_path):
    path, _ = attempt(tmp_path)
    meter = Meter(path, running(WAIT).pid)
    path.rename(tmp_path / "gone")
    meter.look("", 1)
    assert not path.exists()
