"""How a sweep's jobs are divided among the tasks of Slurm."""

import random

import pytest
from labjobs.sweeps.slurm import Given, Inputs, divide

Divided = list[tuple[list[int], list[int | str]]]
"""Of each chunk the places of its jobs, and what it waits for."""


def divided(inputs: list[Inputs], most: int) -> Divided:
    """Divide jobs with these inputs."""
    jobs = [Given(str(place), "", []) for place in range(len(inputs))]
    return [([int(job.id) for job in jobs], [*waits]) for jobs, waits in divide(jobs, inputs, most)]


@pytest.mark.parametrize("seed", range(50))
def test_each_job_has_a_place_behind_its_inputs(seed):
    chance = random.Random(seed)
    depths = sorted(chance.randrange(3) for _ in range(30))
    inputs: list[Inputs] = []
    for depth in depths:
        before = [place for place, other in enumerate(depths) if other == depth - 1]
        inputs.append(chance.sample(before, min(len(before), chance.randint(1, 3))))
    most = chance.randint(1, 5)
    done: list[int] = []
    for number, (jobs, waits) in enumerate(chunks := divided(inputs, most)):
        assert len(jobs) <= most
        behind = {place for each in waits for place in chunks[int(each)][0]}
        assert all(int(each) < number for each in waits)
        for job in jobs:
            assert {*map(int, inputs[job])} <= behind | {*jobs[: jobs.index(job)]}
        done += jobs
    assert sorted(done) == [*range(30)]
