"""A job that is killed at random instants, its code edited in between: no curve is of two codes."""

import random
import signal
import time
from collections import Counter
from typing import Any

import pytest
from faults import Project, curves, curves_in, ended, kill, one_line, same
from labjobs.job import attempts, code_evidence
from torch import load

pytestmark = pytest.mark.full

FLAGS = (
    *("--epochs", "12", "--batch-size", "128", "--ema", "0.9", "--log-every", "3", "--quiet"),
    *("--checkpoint-minutes", "0.0001"),
)
WIDTHS = ("256", "64")
LONGEST = 12.0
"""Seconds after which a job is killed, at most."""

POINTS = """
SELECT metrics.key, metrics.step, metrics.value FROM metrics JOIN runs USING (run_uuid)
JOIN tags USING (run_uuid) WHERE tags.key = 'job_folder' AND tags.value = ?
AND lifecycle_stage = 'active' ORDER BY metrics.step
"""


class Network:
    """One of the two networks, and what a job has learnt with it that nobody disturbed."""

    def __init__(self, project: Project, width: str) -> None:
        self._width = width
        self._models = (project.root / "models.py").read_text().replace(WIDTHS[0], width)
        self.write(project)
        self.job = project.finish(*FLAGS)
        self._learnt = self._left_in(project)

    def write(self, project: Project) -> None:
        (project.root / "models.py").write_text(self._models)

    def assert_undisturbed(self, project: Project) -> None:
        """Let the job end with this network; nothing tells that it was killed, or edited."""
        self.write(project)
        done = project.run(*FLAGS)
        if done.returncode == 5:
            done = project.run(*FLAGS, "--force")
        assert done.returncode in (0, 3), done
        sent = project.do("python", "jobs.py", "sync")  # what couriers of killed jobs held up
        assert sent.returncode == 0, sent
        assert same(self._left_in(project), self._learnt)

    def _left_in(self, project: Project) -> list[Any]:
        """Its weights, and its curves on disk and in the store."""
        (attempt,) = (
            path
            for path in project.root.glob(f"runs/{self.job}/*/")
            if attempts.begun(path)  # and was not killed just before
            and self._width in code_evidence.parts(path)["models:MLP"]["source"]
        )
        best = load(attempt / "best.pt", weights_only=True)
        return [best, curves_in(attempt), curves(project.ask(POINTS, str(attempt)))]


@pytest.mark.long
def test_no_curve_is_of_two_codes(make, tmp_path, pytestconfig):
    chance, hit = random.Random(0), Counter[str]()
    reference = Project(make())
    networks = [Network(reference.copy(tmp_path / width), width) for width in WIDTHS]
    project = reference.copy(tmp_path / "edited")
    while hit["killed"] < 2 * pytestconfig.getoption("kills"):
        chance.choice(networks).write(project)
        hit[_killed(project, chance)] += 1
    print(f"\n{dict(hit)}")
    for network in networks:
        network.assert_undisturbed(project)


def _killed(project: Project, chance: random.Random) -> str:
    """Run the job and kill it some time later; says what came of it."""
    job = project.start(*FLAGS, *chance.choice([[], [], ["--force"]]))
    end = time.monotonic() + chance.uniform(0, LONGEST)
    while job.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    was_alive = job.poll() is None
    kill(job.pid, chance.choice([signal.SIGKILL, signal.SIGTERM]))
    done = ended(job)
    if done.returncode == 5:
        assert "other code (models.MLP changed)" in one_line(done, 5)
        return "refused"
    return "killed" if was_alive else "ended"
