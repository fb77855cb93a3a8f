"""Edits of the first week: a project that has them runs, is killed and continued, and is drawn."""

import pytest
from edits import SETTINGS, Edit
from faults import Project, ended, job_of, kill, learnt, same, succeeded, wait_until

pytestmark = pytest.mark.full

STEPS_FOR_EPOCHS = Edit(
    (
        (SETTINGS, "    steps: int = setting(0,", "    steps: int = setting(150,"),
        (
            *(SETTINGS, 'eval_every: Span = setting(Span("1e")'),
            'eval_every: Span = setting(Span("50")',
        ),
    )
)
JOB = 'job --model "$model" --lr "$lr" --seed "$seed"'
THIRD_SETTING = Edit(
    (
        ("run.sh", JOB, f'{JOB} --epochs 2 --weight-decay "$decay"'),
        ("run.sh", "for model in mlp convnet; do", "for model in mlp; do"),
        ("run.sh", "for lr in 1e-3 1e-2; do", "for lr in 1e-3; do for decay in 0 0.01; do"),
        ("run.sh", "for seed in 0 1 2; do", "for seed in 0 1; do"),
        ("run.sh", "      done\n", "      done; done\n"),
    )
)


def assert_drawn(project: Project, *figures: str) -> None:
    """Draw the figures; those that are named are among them."""
    succeeded(project.do("python", "plot.py", "--format", "png"))
    found = {path.stem for path in (project.root / "figures").glob("*.png")}
    assert {*figures} <= found


def test_with_another_length_it_runs_is_killed_continues_and_is_drawn(make, tmp_path):
    whole = Project(make())
    STEPS_FOR_EPOCHS.make(whole)
    parts = whole.copy(tmp_path / "parts")
    undisturbed, killed = whole.start(), parts.start("--checkpoint-minutes", "0.0001")
    wait_until(lambda: killed.poll() is not None or any(parts.root.glob("runs/*/*/last.pt")))
    kill(killed.pid)
    assert ended(killed).returncode == -9, killed.communicate()
    job = job_of(succeeded(ended(undisturbed)))
    assert [step for step, _ in whole.journalled(job)["val_loss"]] == [50, 100, 150]
    (line,) = whole.run().stdout.splitlines()
    assert line.startswith(f"job {job} already finished")  # --epochs is no part of its id

    again = succeeded(parts.run())
    assert f"job {job}" in again.stdout and "continuing from " in again.stdout
    assert same(learnt(parts, job), learnt(whole, job))
    assert parts.journalled(job) == whole.journalled(job) == parts.stored(job)
    assert_drawn(parts, "learning-curves")


def test_a_third_setting_in_the_grid(project):
    THIRD_SETTING.make(project)
    sweep = project.command("bash", "run.sh")
    wait_until(lambda: any(project.root.glob("runs/*/*/best.pt")))
    kill(-sweep.pid)
    assert ended(sweep).returncode == -9
    done = succeeded(project.do("bash", "run.sh"))
    assert "4 of 4 jobs finished" in done.stdout.splitlines()[-1]
    assert_drawn(project, "learning-curves", "metric-vs-setting")
    caption = (project.root / "figures" / "metric-vs-setting.tex").read_text()
    assert "weight" in caption or "2 seeds" in caption
