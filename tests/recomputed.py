"""What tables say of jobs, computed again: their cells, captions, and what their files say."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from captions import (
    BARE,
    CONFIRMING,
    ENDED,
    LABELS,
    REPEATS,
    SENTENCES,
    Caption,
    Metric,
    Name,
    OfOne,
    Test,
    between,
    differences,
    grouped,
    interval,
    known,
    label,
    lacks,
    lost,
    on_shared,
    parts_of,
    ranked,
    score,
    varied,
)
from odd_grids import Grid
from pytest import approx

# Tables: cells, what is bold and chosen, and the same in their other files.

MOST = 20  # rows of a table, if plot.py does not say which
CELL = re.compile(r"(\*\*)?(.*?)(\*\*)?(†)?")


@dataclass(frozen=True)
class Cell:
    """A cell as Markdown has it."""

    text: str
    bold: bool
    chosen: bool


def markdown(text: str) -> tuple[list[str], dict[str, list[Cell]], str]:
    """The heads, rows and caption of a table."""
    lines, _, caption = text.partition("\n\n")
    split = [re.split(r" (?<!\\)\| ", line[2:-2]) for line in lines.splitlines()]
    rows = {}
    for name, *cells in split[2:]:
        each = [CELL.fullmatch(cell).groups() for cell in cells]
        rows[name.replace(r"\|", "|")] = [Cell(t, bool(b), bool(d)) for b, t, _, d in each]
    return split[0], rows, caption.strip()


def number(text: str) -> tuple[float, float]:
    """A number in a cell, and half of its last digit's place."""
    plain = text.replace("\N{MINUS SIGN}", "-").lstrip("+\N{MULTIPLICATION SIGN}")
    mantissa, _, exponent = plain.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return float(plain), 0.5000001 * last


def is_number(text: str, value: float) -> None:
    said, half = number(text)
    assert abs(said - value) <= half + 1e-12 * abs(value), (text, value)


def is_cost(text: str, value: float) -> None:
    """Compare a cost, which is `<0.01` if it is less than its column can say."""
    assert value < float(text[1:]) if text.startswith("<") else not is_number(text, value)


def is_interval(text: str, found: tuple[float, float, float]) -> None:
    """Compare a cell with a mean and the ends of its interval."""
    middle, low, high = found
    if pair := re.fullmatch(r"(\S+) ± (\S+)", text):
        is_number(pair[1], middle)
        assert high - middle == approx(middle - low, rel=1e-5)
        if pair[2].startswith("<"):
            assert high - middle < float(pair[2][1:])
        else:
            is_number(pair[2], high - middle)
    elif three := re.fullmatch(r"(\S+) \((\S+) to (\S+)\)", text):
        for said, value in zip(three.groups(), found, strict=True):
            is_number(said, value)
    else:
        is_number(text, middle)
        assert not high > low, (text, found)


