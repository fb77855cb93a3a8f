"""A damaged journal, by `python run.py` and `python jobs.py`: one clear line, and no other result.

scripts/mutate_records.py damages all files of a job at random, by the thousand.
"""

import shutil

import pytest
from faults import one_line, silent
from labjobs import files

JOB = ("--epochs", "2", "--log-every", "1", "--batch-size", "256", "--quiet")


def test_a_damaged_journal_is_refused_and_nothing_of_it_is_sent(project):
    job = project.finish(*JOB)
    (project.root / "mlflow.db").unlink()  # as if it had been away
    (project.folder(job) / "sent.json").unlink()
    path = project.folder(job) / "metrics.jsonl"
    before = project.journalled(job)
    path.write_bytes(path.read_bytes().replace(b'"step": 3,', b'"step": 4,', 1))
    killed = project.folder("000000000000")  # before its first line
    killed.mkdir(parents=True)
    files.write_record(killed / "settings.json", {"id": "000000000000"})
    (killed / "metrics.jsonl").touch()
    sent = project.do("python", "jobs.py", "sync")
    shutil.rmtree(killed.parent)
    assert sent.returncode == 1
    first, line, last = sent.stderr.splitlines()
    assert first.startswith("job 000000000000 cannot be sent: metrics.jsonl has no line yet; ")
    assert line.startswith(f"job {job} cannot be sent: metrics.jsonl is damaged at line ")
    assert line.endswith("; --force starts the job over")
    assert last == "0 of 2 attempts sent"
    said = one_line(project.run(*JOB), 1)
    assert "failed: metrics.jsonl is damaged at line " in said
    assert "; --force starts the job over (" in said
    assert project.runs(job) == []
    silent(project.run(*JOB, "--force"))
    assert [status for _, status in project.runs(job)] == ["FINISHED"]
    assert project.stored(job) == before


@pytest.mark.full
def test_files_of_another_job_are_refused(project):
    """Whole and undamaged ones, as after a copy into the wrong folder."""
    one, other = (project.finish(*JOB, "--seed", seed) for seed in ("1", "2"))
    for name in ("best.pt", "predictions.npz"):
        shutil.copy(project.folder(other) / name, project.folder(one) / name)
    loaded = project.do("python", "-c", f"import jobs; jobs.load('{one}')")
    assert loaded.stderr.endswith("best.pt is damaged; --force makes the job start over\n")
    read = "from labjobs.results import tables; tables.outputs(tables.jobs('my_project'))"
    kept = project.do("python", "-c", read)
    assert (
        f"the job {one} can be read (ValueError: predictions.npz is of another job)" in kept.stderr
    )
    shown = project.do("python", "jobs.py", "show", one).stdout
    assert "finished, with the present code and data" in shown  # by other records
