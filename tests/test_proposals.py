"""`propose` and `breed` in a grid: jobs that follow from the results of others, as written down."""

import json
import math
import os
import re
import shlex
import signal

import pytest
from bits import plain
from faults import ended, one_line, succeeded, wait_until
from labjobs.cli import ranges
from labjobs.commands.propose import breed, propose
from labjobs.sweeps import proposals, search
from sweeps import write_lines

LINE = "propose tuned 2 x %s --lr 'log 1e-4 1e-1' --model 'choice mlp convnet' -- "
LINE += "--steps 6 --eval-every 3"


@pytest.fixture
def swept(fresh):
    def swept(generations, *words):
        write_lines(fresh.root, LINE % generations)
        return fresh.do("bash", "run.sh", *words)

    return swept


@pytest.mark.full
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


DIVERGING = "--optimizer sgd --schedule constant --batch-size 512 --device cpu"


@pytest.mark.long
def test_if_all_jobs_have_diverged_nothing_waits_for_them(fresh):
    write_lines(fresh.root, f"job --lr 1e30 --epochs 1 {DIVERGING}", "confirm 2")
    done = fresh.do("bash", "run.sh")
    said = "run.sh: confirm: no job before it has a result, since all have diverged"
    assert done.returncode != 0 and done.stderr.splitlines()[-1] == said
    assert "waits" not in done.stdout


FAMILY = "breed family 4 x %d x 1e --lr 'log 1e-3 1e1' -- --schedule constant --optimizer sgd "
FAMILY += "--batch-size 512 --device cpu"


def results(project):
    """The settings, the curves and the best weights of all jobs, by id."""
    found = {}
    for path in project.root.glob("runs/*/*/settings.json"):
        about = json.loads(path.read_text())
        job = about["id"]
        best = project.tensors(job)["best"]["models"]
        found[job] = about["settings"], project.journalled(job), plain(best)
    return found


@pytest.mark.long
def test_a_family_is_the_same_after_a_kill_from_the_journals_and_in_a_clone(project, tmp_path):
    """Three generations, killed in the second one; 24 small jobs in all."""
    first = project.copy(tmp_path / "first")
    file = first.root / "searches" / "family.txt"
    write_lines(first.root, FAMILY % 3)
    sweep = first.command("bash", "run.sh")
    wait_until(
        lambda: sweep.poll() is not None or (file.exists() and "generation 2" in file.read_text())
    )
    os.killpg(sweep.pid, signal.SIGKILL)
    ended(sweep)
    assert succeeded(first.do("bash", "run.sh")).stdout.splitlines()[-1].startswith("12 of 12 jobs")
    written, whole = file.read_text(), results(first)
    for generation, job in {its["epochs"]: job for job, (its, *_) in whole.items()}.items():
        shown = first.do("python", "jobs.py", "show", job).stdout.splitlines()[2]
        assert len(re.findall(r"[0-9a-f]{12}:(?:last|fork)", shown)) == generation - 1, shown
    succeeded(first.do("python", "plot.py", "--format", "png"))
    caption = (first.root / "figures" / "ranking.tex").read_text()
    assert "Jobs that continue others: 8 of 12; " in caption
    assert not [*first.root.glob("figures/search-*")]
    file.unlink()
    succeeded(first.do("bash", "run.sh"))
    assert file.read_text() == written  # from the journals alone

    other = project.copy(tmp_path / "other")
    (other.root / "searches").mkdir()
    (other.root / "searches" / "family.txt").write_text(written)
    write_lines(other.root, FAMILY % 3)
    assert "12 of 12 jobs finished, 12 of them" in succeeded(other.do("bash", "run.sh")).stdout
    assert (other.root / "searches" / "family.txt").read_text() == written
    assert results(other) == whole


