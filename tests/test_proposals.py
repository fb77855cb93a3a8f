"""`propose` in a grid: settings that follow from the results of others, and are written down."""

import math
import re
import shlex

import pytest
from faults import one_line, succeeded
from labjobs.commands.propose import propose
from labjobs.sweeps import proposals, search

GRID = """grid() {
  propose tuned 2 x %s --lr 'log 1e-4 1e-1' --model 'choice mlp convnet' -- --steps 6 --eval-every 3
}
"""


@pytest.fixture
def swept(fresh):
    def swept(generations, *words):
        path = fresh.root / "run.sh"
        grid = re.sub(r"(?s)grid\(\) \{.*?\n\}\n", GRID % generations, path.read_text())
        path.write_text(grid)
        return fresh.do("bash", "run.sh", *words)

    return swept


def test_generations_follow_from_results_and_are_written_down(swept, fresh):
    listed = succeeded(swept(2, "--list")).stdout
    waits = "propose tuned waits until all jobs before it have results"
    assert listed.splitlines()[-2:] == ["2 jobs: 2 pending", waits]
    path = fresh.root / "searches" / "tuned.txt"
    assert not path.exists()
    assert succeeded(swept(2)).stdout.splitlines()[-1] == "4 of 4 jobs finished, 2 of them now"
    written = path.read_text()
    again = succeeded(swept(2))
    assert again.stdout.splitlines()[-1] == "4 of 4 jobs finished, 0 of them now"
    path.unlink()
    succeeded(swept(2))
    assert path.read_text() == written  # from the journals alone
    more = succeeded(swept(3)).stdout
    assert more.splitlines()[-1] == "6 of 6 jobs finished, 2 of them now"
    assert path.read_text().startswith(written) and path.read_text() != written
    drawn = {path.parent.name: path.read_text() for path in fresh.root.glob("runs/*/drawn.json")}
    first, last = (
        next(job for job, text in drawn.items() if f'"generation": {number}' in text)
        for number in (1, 3)
    )
    refused = fresh.do("python", "jobs.py", "rm", first)
    assert refused.returncode == 1 and "which a search has drawn" in refused.stderr
    succeeded(fresh.do("python", "jobs.py", "rm", last, "--dry-run"))

    fresh.edit("models.py", "nn.ReLU()", "nn.Tanh()")
    changed = succeeded(swept(3, "--redo-stale"))
    line = "run.sh: propose tuned: earlier results changed; generation 2 stays"
    assert line in changed.stdout.splitlines() + changed.stderr.splitlines()
    assert "6 of 6 jobs finished, 6 of them now" in changed.stdout
    assert path.read_text().startswith(written)

    path.write_text(written.removesuffix("3\n") + "2\n")
    edited = "searches/tuned.txt was edited or merged; restore it from version control"
    assert one_line(swept(3), 2) == f"run.sh: propose tuned: {edited}"
    path.write_text(written + "<<<<<<< HEAD\n")
    assert one_line(swept(3), 2) == f"run.sh: propose tuned: {edited}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a 3 x 2 --lr 'log 0 1'", "a: --lr 'log 0 1': must look like 'log 1 10'"),
        ("a 3 x 2 --lr 'log 1e-3 1' -- --lr 1", "a: --lr: is drawn, and given after --"),
        ("a 3 x 2 with=tp --lr 'log 1e-3 1'", "a: with=tp: did you mean tpe?"),
        ("a 3 --lr 'log 1e-3 1'", "must look like propose NAME 8 x 5"),
        ("../a 3 x 2 --lr 'log 1e-3 1'", "must look like propose NAME 8 x 5"),
        ("a 3 x 2", "a: expects pairs of a flag and a range"),
    ],
)
def test_a_wrong_line_is_refused(line, said):
    with pytest.raises(proposals.SettingsError, match=re.escape(said)):
        proposals.read(shlex.split(line))


def test_optuna_is_needed_only_where_something_is_left_to_propose(monkeypatch):
    monkeypatch.setattr(proposals, "find_spec", lambda name: None)
    line = "2 x %s with=tpe --lr 'log 1e-3 1'"
    assert len(proposals.read(shlex.split(f"a {line}" % 1)).known()) == 1
    with pytest.raises(proposals.SettingsError, match="a: with=tpe needs Optuna: uv sync"):
        proposals.read(shlex.split(f"a {line}" % 2))


RANGES = "--lr 'log 1e-4 1' --width 'logint 4 512' --kind 'choice a b c' "
RANGES += "--share 'uniform 0.1 0.9 if --kind=b,c' --layers 'int 1 4' --scale 'normal 0 2'"


def score(job: list[str]) -> float:
    """A result that is best for a rate of 0.01, a width of 64 and b with a share of 0.5."""
    given = search.flags(job)
    far = (math.log10(float(given["--lr"])) + 2) ** 2 + (
        math.log2(int(given["--width"])) - 6
    ) ** 2 / 9
    far += (float(given.get("--share", 0.9)) - 0.5) ** 2 + (given["--kind"] != "b") / 4
    return math.inf if float(given["--lr"]) > 0.3 else far


def test_proposals_are_new_come_close_and_depend_on_results_alone():
    better = 0
    for seed in range(3):
        asked = proposals.read(["a", "6", "x", "5", f"seed={seed}", *shlex.split(RANGES)])
        tried = asked.known()[0].jobs
        for generation in range(1, 5):
            new = propose(asked, tried, [*map(score, tried)], generation)
            assert len({*map(tuple, new)} - {*map(tuple, tried)}) == 6
            tried = [*tried, *new]
        turned = tried[::-1]
        again = [propose(asked, each, [*map(score, each)], 5) for each in (tried, turned)]
        assert again[0] == again[1]
        for job in tried:
            given = search.flags(job)
            assert 1e-4 <= float(given["--lr"]) <= 1 and 4 <= int(given["--width"]) <= 512
            assert ("--share" in given) == (given["--kind"] != "a") and given["--layers"] in "1234"
        drawn = search.jobs(["30", f"seed={seed}", *shlex.split(RANGES)])
        better += min(map(score, tried)) < min(score(job) for job, _ in drawn)
    assert better >= 2


def test_a_range_without_further_jobs_is_named():
    asked = proposals.read(["a", "3", "x", "2", "--kind", "choice a b c d"])
    tried = asked.known()[0].jobs
    with pytest.raises(proposals.SettingsError, match="a: its ranges do not have 3 more jobs"):
        propose(asked, tried, [1.0, 2.0, 3.0], 1)
