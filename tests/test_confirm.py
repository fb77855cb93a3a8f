"""`confirm` in a grid: what validation has chosen runs again with fresh seeds."""

import re

import pytest
from faults import one_line, succeeded

pytestmark = pytest.mark.full

GRID = """grid() {
  for lr in 1e-3 1e-2; do
    for seed in 0 1; do job --lr "$lr" --seed "$seed" --steps 20 --eval-every 10 %s; done
  done
  confirm %s
}
"""


@pytest.fixture
def swept(fresh):
    def swept(count, flags="", *words):
        path = fresh.root / "run.sh"
        grid = re.sub(
            r"(?s)grid\(\) \{.*?\n\}\n", lambda _: GRID % (flags, count), path.read_text()
        )
        path.write_text(grid)
        return fresh.do("bash", "run.sh", *words)

    return swept


def test_it_runs_once_the_others_have_ended_and_tables_report_it_alone(swept, fresh):
    done = succeeded(swept("3"))
    assert done.stdout.splitlines()[-1] == "7 of 7 jobs finished, 3 of them now"
    confirming = re.findall(r"started on .* --seed=(4\d+)", done.stdout)
    assert sorted(confirming) == ["4000000000", "4000000001", "4000000002"]
    (rate,) = {*re.findall(r"--lr=(\S+) .*--seed=4", done.stdout)}
    again = succeeded(swept("3"))
    assert again.stdout.splitlines()[-1] == "7 of 7 jobs finished, 0 of them now"
    succeeded(fresh.do("python", "plot.py", "--format", "png"))
    rows = (fresh.root / "tables" / "main.csv").read_text().splitlines()
    counts = {row.split(",")[0]: row.split(",").count("3") for row in rows if "test_loss" in row}
    assert counts[f"learning rate {rate}"] > counts[f"learning rate {0.011 - float(rate):.3g}"]
    caption = (fresh.root / "figures" / "ranking.tex").read_text()
    assert "mean of 2 seeds" in caption


@pytest.mark.long
def test_it_waits_for_jobs_without_results_and_refuses_a_wrong_number(swept):
    waits = succeeded(swept("3", "--pause-after 10"))
    assert waits.stdout.splitlines()[-1] == "confirm waits until all jobs before it have results"
    said = one_line(swept("some"), 2)
    assert said == "run.sh: confirm some: expects a number of seeds, such as confirm 5\n".strip()