@pytest.mark.full
def test_what_cannot_be_bred_is_refused_before_anything_starts(fresh):
    by_rate = "breed a 4 x 3 x %s --lr 'log 1e-3 1' -- --schedule %s"
    for lines, said in (
        (
            [by_rate % ("1e", "cosine")],
            "no job can go on from it: in one twice as long, in step 100 ",
        ),
        (
            [by_rate % ("1e", "constant --monitor none")],
            "breed: --monitor none: must be a metric on",
        ),
        ([by_rate % ("50", "constant")], "breed: 50: no evaluation there, --eval-every 1e"),
        (
            [by_rate % ("1e", "constant"), "confirm 2"],
            "confirm 2: not after breed, whose jobs go on",
        ),
        (
            ["halving 3 1e", by_rate % ("2e", "constant")],
            "search until, propose and breed: not below",
        ),
    ):
        write_lines(fresh.root, *lines)
        done = fresh.do("bash", "run.sh")
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr.splitlines()[0] and len(done.stderr.splitlines()) < 6
    assert not (fresh.root / "runs").exists() and not (fresh.root / "searches").exists()


BRED = """8 x 3 x 2e --lr 'log 1e-3 1' --opt 'choice a b c' --depth 'int 1 4'
    --decay 'normal 0 1 if --opt=c' -- --schedule constant"""


@pytest.mark.parametrize(
    ("scores", "copied"),
    [
        ([0.3, 0.1, 5, 0.2, 9, 8, 6, 7], {4: 3, 5: 1}),
        ([0.3, 0.1, math.inf, 0.2, math.inf, 8, math.inf, 7], {2: 1, 4: 3, 6: 1}),
    ],
)
def test_the_worst_quarter_and_what_diverged_are_copies_of_the_best_quarter(scores, copied):
    asked = proposals.read(["breed", "a", *shlex.split(BRED)])
    units, ids, copies = asked.known()[0].jobs, [f"{unit:012}" for unit in range(8)], {}
    for generation in (1, 2):
        found = breed(asked, units, dict(zip(ids, scores, strict=True)), generation)
        assert found == breed(asked, units, dict(zip(ids, scores, strict=True)), generation)
        assert len({*map(tuple, found)}) == 8
        for unit, job in enumerate(found):
            assert job[-2] == f"--epochs={2 * generation + 2}"
            parent, how = job[-1].removeprefix("--init-from=").split(":")
            if how == "last":
                assert int(parent) == unit and job[:-2] == units[unit][: len(job) - 2]
                continue
            copies[unit] = int(parent)
            given, its = search.flags(job[:-2]), search.flags(units[int(parent)])
            assert given.items() - its.items()
            assert 1e-3 <= float(given["--lr"]) <= 1 and given["--depth"] in "1234"
            assert ("--decay" in given) == (given["--opt"] == "c")
        assert copies == copied
        units = [job[:-1] for job in found]


def test_a_population_that_cannot_go_on_is_named():
    asked = proposals.read(["breed", "a", *shlex.split("2 x 3 x 1e --kind 'choice a b'")])
    units = asked.known()[0].jobs
    with pytest.raises(proposals.SettingsError, match="a: all 2 members of generation 1 have div"):
        breed(asked, units, dict.fromkeys("ab", math.inf), 1)
    asked = proposals.read(["breed", "a", *shlex.split("2 x 3 x 1e --kind 'choice a'")])
    with pytest.raises(proposals.SettingsError, match="a: its ranges have no other settings"):
        breed(asked, [["--kind=a"]] * 2, {"a": 1.0, "b": 2.0}, 1)


@pytest.mark.parametrize(
    "text", ["uniform 0.999 0.99999", "int 3 3", "uniform 12345 12355", "log 0.9998 0.99991"]
)
def test_draws_are_in_their_range_and_differ(text):
    its = ranges.parse("--it", text)
    drawn = [float(its.draw(place / 1000)) for place in range(1000)]
    assert its.low <= min(drawn) and max(drawn) <= its.high
    assert len({*drawn}) == (1000 if its.low < its.high else 1)