class Tables(Caption):
    """The tables of all tasks, compared with their jobs."""

    def __init__(self, grid: Grid, folder: Any) -> None:
        self.folder, self.every = folder, grid.jobs
        self.tasks = [*dict.fromkeys(grid.jobs["dataset"])]
        super().__init__(grid, "", "")

    @property
    def behind(self) -> pd.DataFrame:
        return self.every[self.every["state"].isin(ENDED)]

    def metrics(self, captions: str) -> list[Metric]:
        """The metrics that a table has, on test data if there are results."""
        part = "test" if any(name.startswith("test_") for name in self.every) else "val"
        part = (
            part
            if part == "val" or self.every[f"test_{self.grid.monitored}"].notna().any()
            else "val"
        )
        names = sorted(self.grid.metrics, key=lambda name: name != self.grid.monitored)
        return [Metric(name, self.grid.metrics[name], part) for name in names]

    def rows(self, own: pd.DataFrame, by: list[str], rest: list[str]) -> dict[Name, pd.DataFrame]:
        """The jobs of each row, those with the best values of the rest: confirming ones if there
        are any."""
        found, self.among = {}, []
        voting = self.voting(own)
        by_median = lacks(voting, self.chooser)
        for name, jobs in grouped(own, by).items():
            cells = {
                cell: score(of, self.chooser, by_median)
                for cell, of in grouped(grouped(voting, by).get(name, voting[:0]), rest).items()
            }
            if rest and cells:
                best = max(cells, key=lambda cell: cells[cell])
                jobs = grouped(jobs, rest)[best]
                self.among.append(len(cells))
            confirming = jobs[jobs["seed"] >= CONFIRMING]
            found[name] = confirming if len(confirming) else jobs
        return found

    def first_of(self, names: set[Name], by: list[str], first: list[Name]) -> set[Name]:
        """Those of some rows that a table has: the first ones, and the best by validation."""
        order = [*first, *ranked(grouped(self.voting(self.every), by), self.chooser)]
        return {*[name for name in dict.fromkeys(order) if name in names][:MOST]}

    def voting(self, own: pd.DataFrame) -> pd.DataFrame:
        ended = own[own["state"].isin(ENDED)]
        some = ended[ended["seed"] < CONFIRMING]
        return some if len(some) else ended

    def sentences(self, caption: str, table: str) -> None:
        self.text = caption
        text = " " + caption
        while text:
            for pattern, test in [*OF_TABLES, *SENTENCES[-5:]]:
                if found := re.match(pattern, text, re.DOTALL):
                    assert test(self, *found.groups()) is not False, (table, found[0], caption)
                    text = text[found.end() :]
                    break
            else:
                raise AssertionError(f"{table}: no such sentence: {text!r}")

    def check_main(self) -> None:
        """Compare the table of results. Rows that were chosen among others are left to its CSV."""
        heads, rows, caption = markdown((self.folder / "main.md").read_text())
        self.sentences(caption, "main")
        csv = pd.read_csv(self.folder / "main.csv", dtype={"job_ids": str, "row": str, "task": str})
        every = self.every
        turned = re.match("test|validation", heads[0])
        each = varied(every, self.grid.settings)
        corner = [n for n in each if LABELS.get(n, n) in heads[0].split(", ")]
        self.by = corner if corner and not turned else each
        rest = [name for name in each if name not in self.by]
        for name in rest:
            assert len(every[[*self.by, name]].drop_duplicates()) > MOST, (name, heads[0])
        said = re.search(r"Shown is the best of (\S+) values of (.+?) by", caption)
        assert {*(re.split(", | and ", said[2]) if said else [])} <= {
            LABELS.get(n, n) for n in rest
        }
        names = {name for name in grouped(every, self.by) if name}
        left = re.search(r"Not shown: (\d+) more row", caption)
        shown = {parts_of(name) for name in rows if name != "all jobs"}
        assert turned or len(names) - len(shown) == int(left[1] if left else 0), (caption, names)
        if left and len(self.tasks) == 1 and not rest:
            assert shown >= self.first_of(names, self.by, []), (caption, shown)
        for record in csv.to_dict("records"):
            metric = self.named(record["metric"])
            task = record["task"] if isinstance(record["task"], str) else self.tasks[0]
            own = every[every["dataset"] == task]
            ids = str(record["job_ids"]).split() if isinstance(record["job_ids"], str) else []
            jobs = own[own["job_id"].isin(ids)]
            wanted, name = self.rows(own, self.by, rest), label_of(record, self.by)
            assert {*ids} == {*wanted.get(name, own[:0])["job_id"]}, (record, name)
            if said and len(self.tasks) == 1:
                assert said[1] == between(self.among), (said, self.among)
            assert record["tried"] == len(jobs)
            for state in ("diverged", "failed"):
                assert record[state] == (jobs["state"] == state).sum(), record
            some = known(jobs, metric)
            found = interval(jobs, metric)
            assert record["n"] == len(some), record
            assert [record[end] for end in ("mean", "low", "high")] == approx(
                [*found], nan_ok=True, rel=1e-6
            ), (record, found)
            values = some[metric.column]
            sides = [values.std(), values.min(), values.max()]
            assert [record[end] for end in ("sd", "min", "max")] == approx(sides, nan_ok=True), (
                record
            )
            shown = rows[task if turned else record["row"]]
            heading = (
                record["row"]
                if turned
                else f"{record['task'] if len(self.tasks) > 1 else ''} {title(metric)}".strip()
            )
            if heading in heads:
                cell = shown[heads.index(heading) - 1]
                self.cell(cell.text, jobs, metric, found)
                assert cell.chosen == record["chosen_on_validation"], record
        for task in self.tasks:
            self.compared(csv, task, rows, heads, rest, turned)

    def compared(self, csv: Any, task: str, rows: Any, heads: Any, rest: bool, turned: Any) -> None:
        """What is chosen, and what is bold: what test data cannot tell from it."""
        own = csv if len(self.tasks) == 1 else csv[csv["task"] == task]
        jobs = self.every[self.every["dataset"] == task].set_index("job_id", drop=False)
        for key, cells in own.groupby("metric"):
            metric = self.named(key)
            alike = {
                row["row"]: jobs.loc[
                    str(row["job_ids"]).split() if isinstance(row["job_ids"], str) else []
                ]
                for row in cells.to_dict("records")
            }
            voting = {
                row: some for row, of_row in self.votes(jobs, alike).items() if len(some := of_row)
            }
            first = {*cells.loc[cells["chosen_on_validation"].astype(bool), "row"]}
            if len(voting) > 1:
                best = ranked(voting, self.chooser)
                assert first == {*best[:1]}, (task, first, best[:2])
            else:
                assert not first
            found = {}
            if first and metric.part == "test":
                (reference,) = first
                found = differences(alike, reference, metric)
            for record in cells.to_dict("records"):
                row = record["row"]
                if row in found:
                    each, _, p = found[row]
                    ends = [record[f"difference_{end}"] for end in ("mean", "low", "high")]
                    assert ends == approx([*each.ends], rel=1e-6, abs=1e-12), (record, each.ends)
                    assert record["adjusted_p"] == approx(p, rel=1e-4, abs=1e-9), (record, p)
                else:
                    assert "difference_mean" not in record or np.isnan(record["difference_mean"]), (
                        record
                    )
                heading = (
                    row
                    if turned
                    else f"{task if len(self.tasks) > 1 else ''} {title(metric)}".strip()
                )
                if heading in heads:
                    cell = rows[task if turned else row][heads.index(heading) - 1]
                    whole = not lost(alike[row], metric)
                    whole &= not (alike[row]["state"] == "failed").any()
                    equal = row in found and found[row][2] >= 0.05 and whole
                    bold = bool(found) and (row in first or equal)
                    assert cell.bold == bold, (record, found.get(row))

    def votes(self, jobs: pd.DataFrame, alike: Any) -> dict[str, pd.DataFrame]:
        """The jobs by which rows are ranked: with the same settings as those shown, but not those
        that confirm, if there are others."""
        by, found = varied(self.every, self.grid.settings), {}
        voting = self.voting(jobs)
        for row, shown in alike.items():
            if len(shown):
                name = label(shown.iloc[0], by)
                found[row] = grouped(voting, by).get(name, voting[:0])
        return found

    def named(self, key: str) -> Metric:
        part, name = key.split("_", 1)
        return Metric(name, self.grid.metrics[name], part)

    def cell(self, text: str, jobs: pd.DataFrame, metric: Metric, found: Any) -> None:
        states = Counter(jobs["state"].replace({"unknown": "finished", "paused": "unfinished"}))
        none = not len(known(jobs, metric))
        states["no result"] = states["finished"] - len(known(jobs, metric))
        every = states if none else ("diverged", "failed", "no result")
        lost = [s for s in every if states[s] and s != "finished"]
        if lost:
            assert {*text.split(", ")} == {f"{states[s]}/{len(jobs)} {s}" for s in lost}, (
                text,
                states,
            )
        elif none:
            assert text == "\N{EN DASH}", text
        else:
            factor = 1 if metric.log else metric.factor
            is_interval(text, tuple(factor * end for end in found))

    def check_ablation(self) -> None:
        """Compare the differences from the baseline."""
        heads, rows, caption = markdown((self.folder / "ablation.md").read_text())
        self.sentences(caption, "ablation")
        reference = re.search(r"Rows below the baseline \((.*?)\) are", caption)[1]
        by = varied(self.every, self.grid.settings)
        names = self.rows(self.every, by, [])
        base = parts_of(reference)
        voting = grouped(self.voting(self.every), by)
        assert base == ranked(voting, self.chooser)[0], (base, caption)
        of_row = {"baseline": base}
        for row in [*rows][1:]:
            setting, change = row.split(": ")
            before, (after, *more) = (part.split(", ") for part in change.split(" → "))
            start = "" if setting in BARE else f"{setting} "
            nested = {part for part in base if part.startswith("momentum") and start == ""}
            kept = base - {f"{start}{before[0]}"} - (nested if setting == "optimizer" else set())
            of_row[row] = kept | {f"{start}{after}", *more}
        values = {name: own.iloc[0][by].map(str) for name, own in names.items()}
        once = {name for name in names if self.changes(values[name], values[base]) == 1}
        shown, few = {base, *once}, {base, *self.first_of(once, by, [])}
        assert {*of_row.values()} == (shown if len(once) <= MOST else few), (caption, once)
        further = len(names) - len(shown)
        more = re.search(r"Not shown: (\d+) setting", caption)
        assert int(more[1] if more else 0) == further, (caption, further)
        csv = pd.read_csv(self.folder / "ablation.csv")
        for place, head in enumerate(heads[1:]):
            metric = next(each for each in self.metrics("") if title(each) == head)
            shown = {row: names[name] for row, name in of_row.items()}
            found = differences(shown, "baseline", metric)
            for row, own in shown.items():
                text, bold = rows[row][place].text, rows[row][place].bold
                if row == "baseline":
                    self.cell(text, own, metric, interval(own, metric))
                    continue
                failed = (own["state"] == "failed").any()
                if failed or lost(own, metric) or not len(known(own, metric)):
                    self.cell(text, own, metric, interval(own, metric))
                elif lost(shown["baseline"], metric):
                    assert text == "\N{EN DASH}", (row, text)
                elif row in found:
                    each, _, p = found[row]
                    factor = 1 if metric.log else metric.factor
                    is_interval(text, tuple(factor * end for end in each.ends))
                    assert bold == (p < 0.05 and metric.part == "test"), (row, text, p)
                elif len(known(shown["baseline"], metric)):
                    pair = on_shared(own, shown["baseline"], metric)
                    mine, its = (interval(x, metric)[0] for x in pair)
                    value = mine / its if metric.log else metric.factor * (mine - its)
                    is_number(text, value)
                    assert not bold
        assert len(csv) == len(rows) * (len(heads) - 1)

    def changes(self, one: "pd.Series[str]", other: "pd.Series[str]") -> int:
        """How many settings differ, but for momentum where the optimizer has none."""
        differ = {*one.index[one != other]}
        return len(
            differ
            - ({"momentum"} if "None" in (one.get("momentum"), other.get("momentum")) else set())
        )

    def check_cost(self) -> None:
        heads, rows, caption = markdown((self.folder / "cost.md").read_text())
        self.sentences(caption, "cost")
        own = self.behind[self.behind["state"] != "diverged"]
        by = varied(own, self.grid.settings)
        groups = grouped(own, by)
        *names, last = rows
        assert last == "whole project"
        for name in names:
            jobs = groups.get(parts_of(name.replace("all jobs", "")))
            if jobs is None:
                assert len(by) > len(parts_of(name))
                jobs = pd.concat([o for n, o in groups.items() if parts_of(name) <= n])
            each = [cell.text for cell in rows[name]]
            assert int(each[0]) == len(jobs)
            means = [
                (jobs["seconds"] / 3600 * jobs["lasts"]).mean(),
                (1000 / jobs["seconds"]).mean(),
            ]
            is_cost(each[heads.index("CPU (h)") - 1], means[0])
            is_cost(each[heads.index("examples/s") - 1], means[1])
        assert int(rows[last][0].text) == len(self.every)
        hours = heads.index("CPU (h)") - 1
        is_cost(rows[last][hours].text, self.every["seconds"].sum() / 3600)
        each = {len(row[hours].text.partition(".")[2]) for row in rows.values()}
        assert len(each) == 1, "one number of decimals"

    def check_jobs(self) -> None:
        """Compare the table of all jobs."""
        csv = pd.read_csv(self.folder / "jobs.csv").set_index("job_id")
        wanted = self.every.set_index("job_id")
        assert sorted(csv.index) == sorted(wanted.index)
        states = wanted["state"].replace({"unknown": "finished", "paused": "paused or interrupted"})
        assert (csv["state"][states.index] == states).all()
        over = wanted.index[wanted["state"].isin(["finished", "unknown"])]
        for name in [n for n in wanted if n.startswith(("best_val", "test_"))]:
            assert csv.loc[over, name].tolist() == approx(
                wanted.loc[over, name].tolist(), nan_ok=True
            )

    def check_macros(self) -> None:
        """The macros for the text, and the cells in LaTeX, say what Markdown does."""
        macros = (self.folder / "results.tex").read_text()
        found = re.findall(
            r"^\\expandafter\\def\\csname result/(\w+)/.*?\\endcsname\{(.*)\}$",
            macros,
            re.MULTILINE,
        )
        for name in ("main", "ablation", "cost"):
            if not (self.folder / f"{name}.md").exists():
                continue
            _, rows, _ = markdown((self.folder / f"{name}.md").read_text())
            cells = [
                cell.text for row, every in rows.items() if row != "whole project" for cell in every
            ]
            assert sorted(plain(text) for table, text in found if table == name) == sorted(cells), (
                name
            )
            body = (self.folder / f"{name}.tex").read_text().split(r"\midrule", 1)[1]
            lines = [line for line in body.splitlines() if line.endswith(r" \\")]
            for line, each in zip(lines, rows.values(), strict=True):
                cells = re.sub(r"\\phantom\{.*?\}", "", plain(line.split(" & ", 1)[1]))
                said = " ".join(cell.text for cell in each)
                assert re.findall(r"\d[\d.]*", cells) == re.findall(r"\d[\d.]*", said), (line, said)
                assert line.count("textbf") >= sum(cell.bold for cell in each), line
                assert line.count("dagger") == sum(cell.chosen for cell in each), line


