"""Slurm's variables, as a real srun of Slurm 22.05 sets them on two machines, and torchrun's."""

import os

import pytest
from labjobs.distributed import ranks
from labjobs.distributed.ranks import ALONE, Rank

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "one[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
}


@pytest.fixture
def environment(monkeypatch):
    """An environment without variables of torchrun and Slurm; more can be added."""
    own = {name: value for name, value in os.environ.items() if "SLURM" not in name}
    monkeypatch.setattr(os, "environ", own)
    return own


def translated(environment, **variables):
    environment |= variables
    ranks.translate()
    return ranks.mine()


def test_several_tasks_are_the_processes_of_a_job(environment):
    assert translated(environment, **STEP, MASTER_PORT="1234") == Rank(3, 4, 1)
    assert environment["MASTER_ADDR"] == "one1" and environment["OMP_NUM_THREADS"]
    assert environment["MASTER_PORT"] == "1234"  # what the user has set is kept
    assert ranks.apart()


@pytest.mark.parametrize(
    "variables",
    [
        {name: value for name, value in STEP.items() if "STEP" not in name},  # a script of sbatch
        STEP | {"SLURM_STEP_NUM_TASKS": "1"},
        STEP | {"SLURM_PTY_PORT": "44295"},  # a shell of srun --pty; the other tasks do nothing
    ],
)
def test_one_process(environment, variables):
    assert translated(environment, **variables) == ALONE


def test_torchruns_variables_come_first(environment):
    of_torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here"}
    assert translated(environment, **STEP, **of_torchrun) == Rank(1, 2, 1)


@pytest.mark.parametrize(
    ("machines", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu[07-09,12],login", "gpu07"),
        ("rack[3,5]-node[01-02]", "rack3-node01"),
    ],
)
def test_the_first_machine(environment, machines, first):
    translated(environment, **STEP | {"SLURM_STEP_NODELIST": machines})
    assert environment["MASTER_ADDR"] == first