def test_settings_move_by_a_fifth_and_stay_in_their_ranges():
    for text, value, less, more in (
        ("log 1e-3 1", "0.1", "0.08", "0.12"),
        ("uniform 0 0.5", "0.45", "0.36", "0.5"),
        ("normal 0 1", "-2", "-1.6", "-2.4"),
        ("int 1 4", "2", "1", "3"),
        ("int 1 4", "1", "1", "2"),
        ("logint 16 512", "500", "400", "512"),
        ("choice a b c", "b", "a", "c"),
        ("choice a b c", "c", "b", "c"),
    ):
        its = ranges.parse("--it", text)
        assert [its.next_to(value, factor) for factor in (0.8, 1.2)] == [less, more], text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a 3 x 2 --lr 'log 0 1'", "a: --lr 'log 0 1': must look like 'log 1 10'"),
        ("a 3 x 2 --lr 'log 1e-3 1' -- --lr 1", "a: --lr: is drawn, and given after --"),
        ("a 3 x 2 with=tp --lr 'log 1e-3 1'", "a: with=tp: did you mean tpe?"),
        ("a 3 --lr 'log 1e-3 1'", "must look like propose NAME 8 x 5"),
        ("../a 3 x 2 --lr 'log 1e-3 1'", "must look like propose NAME 8 x 5"),
        ("a 3 x 2", "a: expects pairs of a flag and a range"),
        ("a 3 x 2 x 1e --lr 'log 1e-3 1'", "propose a: expects pairs of a flag and a range"),
        ("breed a 1 x 2 x 1e --lr 'log 1e-3 1'", "breed: must look like breed NAME 8 x 5 x 4e"),
        ("breed a 4 x 0 x 1e --lr 'log 1e-3 1'", "breed: must look like"),
        ("breed a 4 x 2 --lr 'log 1e-3 1'", "breed: must look like"),
        ("breed a 4 x 2 x 3m --lr 'log 1e-3 1'", "breed: must look like"),
        ("breed a 4 x 2 x 0.5e --lr 'log 1e-3 1'", "breed: must look like"),
        ("breed a 4 x 2 x 1e --lr 'log 1e-3 1' -- --minutes 3", "a: --minutes: is set for each"),
        ("breed a 4 x 2 x 1e --batch-size 'choice 32 64'", "a: --batch-size: cannot be drawn"),
        ("breed a 4 x 2 x 1e --fold 'choice 1 2 3 4'", "a: --fold: cannot be drawn; give"),
        ("breed a 4 x 2 x 1e --lr 'log 1 0.1'", "breed a: --lr 'log 1 0.1': must look like"),
        ("breed a 4 x 2 x 1e --lr 'log 1e-3 1' -- --lr 1", "breed a: --lr: is drawn, and given"),
    ],
)
def test_a_wrong_line_is_refused(line, said):
    words = shlex.split(line if line.startswith("breed") else f"propose {line}")
    with pytest.raises(proposals.SettingsError, match=re.escape(said)):
        proposals.read(words)


def test_optuna_is_needed_only_where_something_is_left_to_propose(monkeypatch):
    monkeypatch.setattr(proposals, "find_spec", lambda name: None)
    line = "2 x %s with=tpe --lr 'log 1e-3 1'"
    assert len(proposals.read(shlex.split(f"propose a {line}" % 1)).known()) == 1
    with pytest.raises(proposals.SettingsError, match="a: with=tpe needs Optuna: uv sync"):
        proposals.read(shlex.split(f"propose a {line}" % 2))


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
        asked = proposals.read(
            ["propose", "a", "6", "x", "5", f"seed={seed}", *shlex.split(RANGES)]
        )
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
    asked = proposals.read(["propose", "a", "3", "x", "2", "--kind", "choice a b c d"])
    tried = asked.known()[0].jobs
    with pytest.raises(proposals.SettingsError, match="a: its ranges do not have 3 more jobs"):
        propose(asked, tried, [1.0, 2.0, 3.0], 1)