def plain(text: str) -> str:
    """A cell in LaTeX, as Markdown has it."""
    for latex, character in {
        r"\,$\pm$\,": " ± ",
        "$-$": "\N{MINUS SIGN}",
        r"$\times$": "\N{MULTIPLICATION SIGN}",
        "--": "\N{EN DASH}",
        "$<$": "<",
        r"\%": "%",
        r"\&": "&",
        r"\_": "_",
    }.items():
        text = text.replace(latex, character)
    return text


def label_of(record: Any, by: list[str]) -> Name:
    return label({**record}, by)


def title(metric: Metric) -> str:
    unit = f" ({metric.unit})" if metric.unit else ""
    return f"{metric.text}{unit} {'↑' if metric.sign > 0 else '↓'}"


def check(grid: Grid, folder: Any, figures: Any = None) -> int:
    """Compare whatever was written to a folder; returns how many captions and tables there were."""
    count = 0
    for path in sorted(folder.glob("*.json")):
        about = json.loads(path.read_text())
        if "figure" not in about:
            continue
        stem, name = path.stem, about["figure"]
        task = next(
            (
                t
                for t in dict.fromkeys(grid.jobs["dataset"])
                if stem == f"{name}-{t.replace(' ', '-')}"
            ),
            "",
        )
        if name == "by-task":
            check_tasks(grid, about["caption"])
            count += 1
            continue
        kind = OfOne if name == "confusion" else Caption
        found = kind(grid, about["caption"], task, (figures or {}).get(stem))
        found.check(stem)
        assert about["jobs"] == sorted(found.behind["job_id"]), stem
        assert about["commits"] == ["abc"]
        settings = [n for n in grid.settings]
        for n in settings:
            values = found.behind[n].unique().tolist()
            if len(values) == 1:
                assert about["shared"][n] == values[0], (stem, n)
            else:
                assert about["varied"][n] == sorted(values, key=str), (stem, n, about["varied"][n])
        count += 1
    tables = Tables(grid, folder)
    for name in ("main", "ablation", "cost", "jobs", "macros"):
        if name in ("jobs", "macros") or (folder / f"{name}.md").exists():
            getattr(tables, f"check_{name}")()
            count += 1
    return count


