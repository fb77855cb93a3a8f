"""Two people with one store, each with edits of their own: each sees the results of their code."""

import pytest
from faults import Project, ended, job_of, succeeded
from sweeps import write_grid

pytestmark = pytest.mark.full

SHORT = ("--epochs", "1", "--quiet")
MODELS = ("mlp", "mlp", "convnet", "convnet")
WIDTHS = {"ada": 128, "ben": 64}
"""Of the MLP, after each one's edit."""


@pytest.fixture(scope="module")
def users(make, tmp_path_factory):
    """Two clones of a project, in which both have swept the same grid at the same time."""
    made, folder = Project(make()), tmp_path_factory.mktemp("users")
    users = [made.copy(folder / name) for name in WIDTHS]
    grid = [f"{' '.join(SHORT)} --model {model} --seed {seed}" for seed, model in enumerate(MODELS)]
    for user, width in zip(users, WIDTHS.values(), strict=True):
        user.env["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/store.db"
        write_grid(user.root, *grid)
        models = user.root / "models.py"
        models.write_text(models.read_text().replace("256", str(width)))
    for sweep in [user.command("bash", "run.sh") for user in users]:
        done = ended(sweep)
        assert done.returncode in (0, 3), done
    for user in users:  # eight jobs at once may not upload everything in time
        succeeded(user.do("python", "jobs.py", "sync"))
    return users


def results(user: Project) -> dict[str, str]:
    return {job: about["result"] for job, about in user.listed().items()}


def test_each_has_finished_all_jobs_with_their_own_results(users):
    ada, ben = users
    for user in users:
        again = user.do("bash", "run.sh")
        assert again.stdout == f"{len(MODELS)} of {len(MODELS)} jobs finished, 0 of them now\n"
        assert {job["state"] for job in user.listed().values()} == {"finished"}
    assert len(results(ada)) == len(MODELS)
    for job, about in ada.listed().items():
        is_edited = about["settings"]["model"] == "mlp"
        assert (about["result"] != results(ben)[job]) == is_edited


def test_what_another_has_finished_meanwhile_is_listed_with_their_result(users):
    ada, ben = users
    flags = ("--model", "convnet", "--epochs", "2", "--seed", "9", "--quiet")
    paused = ben.run(*flags, "--pause-after", "1e")
    assert paused.returncode == 0 and "paused" in paused.stdout, paused
    job = job_of(ada.run(*flags))
    again = ben.run(*flags)
    assert (again.returncode, "already finished: see MLflow" in again.stdout) == (0, True), again
    assert results(ben)[job] == results(ada)[job] != ""
