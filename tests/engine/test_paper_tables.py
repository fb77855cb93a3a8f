"""Tables for a paper: what cells say, what is bold, and what captions and files say of them."""

import csv
import json
import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import stored
from labjobs.errors import SettingsError
from labjobs.results import figures, paper_tables, style, table_files, tables
from labjobs.results.metrics import NoResults
from labjobs.settings import Metric

ICML = style.VENUES["icml"]
DECLARED = {
    "accuracy": Metric(better="higher", range=(0, 1)),
    "loss": Metric(better="lower", unit="nats", range=(0, None)),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stored.fresh(tmp_path_factory.mktemp("store"))


@pytest.fixture(autouse=True)
def default_store(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    style.label_settings({})
    figures.use(ICML)


def one(store, experiment, accuracy, loss, metrics=None, **how):
    """Store a job with the same results on validation and test data."""
    results = {"val_accuracy": [accuracy], "val_loss": [loss]}
    last = {"test_accuracy": [accuracy], "test_loss": [loss]}
    how = {"monitor": "val_accuracy", "metrics": metrics or DECLARED, **how}
    return store.job(experiment, results | last, **how)


def grid(store, experiment, means, seeds=4, **how):
    """Store jobs with these mean accuracies by learning rate; seeds differ by as much for all."""
    for lr, mean in means.items():
        for seed in range(seeds):
            luck = 0.01 * (seed - 1.5) + 0.001 * lr * (-1) ** seed
            one(store, experiment, mean + luck, 1 - mean - luck, lr=lr, seed=seed, **how)


def texts(table):
    return {name: [cell.text for cell in row] for name, row in table.rows.items()}


def test_the_best_on_validation_is_marked_and_what_cannot_be_told_apart_is_bold(store):
    grid(store, "bold", {1: 0.9, 2: 0.899, 3: 0.7})
    table = paper_tables.results(tables.jobs("bold"))
    first, alike, worse = (row[0] for row in table.rows.values())
    assert (first.bold, first.chosen) == (True, True)
    assert (alike.bold, alike.chosen) == (True, False)
    assert (worse.bold, worse.chosen) == (False, False)
    assert (first.text, first.half) == ("0.900", "0.020")
    assert [column.title for column in table.columns] == ["test accuracy ↑", "test loss (nats) ↓"]
    assert "95% intervals over 4 seeds." in table.about
    assert "†: the best by validation accuracy." in table.about
    (record,) = [each for each in table.records if each["row"] == "lr 3"][:1]
    assert record["difference_mean"] == pytest.approx(-0.2) and record["adjusted_p"] < 0.05
    assert record["job_ids"].count("lr=3") == record["n"] == 4


def test_what_is_better_on_test_data_than_the_best_by_validation_is_named(store):
    for lr, seed in product((1, 2), range(4)):
        luck = 0.001 * seed + 0.0001 * lr * (-1) ** seed
        last = {"val_accuracy": [lr / 10 + luck], "test_accuracy": [0.9 - lr / 10 + luck]}
        store.job("better", last, DECLARED, lr=lr, seed=seed, monitor="val_accuracy")
    table = paper_tables.results(tables.jobs("better"))
    assert [(row[0].bold, row[0].chosen) for row in table.rows.values()] == [
        *((False, False), (True, True))
    ]
    assert " Better than †, not bold: lr 1." in table.about


def test_a_metric_that_a_task_does_not_have_is_no_column_of_it(store):
    for dataset, lr, seed in product("ab", (1, 2), range(3)):
        name = {"a": "accuracy", "b": "loss"}[dataset]
        last = {f"{part}_{name}": [0.1 * lr + 0.01 * seed] for part in ("val", "test")}
        how = {"dataset": dataset, "lr": lr, "seed": seed, "monitor": f"val_{name}"}
        store.job("other metrics", last, DECLARED, **how)
    jobs = tables.only(tables.jobs("other metrics"), {})
    for table in (paper_tables.results(jobs), paper_tables.ablation(jobs, {"lr": 1})):
        columns = [(column.task, column.title) for column in table.columns]
        assert columns == [("a", "test accuracy ↑"), ("b", "test loss (nats) ↓")]
        assert not any("no result" in cell.text for row in table.rows.values() for cell in row)


def test_equal_results_have_no_interval_of_their_difference(store):
    for lr, seed in product((1, 2), range(3)):
        one(store, "equal", 0.5 + 0.01 * seed, 0.1, lr=lr, seed=seed)
    table = paper_tables.results(tables.jobs("equal"))
    (record,) = [each for each in table.records if each.get("difference_repeats")][:1]
    assert record["difference_mean"] == 0 and math.isnan(record["difference_low"])
    changed = paper_tables.ablation(tables.jobs("equal"), {"lr": 1})
    assert changed.rows["lr: 1 → 2"][0].text == "0.00"
    assert "or of equal results, have no interval" in changed.about


def test_without_enough_repeats_nothing_is_bold_and_has_an_interval(store):
    grid(store, "few", {1: 0.9, 2: 0.5}, seeds=2)
    table = paper_tables.results(tables.jobs("few"))
    assert not any(cell.bold or cell.half for row in table.rows.values() for cell in row)
    assert "fewer than 3 repeats, or of equal results, have no interval" in table.about
    changed = paper_tables.ablation(tables.jobs("few"), {"lr": 1})
    assert changed.rows["lr: 1 → 2"][0].text == "\N{MINUS SIGN}0.400"


def test_lost_jobs_stand_in_place_of_the_mean_of_the_others(store):
    grid(store, "lost", {1: 0.9, 2: 0.8}, seeds=3)
    one(store, "lost", 0.9, 0.1, lr=1, seed=3, status="FAILED")  # diverged
    jobs = tables.jobs("lost")
    changed = texts(paper_tables.ablation(jobs, {"lr": 1}))
    assert changed["baseline"][0] == "1/4 diverged"
    assert changed["lr: 1 → 2"][0] == paper_tables.NOTHING
    jobs.attrs[tables.UNFINISHED] = [
        {"job_id": "f", "lr": 2, "seed": 3, "monitor": "val_accuracy", "state": "failed"},
        {"job_id": "g", "lr": 3, "seed": 0, "monitor": "val_accuracy", "state": "failed"},
        {"job_id": "p", "lr": 2, "seed": 4, "monitor": "val_accuracy", "state": "paused"},
        {"job_id": "q", "lr": 4, "seed": 0, "monitor": "val_accuracy", "state": "paused"},
    ]
    table = paper_tables.results(jobs)
    found = texts(table)
    assert found["lr 1"][0] == "1/4 diverged"
    assert found["lr 2"][0] == "1/5 failed"
    assert found["lr 3"][0] == "1/1 failed"
    assert found["lr 4"][0] == "1/1 paused"
    bold = {name for name, row in table.rows.items() if row[0].bold}
    assert bold == {name for name, row in table.rows.items() if row[0].chosen}
    assert (
        "all rows, none of whose jobs has diverged, failed or lacks a result, whose test results"
        in table.about
    )


def test_failed_jobs_older_than_a_setting_have_its_neutral_value(store):
    since = {"neutral": '{"depth": 0}', "former": '{"rate": "lr"}'}
    failed = {"status": "FAILED", "mark": False, "monitor": "val_accuracy"}
    store.job("older", {}, rate=1, seed=3, **failed)
    for depth, seed in ((0, 0), (0, 1), (1, 0)):
        one(store, "older", 0.9 - 0.1 * depth, 0.1, lr=1, depth=depth, seed=seed, tags=since)
    jobs = tables.jobs("older")
    for wanted, states in ({"depth": 1}, []), ({"lr": 1}, ["failed"]):
        known = tables.with_values(tables.unfinished("older", None, "run"), wanted)
        rows = known.to_dict("records")
        assert [row["state"] for row in rows] == states
    jobs.attrs[tables.UNFINISHED] = rows
    found = texts(paper_tables.results(jobs))
    assert [found["depth 0"][0], found["depth 1"][0]] == ["1/3 failed", "0.800"]


def test_what_bold_and_dashes_say_holds_for_rows_of_few_repeats_and_that_were_not_run(store):
    grid(store, "two", {1: 0.9, 2: 0.7})
    grid(store, "two", {3: 0.9}, seeds=2)
    one(store, "two", 0.9, 0.1, lr=1, seed=0, dataset="other")
    table = paper_tables.results(tables.jobs("two"))
    assert not table.rows["lr 3"][0].bold and table.rows["lr 3"][1].text == paper_tables.NOTHING
    assert "and all rows of 3 repeats or more whose test results cannot be told" in table.about
    assert f" {paper_tables.NOTHING}: not run." in table.about


def test_metrics_without_test_results_are_named(store):
    how = {"seed": 3, "monitor": "val_accuracy", "metrics": DECLARED}
    for lr in range(3):
        curves = {"test_accuracy": [0.9], "val_loss": [0.1 * lr]}
        store.job("validated", curves, **how | {"lr": lr, "monitor": "val_loss"})
    about = paper_tables.results(tables.jobs("validated")).about
    assert " Without results: test loss." in about
    curves = {"val_accuracy": [0.9], "test_accuracy": [math.nan]}
    store.job("all lost", curves, **how | {"lr": 1})
    table = paper_tables.results(tables.jobs("all lost"))
    assert table.what == "Validation results"
    assert " Without results: test accuracy." in table.about


def test_tasks_are_columns_and_nothing_is_chosen_among_them(store):
    grid(store, "tasks", {1: 0.9, 2: 0.8}, dataset="digits")
    grid(store, "tasks", {1: 0.5, 3: 0.6}, dataset="noisy")
    table = paper_tables.results(tables.jobs("tasks"), shown=["accuracy"])
    assert [column.task for column in table.columns] == ["digits", "noisy"]
    assert texts(table)["lr 2"][1] == texts(table)["lr 3"][0] == paper_tables.NOTHING
    chosen = [[cell.chosen for cell in row] for row in table.rows.values()]
    assert chosen == [[True, False], [False, False], [False, True]]
    one(store, "tasks", 0.9, 0.1, lr=3, seed=9, dataset="noisy", status="FAILED")
    about = paper_tables.results(tables.jobs("tasks"), shown=["accuracy"]).about
    assert " Digits: †: the best by val" in about and " Noisy: †: the best by val" in about


def test_many_tasks_are_rows(store):
    for task in range(6):
        grid(store, "many", {1: 0.9, 2: 0.8}, dataset=f"task {task}")
    table = paper_tables.results(tables.jobs("many"))
    assert [*table.rows] == [f"task {task}" for task in range(6)]
    assert [column.title for column in table.columns] == ["lr 1", "lr 2"]
    assert table.corner == "test accuracy ↑"
    assert "cannot be told apart from its own (5% level for all columns of a row" in table.about
    assert all(cells[0].chosen and not cells[1].chosen for cells in table.rows.values())


def test_what_has_no_row_is_tuned_by_validation_and_named(store):
    for model in ("mlp", "convnet"):
        grid(store, "tuned", {1: 0.9, 2: 0.8}, model=model)
    table = paper_tables.results(tables.jobs("tuned"), rows=["model"])
    assert [*table.rows] == ["convnet", "mlp"]
    assert "Shown is the best of 2 values of lr by validation accuracy" in table.about
    with pytest.raises(SettingsError, match=r"no setting modle; did you mean model\?"):
        paper_tables.results(tables.jobs("tuned"), rows=["modle"])
    with pytest.raises(SettingsError, match="seed is a repeat, over which a table has means"):
        paper_tables.results(tables.jobs("tuned"), rows=["seed"])
    with pytest.raises(SettingsError, match="no metric acc"):
        paper_tables.results(tables.jobs("tuned"), shown=["acc"])


def test_rows_of_whole_numbers_beside_fractions(store):
    for epochs in (64, 128):
        grid(store, "mixed", {0.1: 0.9, 0.2: 0.8}, epochs=epochs)
    table = paper_tables.results(tables.jobs("mixed"), shown=["accuracy"])
    assert len(table.rows) == 4
    assert all(re.match(r"0\.[89]", row[0].text) for row in table.rows.values())
    assert {record["epochs"] for record in table.records} == {64, 128}
    assert all(isinstance(record["epochs"], int) for record in table.records)


def test_an_ablation_tells_values_apart_that_are_equal_in_three_digits(store):
    grid(store, "close", {0.12341: 0.9, 0.12344: 0.7, 0.2: 0.5})
    changed = paper_tables.ablation(tables.jobs("close"), {"lr": 0.12341})
    assert [*changed.rows] == ["baseline", "lr: 0.12341 → 0.12344", "lr: 0.12341 → 0.2"]


def test_an_ablation_changes_one_setting_of_the_baseline(store):
    for model in ("mlp", "convnet"):
        grid(store, "ablation", {1: 0.9, 2: 0.7}, model=model)
    jobs = tables.jobs("ablation")
    table = paper_tables.ablation(jobs, {"model": "mlp", "lr": 1}, ["accuracy"])
    assert [*table.rows] == ["baseline", "model: mlp → convnet", "lr: 1 → 2"]
    cells = [row[0] for row in table.rows.values()]
    assert cells[0].text == "0.900"
    assert cells[2].text.startswith("\N{MINUS SIGN}0.2") and cells[2].bold and not cells[1].bold
    assert table.about.endswith("Not shown: 1 setting with more than one change.")
    with pytest.raises(NoResults, match=r"BASELINE in plot\.py fits 2 of the settings; name lr as"):
        paper_tables.ablation(jobs, {"model": "mlp"})
    with pytest.raises(NoResults, match="fits 0 of the settings"):
        paper_tables.ablation(jobs, {"model": "mlp", "lr": 7})
    grid(store, "ablation", {0.5: 0.8}, model="mlp")  # with it, rates are floats
    again = paper_tables.ablation(tables.jobs("ablation"), {"model": "mlp", "lr": 1})
    assert {*table.rows} < {*again.rows}
    with pytest.raises(SettingsError, match=r"^BASELINE in plot\.py: the jobs have no setting mdl"):
        paper_tables.ablation(jobs, {"mdl": "mlp"})


def test_rows_that_differ_by_the_same_amount_in_all_repeats_are_not_called_alike(store):
    for rate, seed in product((1, 2), range(3)):
        loss = 0.5 + 0.1 * seed + 0.01 * rate * (-1) ** seed
        one(store, "constant", 0.9 - 0.25 * rate + 0.01 * seed**2, loss, lr=rate, seed=seed)
    jobs = tables.jobs("constant")
    table = paper_tables.results(jobs)
    bold = [[cell.bold for cell in row] for row in table.rows.values()]
    assert bold == [[True, True], [False, True]]
    same = "by the same amount in all repeats"
    said = f" Not compared, as they differ from † {same}: lr 2 (test accuracy)."
    assert said in table.about
    changed = paper_tables.ablation(jobs, {"lr": 1})
    assert changed.rows["lr: 1 → 2"][0].text == "\N{MINUS SIGN}0.250"
    assert f"from the baseline {same}: lr: 1 → 2 (test accuracy)." in changed.about


def test_an_ablation_has_no_rows_of_failed_jobs_with_several_changes(store):
    grid(store, "failed", {1: 0.9, 2: 0.7}, form="plain")
    for rate, form in ((1, "other"), (2, "other")):
        how = {"lr": rate, "form": form, "seed": 0, "monitor": "val_accuracy"}
        store.job("failed", {}, DECLARED, status="FAILED", mark=False, **how)
    jobs = tables.jobs("failed")
    jobs.attrs[tables.UNFINISHED] = tables.Rows(
        tables.unfinished("failed", None, "run").to_dict("records")
    )
    table = paper_tables.ablation(jobs, {"lr": 1, "form": "plain"}, ["accuracy"])
    assert [*table.rows] == ["baseline", "form: plain → other", "lr: 1 → 2"]
    assert "1 setting with more than one change" in table.about


def test_ratios_of_logarithmic_metrics_and_percent(store):
    declared = {
        "accuracy": Metric(better="higher", range=(0, 1), scale="percent"),
        "loss": Metric(better="lower", scale="log"),
    }
    grid(store, "scales", {1: 0.9, 2: 0.6}, metrics=declared)
    table = paper_tables.results(tables.jobs("scales"))
    assert [column.title for column in table.columns] == ["test accuracy (%) ↑", "test loss ↓"]
    accuracy, loss = table.rows["lr 1"]
    assert (accuracy.text, accuracy.half) == ("90.0", "2.0")
    assert re.fullmatch(r"0\.\d+ \(0\.\d+ to 0\.\d+\)", loss.text)
    changed = paper_tables.ablation(tables.jobs("scales"), {"lr": 1}).rows["lr: 1 → 2"]
    assert changed[0].text == "\N{MINUS SIGN}30.00" and changed[1].text.startswith(
        "\N{MULTIPLICATION SIGN}4."
    )


def test_an_accuracy_of_one_has_the_interval_of_its_examples(store, tmp_path):
    right = np.ones(72)
    np.savez(tmp_path / "predictions.npz", index=np.arange(72), accuracy=right)
    for seed in range(3):
        one(store, "perfect", 1.0, 0.0, seed=seed, tags={"job_folder": str(tmp_path)})
    (row,) = paper_tables.results(tables.jobs("perfect"), shown=["accuracy"]).rows.values()
    assert row[0].text == "1.000 (0.950 to 1.000)"


def test_files_say_the_same_and_are_the_same_for_the_same_results(store, tmp_path):
    grid(store, "files", {0.1: 0.9, 0.2: 0.7}, note="50 % & more_of #1")
    grid(store, "files", {0.1: 0.8}, note="~^\\{x} | <y> $z$")
    jobs = tables.jobs("files")
    table = paper_tables.results(jobs)
    for folder in ("a", "b"):
        (line,) = table_files.save(
            table, tmp_path / folder / "main", "Results.", {"jobs": []}, ICML
        )
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {f"main.{kind}" for kind in table_files.KINDS}
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert 2 < float(line.split()[-3]) < ICML.full
    tex = (tmp_path / "a" / "main.tex").read_text()
    assert r"50 \% \& more\_of \#1" in tex and tex.count(r"\\") == 1 + len(table.rows)
    assert r"$<$y$>$ \$z\$" in tex
    rows = [*csv.DictReader((tmp_path / "a" / "main.csv").read_text().splitlines())]
    assert len(rows) == len(table.rows) * len(table.columns)
    assert float(rows[0]["mean"]) == pytest.approx(0.9, abs=1e-4)
    assert json.loads((tmp_path / "a" / "main.json").read_text()) == {"jobs": []}
    macros = table_files.macros({"main": table})
    names = re.findall(r"csname (result/[^\\#]*)\\endcsname", macros)
    cells = [cell for row in table.rows.values() for cell in row]
    assert len({*names}) == len(names) == len(cells)
    assert all(name.count("/main/") == 1 for name in names)
    accents = replace(table, rows={"é": next(iter(table.rows.values()))})
    assert "csname result/main/é/test accuracy" in table_files.macros({"main": accents})
    assert re.search(
        r"result/main/.*test accuracy\\endcsname\{0\.900\\,\$\\pm\$\\,0\.020\}", macros
    )


def test_the_best_rows_of_each_task_are_among_those_that_are_shown(store):
    for task, sign in (("digits", 1), ("letters", -1)):
        values = {rate: 0.5 + sign * rate / 1000 for rate in range(1, 30)}
        grid(store, "two tasks", values, seeds=1, dataset=task)
    table = paper_tables.results(tables.jobs("two tasks"))
    assert len(table.rows) == paper_tables.MOST_ROWS
    assert sum(cell.chosen for cells in table.rows.values() for cell in cells) >= 2


def test_a_table_that_does_not_fit_the_page_or_the_font_is_refused(store):
    grid(store, "wide", {1: 0.9}, note="x" * 120)
    grid(store, "wide", {1: 0.8}, note="数据")
    table = paper_tables.results(tables.jobs("wide"))
    wide, lacking = table_files.problems(table, ICML)
    assert "in wide, and the page has 6.75; " in wide
    assert "lack 据 数; write" in lacking


def test_a_table_of_many_rows_keeps_the_best_and_says_so(store):
    grid(store, "search", {rate: 0.5 + rate / 1000 for rate in range(1, 30)}, seeds=1)
    table = paper_tables.results(tables.jobs("search"))
    assert [*table.rows] == [f"lr {rate}" for rate in range(10, 30)]
    said = "Not shown: 9 more rows, with worse validation results or none."
    assert said in table.about
    changed = paper_tables.ablation(tables.jobs("search"), {})
    assert len(changed.rows) == 1 + 20
    assert "Not shown: 8 more rows, with worse validation results or none." in changed.about
    assert said in paper_tables.cost(tables.jobs("search")).about


def test_without_a_test_part_a_table_is_of_validation_results(store):
    for lr, mean in ((1, 0.9), (2, 0.5)):
        for seed in range(3):
            value = mean + 0.001 * seed
            curves = {"val_accuracy": [value], "val_loss": [1 - value]}
            how = {"lr": lr, "seed": seed, "monitor": "val_accuracy"}
            store.job("untested", curves, DECLARED, **how)
    table = paper_tables.results(tables.jobs("untested"))
    assert table.what == "Validation results"
    changed = paper_tables.ablation(
        tables.jobs("untested"), {}
    )  # not told apart by what has chosen
    assert not any(cell.bold for row in changed.rows.values() for cell in row)
    assert "Bold" not in changed.about


def test_numbers_have_the_digits_that_their_intervals_need(store):
    declared = {
        "accuracy": Metric(better="lower", scale="log"),
        "loss": Metric(better="lower", unit="J"),
    }
    for lr, size in ((1, 1e-3), (2, 1.0), (3, 1e3)):
        for seed in range(3):
            value, energy = size * (1 + 0.1 * seed), -1.234567e9 + 1e4 * seed
            one(store, "sizes", value, energy, declared, lr=lr, seed=seed)
    table = paper_tables.results(tables.jobs("sizes"))
    small, *_ = table.rows.values()
    assert small[0].text == "0.00110 (0.00087 to 0.00138)"
    assert re.fullmatch(r".1\.234557e9 \(.1\.23458\d+e9 to .1\.23453\d+e9\)", small[1].text)
    one(store, "exploded", 0.25, 0.5, lr=1)
    one(store, "exploded", 0.5, 6.75e9, lr=2)
    one(store, "exploded", 0.75, 0.25, lr=3)
    cells = [row[1].text for row in paper_tables.results(tables.jobs("exploded")).rows.values()]
    assert cells == ["0.500", "6.75e9", "0.250"]


def test_costs_count_whatever_became_of_jobs(store):
    for seed in range(2):
        store.job("cost", {"val_accuracy": [0.9], "cpu_hours": [1.5]}, seed=seed, metrics=DECLARED)
    store.job("cost", {"cpu_hours": [0.5]}, seed=2, status="FAILED", metrics=DECLARED)
    table = paper_tables.cost(tables.jobs("cost"))
    assert [column.title for column in table.columns] == ["jobs", "CPU (h)", "examples/s"]
    assert [cell.text for cell in table.total] == ["3", "3.50", ""]
    assert {"row": "whole project", "cost": "cpu_hours", "sum": 3.5, "jobs": 3} in table.records


def test_costs_in_a_column_have_one_number_of_decimals(store):
    for lr, hours in ((1, 0.004), (2, 0.011), (3, 1.25)):
        for seed in range(3):
            results = {"val_accuracy": [0.9], "cpu_hours": [hours * (1 + 0.03 * seed)]}
            store.job("costs", results, seed=seed, lr=lr, metrics=DECLARED)
    store.job("costs", {"val_accuracy": [0.9], "cpu_hours": [2e-3]}, lr=4, metrics=DECLARED)
    table = paper_tables.cost(tables.jobs("costs"))
    texts = [row[1].text for row in table.rows.values()]
    assert texts == ["0.0041", "0.0113", "1.2875", "0.0020"]
    assert table.total[1].text == "3.9109"


def test_a_table_that_is_higher_than_the_page_is_refused():
    rows = {str(number): [paper_tables.Cell("0.5")] for number in range(60)}
    table = paper_tables.Table("lr", [paper_tables.Column("test accuracy")], rows)
    (problem,) = table_files.problems(table, ICML)
    assert problem.startswith("10 in high, and the page has 9; leave rows out")


def test_a_table_of_the_projects_own_has_its_cells_in_the_csv(tmp_path):
    cells = {"mlp": [paper_tables.Cell("0.5", "0.1")], "vit": [paper_tables.Cell("0.4")]}
    table = paper_tables.Table("network", [paper_tables.Column("loss")], cells)
    table_files.save(table, tmp_path / "own", "A table.", {}, style.named("neurips"))
    assert (tmp_path / "own.csv").read_text() == "network,loss,loss ±\nmlp,0.5,0.1\nvit,0.4,\n"