def check_tasks(grid: Grid, caption: str) -> None:
    """Compare the caption of a figure of all tasks: what it says of each, and of all of them."""
    metric = Metric(grid.shown, grid.metrics[grid.shown], "test")
    start = f"{metric.text.capitalize()} on each task; open points are single jobs."
    assert caption.startswith(start), caption
    tasks = [*dict.fromkeys(grid.jobs["dataset"])]
    said = caption.removeprefix(start)
    places = [
        (found.start(), task)
        for task in tasks
        if (found := re.search(task.capitalize() + ":", said))
    ]
    every = re.search(
        r" (?:Arrows|The edges).*| (?:Dataset|Model|\d[\d\N{EN DASH}]* training).*", said
    )
    end = every.start() if every else len(said)
    ends = [*(place - 1 for place, _ in places[1:]), end]
    own = {
        task: said[place + len(task) + 1 : stop]
        for (place, task), stop in zip(places, ends, strict=False)
    }
    for task in tasks:
        text = own.get(task, "" if own else said[:end])
        found = Caption(grid, text, task)
        found.most = 8
        found.by = [n for n in varied(grid.jobs, grid.settings) if n not in found.rest]
        found.check(f"by-task of {task}", first="")
    whole = Caption(grid, said[end:], "")
    whole.check("by-task", first="")


def _over(c: Tables, said: str) -> None:
    """Means are over all repeats of a row, and differences over those that two rows share."""
    own, shown = set[str](), list[pd.DataFrame]()
    for jobs in grouped(c.every, [*varied(c.every, c.grid.settings), "dataset"]).values():
        confirming = jobs[jobs["seed"] >= CONFIRMING]
        shown.append(confirming if len(confirming) else jobs)
    for metric in c.metrics(""):
        results = [each for jobs in shown if len(each := known(jobs, metric))]
        repeats = [name for name in REPEATS if name in c.every]
        alike = {str(sorted(each[repeats].to_numpy().tolist())): each for each in results}
        for one, other in product(results, alike.values()):
            own |= {c.of_repeats(part, metric) for part in (one, on_shared(one, other, metric)[0])}
    assert {*said.split(" or ")} <= {*own, "others"}, (said, own)


def _spent(c: Tables, devices: str, count: str) -> None:
    own = c.behind[c.behind["state"] != "diverged"]
    assert {*devices.split(", ")} == {*own["device"]}
    assert int(count) == len(c.every)


def _dagger(c: Tables, metric: str, median: str) -> None:
    assert metric == c.chooser.text


OF_TABLES: list[tuple[str, Test]] = [
    (
        r" (Test|Validation) results\.",
        lambda c, part: (part == "Test") == (c.metrics("")[0].part == "test"),
    ),
    (r" One change at a time\.", lambda c: None),
    (
        r" Rows below the baseline \((.*?)\) are differences from it(, or ratios \(.\) to it for a "
        r"logarithmic metric)?\.",
        lambda c, _, ratios: bool(ratios) == any(m.log for m in c.metrics("")),
    ),
    (r" ± and parentheses: 95% intervals over (.*?)\.(?= |$)", _over),
    (r" Differences are over the repeats that both have\.", lambda c: None),
    (r" Means of fewer than 3 repeats, or of equal results, have no interval\.", lambda c: None),
    (
        r" Bold(?: in each \w+ with comparisons)?: .*?(?:rows|columns) of a (?:column|row) "
        r"together\)\.",
        lambda c: None,
    ),
    (r" .: not run\.", lambda c: None),
    (r" Better than †, not bold: .*?\.(?= |$)", lambda c: None),
    (
        r" Not compared, as they differ from .*? by the same amount in all repeats: .*?\.(?= |$)",
        lambda c: None,
    ),
    (r" Not all have the same splits, which may be unequally hard\.", lambda c: None),
    (
        r" Means of logarithmic metrics are geometric\.",
        lambda c: any(metric.log for metric in c.metrics("")),
    ),
    (r" Set \d:(?= )", lambda c: None),
    (r" †: the best by (validation [\w-]+)(, ranked by the median .*? mean)?\.", _dagger),
    (
        r" Shown is the best of (\S+) values of .+? by validation.*?: .*?\.(?= [A-Z†]|$)",
        lambda c, _: None,
    ),
    (
        r" Not shown: (\d+) more rows?(?:, with worse validation results or none)?\.",
        lambda c, _: None,
    ),
    (r" Not shown: (\d+) settings? with more than one change\.", lambda c, _: None),
    (r" Not shown: (?:test|validation) [\w-]+\.", lambda c: None),
    (
        r" Settings that have seeds from 4,000,000,000 on are shown by these jobs alone, which had "
        r"no part in the choice\.",
        lambda c: bool((c.every["seed"] >= CONFIRMING).any()),
    ),
    (
        r" Costs of a job\. Means of jobs that finished, on (.*?)\. The last row is the sum over "
        r"all (\d+) attempts of the project that were not started over or deleted, whatever "
        r"became of them\.",
        _spent,
    ),
]
