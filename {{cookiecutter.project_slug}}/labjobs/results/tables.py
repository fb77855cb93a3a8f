"""Results as tables: what a figure or a notebook asks for.

jobs = tables.jobs("my_project")
jobs.groupby(["model", "lr"])["best_val_loss"].mean()
curves = tables.curves(jobs, "val_loss")
kept = tables.outputs(jobs, "label", "predicted", settings=["model"])
worst = tables.logged(jobs, "worst")
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labjobs import layout
from labjobs.cli import flags
from labjobs.errors import SettingsError, cause, few, require_known
from labjobs.files import read_json, read_record
from labjobs.job import identity
from labjobs.job.identity import DEFAULT
from labjobs.results.metrics import CURE, DECLARED, Measured, NoResults
from labjobs.results.style import NONE
from labjobs.settings import FORK, LAST, as_plain, roles
from labjobs.tracking import stored_jobs
from labjobs.tracking.mlflow_store import experiment_name

UNFINISHED = "unfinished"  # the attribute of a table of jobs with the rows of `unfinished`


class Rows(tuple[dict[Any, Any], ...]):
    """Rows in an attribute of a table. pandas copies attributes whenever it takes a part of the
    table, but not these."""

    def __deepcopy__(self, _memo: object) -> "Rows":
        return self


SEARCH = "search draw"
"""The column of a table of jobs that has the draw of a search that a job is, as JSON; empty if it
is none. No setting can have a name with a space."""

COSTS = ("gpu_hours", "cpu_hours")  # metrics that jobs without results have too
CODE, DATA = "digest of the code", "digest of the data"  # columns, which no setting can be


def jobs(
    experiment: str, kind: type[Any] | None = None, script: str = DEFAULT, diverged: bool = False
) -> pd.DataFrame:
    """Return one row per job of a script, such as `run` for run.py, by job id: its settings, last
    metrics and tags, each a column.

    A job's row shows its attempt with the present code and data, if it has one; otherwise, its
    latest attempt. The column `stale` says whether that attempt's code or data differs from the
    present, `unchecked` why that cannot be told; metrics are shown as the script declares them
    today. In the experiment of another project all that needs the class of the settings (`kind`);
    without it, nothing is compared.

    The table has the jobs that finished and those that diverged (column `diverged`), which have
    settings and costs but no results. Jobs that `jobs.py find` has run are left out. Settings have
    today's names; if a job is older than a setting, the setting has its neutral value. If a
    setting, a metric and a tag have the same name, the setting is kept (`lr`); the tag `hardware`
    is the device. The names of the settings are in `attrs["settings"]`, their roles in
    `attrs["roles"]`, those that do not count in all jobs in `attrs["nested"]`.
    Raises NoResults if no job has finished (with `diverged`, if none has diverged either),
    ConnectionError if the store cannot be read."""
    every = [job for job in stored_jobs.jobs(experiment) if identity.TAG not in job["tags"]]
    with suppress(SettingsError):  # where there is no project
        if not kind and experiment == experiment_name():
            kind = identity.read(script).settings
    if kind:
        stored_jobs.name_all(every)
    of_script = [job for job in every if stored_jobs.script_of(job) == script]
    chosen = stored_jobs.chosen(of_script, kind)
    found = [job for job, _ in chosen]
    if not found or (all(job["diverged"] for job in found) and not diverged):
        raise NoResults(_why_none(experiment, script, len(found)))

    rows = []
    for job in found:
        tags, metrics = job["tags"], job["metrics"]
        if job["diverged"]:
            metrics = {name: metrics[name] for name in COSTS if name in metrics}
        own: dict[str, Any] = {key: job[key] for key in ("job_id", "run_id", "diverged", "ended")}
        own |= {"hardware": tags.get("device", "unknown"), DECLARED: tags.get("metrics", "{}")}
        own |= {CODE: tags.get("code", ""), DATA: tags.get("data", ""), SEARCH: _draw(tags)}
        rows.append(tags | metrics | own)
    table = pd.DataFrame(rows)
    table["stale"] = [bool(evidence.change) for _, evidence in chosen]
    table["unchecked"] = [evidence.unchecked for _, evidence in chosen]
    settings = _settings(found, found, kind)
    for name, values in settings.items():
        table[name] = pd.Series(values, dtype=object if None in values else None)
    known = flags.of(kind)
    table.attrs |= {"settings": sorted(settings), "roles": roles(kind)}
    table.attrs["nested"] = [*known.when, *known.replacing]
    table.attrs["experiment"] = experiment
    if kind:
        table.attrs[DECLARED] = json.dumps(as_plain(identity.read(script).metrics))
    return table


def joined(jobs: pd.DataFrame, inputs: pd.DataFrame) -> pd.DataFrame:
    """Return jobs that are derived from others with the settings of these, another table of jobs:
    `first_model` and so on in place of `first`, the id of a job. Figures then distinguish and
    average them as any other settings; jobs without an input have none of them, but the task of the
    others. Raises NoResults if no setting is the id of such a job."""
    found, names, its_roles = jobs.copy(), {*jobs.attrs["settings"]}, dict(jobs.attrs["roles"])
    nested, rows = [*jobs.attrs.get("nested", ())], [*jobs.attrs.get(UNFINISHED, ())]
    for name in jobs.attrs["settings"]:
        known = jobs[name].isin(inputs["job_id"])
        if known.any() and (known | jobs[name].isin([None, NONE])).all():
            own = _of_inputs(jobs[name], inputs).add_prefix(f"{name}_")
            found, names = found.join(own), names - {name} | {*own}
            its_roles |= {f"{name}_{each}": role for each, role in inputs.attrs["roles"].items()}
            of_these = inputs.attrs.get("nested", ()) if known.all() else inputs.attrs["settings"]
            nested += [f"{name}_{each}" for each in of_these]
            ids = pd.Series([row.get(name) for row in rows], dtype=object)
            theirs = _of_inputs(ids, inputs).add_prefix(f"{name}_").to_dict("records")
            rows = [row | more for row, more in zip(rows, theirs, strict=True)]
    if names == {*jobs.attrs["settings"]}:
        raise NoResults("none of their settings is the id of a job in the other table")
    found.attrs = {**jobs.attrs, "settings": sorted(names), "roles": its_roles, "nested": nested}
    found.attrs[UNFINISHED] = Rows(rows)
    return found


def _of_inputs(ids: "pd.Series[Any]", inputs: pd.DataFrame) -> pd.DataFrame:
    """The settings of the inputs with these ids; where there is none, None, but for the task if all
    inputs have the same."""
    settings: pd.DataFrame = inputs.set_index("job_id")[inputs.attrs["settings"]]
    known = ids.isin(settings.index).all()
    own: pd.DataFrame = (settings if known else settings.astype(object)).reindex(ids)
    own = own.set_index(ids.index)
    if known:
        return own
    own = own.where(own.notna(), None)
    for name, role in inputs.attrs["roles"].items():
        if role == "task" and settings[name].nunique() == 1:
            own[name] = settings[name].iloc[0]
    return own


def unfinished(experiment: str, kind: type[Any] | None, script: str) -> pd.DataFrame:
    """Return the settings of the jobs that were tried and have no results, why (`state`), and what
    they cost, one row per job; `kind` is as for `jobs`."""
    every = [
        job
        for job in stored_jobs.every(experiment)
        if identity.TAG not in job["tags"] and stored_jobs.script_of(job) == script
    ]
    found = stored_jobs.unfinished(every)
    table = pd.DataFrame({"job_id": [job["job_id"] for job in found]})
    for name, values in _settings(found, every, kind).items():
        table[name] = pd.Series(values, dtype=object)
    table["state"] = [job["state"] for job in found]
    table[SEARCH] = [_draw(job["tags"]) for job in found]
    for name in COSTS:
        table[name] = [job["metrics"].get(name, np.nan) for job in found]
    return table


def tried(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return all jobs that were tried, with their `state`, numbered."""
    own = jobs.assign(state=np.where(jobs["diverged"], "diverged", "finished"))
    others = pd.DataFrame([*jobs.attrs.get(UNFINISHED, ())], dtype=object)
    tried = pd.concat([own, others] if len(others) else [own], ignore_index=True)
    for name in jobs.attrs["settings"]:
        if len({isinstance(each, str) for each in tried[name].dropna()}) > 1:  # without an order
            tried[name] = tried[name].map(str, na_action="ignore")
    for name in own.select_dtypes("number"):  # those of jobs without results are missing
        numbers = pd.to_numeric(tried[name], errors="coerce")
        if name not in jobs.attrs["settings"] or numbers.notna().all():
            tried[name] = numbers
    tried["diverged"] = tried["state"] == "diverged"
    tried.attrs = dict(jobs.attrs)
    return tried


def _draw(tags: Mapping[str, str]) -> str:
    """Which draw of a search a job is. Those of `breed` are of none: a unit trains on where another
    one ended, and one generation is shorter than the next."""
    draw = tags.get("search", "")
    return "" if draw and "length" in json.loads(draw) else draw


def spent(experiment: str) -> pd.DataFrame:
    """Return the last metrics of all attempts, whatever became of them, a row for each."""
    return pd.DataFrame([each["metrics"] for each in stored_jobs.every(experiment)])


def drawn(jobs: pd.DataFrame) -> set[str]:
    """Return the settings that a search has drawn for any of the jobs."""
    draws = [json.loads(draw) for draw in {*jobs.get(SEARCH, ())} if draw]
    return {flag[2:].replace("-", "_") for draw in draws for flag in draw["ranges"]}


def with_values(jobs: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.DataFrame:
    """Return the jobs whose settings have these values; a list means any of its values."""
    for name, value in wanted.items():
        values = value if isinstance(value, list | tuple | set) else [value]
        texts = {each for value in values for each in (str(value), flags.as_text(value))}
        own = jobs[name].map(str).isin(texts) | jobs[name].map(flags.as_text).isin(texts)
        jobs = jobs[jobs[name].isin(values) | own]
    return jobs


def only(jobs: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.DataFrame:
    """Return the jobs that ONLY names. Raises SettingsError for an unknown setting, NoResults if no
    finished job is left."""
    require_known(wanted, jobs.attrs["settings"], "ONLY in plot.py: the jobs have no setting {}")
    jobs = with_values(jobs, wanted)
    if jobs["diverged"].all():
        raise NoResults(f"no finished job has these settings of ONLY or --task: {dict(wanted)}")
    return jobs


ALONG = {
    "step": "optimizer step",
    "epoch": "epoch",
    "examples": "training examples",
    "tokens": "training tokens",
    "seconds": "training and evaluation (s)",
}
"""What curves can be drawn along, and the label of that axis."""


def curves(jobs: pd.DataFrame, key: str, along: str = "step") -> pd.DataFrame:
    """Return the history of a metric in the finished jobs: settings, `job_id`, `step` (the
    optimizer step), `value`, and `at`, the place of the step on an axis of ALONG. If a step was
    logged twice, the last value counts. Raises NoResults where no job has the metric, or if it is
    not known how many examples or tokens a step has."""
    points = _points(jobs, key)
    require_known([along], ALONG, "ALONG in plot.py: no curves along {}")
    if along in ("epoch", "seconds"):
        places = _points(jobs, {"epoch": "epoch", "seconds": "elapsed_seconds"}[along])
        points = points.merge(places.rename(columns={"value": "at"}))
    rows = points.pop("row").to_numpy()
    about = jobs[["job_id", *jobs.attrs["settings"]]].take(rows)
    found = about.reset_index(drop=True).join(points)
    if along in ("examples", "tokens"):
        if "batch_size" not in found:
            raise NoResults(f"curves along {along} need a setting batch_size")
        found["at"] = found["step"] * found["batch_size"]
    if along == "tokens":
        of_unit = jobs.reindex(columns=["tokens_per_second", "examples_per_second"]).to_numpy(float)
        each = (of_unit[:, 0] / of_unit[:, 1])[rows]
        if np.isnan(each).any():
            raise NoResults("curves along tokens need job.steps(batches, tokens=…) in all jobs")
        found["at"] *= each
    return found.assign(at=found["step"]) if along == "step" else found


def moments(curves: pd.DataFrame) -> "pd.Series[float]":
    """Return what points of several curves have in common that belong together: their step, or
    their place on the axis, as epochs have where folds differ in their number of steps."""
    return min((curves["step"], curves.get("at", curves["step"])), key=pd.Series.nunique)


def _points(jobs: pd.DataFrame, key: str, diverged: bool = False) -> pd.DataFrame:
    """The history of a metric in the finished jobs, or also in those that `diverged`: `row` (the
    number of a job's row), `step` and `value`. Numbers, since there may be a million points."""
    rows = np.flatnonzero(~jobs["diverged"] | diverged)
    found = stored_jobs.histories([*jobs["run_id"].iloc[rows]], key)
    points = pd.DataFrame(found, columns=["row", "step", "value"])
    points = points.drop_duplicates(["row", "step"], keep="last", ignore_index=True)
    if points.empty:
        raise NoResults(f"no finished job has logged {key}")
    return points.assign(row=rows[points["row"]])


def times_to(jobs: pd.DataFrame, metric: Measured) -> pd.DataFrame:
    """Return the jobs with the seconds of training and evaluation until a metric first reached its
    target (`reached`, NaN if it never did) and until the job's end (`lasted`; if it diverged, the
    end of the longest job). Jobs that continue a shorter job are left out, because their curves do
    not say when they first reached the target. Raises NoResults if none has reached it, or if some
    have finished without values of the metric."""
    jobs = jobs[~continuing(jobs)]
    seconds, values = (_points(jobs, key, diverged=True) for key in ("elapsed_seconds", metric.key))
    known = jobs["diverged"] | np.isin(np.arange(len(jobs)), values["row"])
    if not known.all():
        without = f"{metric} ({few(jobs.loc[~known, 'job_id'], 3)})"
        raise NoResults(f"{(~known).sum()} of {len(jobs)} jobs have no {without}; {CURE}")
    target = metric.declared.target
    assert target is not None
    is_there = metric.sign * values["value"] >= metric.sign * target
    there = values[is_there & np.isfinite(values["value"])]
    if there.empty:
        cure = "train longer or declare another target in METRICS"
        raise NoResults(f"no job has reached a {metric} of {metric.goal}; {cure}")
    rows = range(len(jobs))
    reached = seconds.merge(there[["row", "step"]]).groupby("row")["value"].min().reindex(rows)
    lasted = seconds.groupby("row")["value"].max().reindex(rows)
    lasted[jobs["diverged"].to_numpy()] = seconds["value"].max()
    return jobs.assign(reached=reached.to_numpy(), lasted=lasted.to_numpy())


def continuing(jobs: pd.DataFrame) -> "pd.Series[bool]":
    """Return which jobs train on where another one has ended."""
    given = jobs.get("init_from", jobs["job_id"])
    return given.map(lambda value: str(value).endswith((LAST, FORK))).astype(bool)


def _settings(
    found: list[stored_jobs.StoredJob], every: list[stored_jobs.StoredJob], kind: type[Any] | None
) -> dict[str, list[Any]]:
    """The values that jobs have of the settings of every job, converted back from the stored text
    if that works for all of them, and unless today's class of settings says that they are words."""
    # The neutral values of settings that some jobs are older than, and former names.
    older, renamed = dict[str, Any](), dict[str, str]()
    for job in sorted(every, key=lambda job: job["ended"]):  # the newest counts
        older |= json.loads(job["tags"].get("neutral", "{}"))
        renamed |= json.loads(job["tags"].get("former", "{}"))
    known = flags.of(kind)
    renamed |= {before: name for name, before in known.formerly.items()}  # newer still

    @cache
    def today(name: str) -> str:
        for _ in renamed:  # perhaps several times
            name = renamed.get(name, name)
        return name

    params = [{today(name): text for name, text in job["params"].items()} for job in found]
    settings: dict[str, list[Any]] = {}
    for name in {*older, *(today(name) for job in every for name in job["params"])}:
        texts = [each.get(name, str(older.get(name))) for each in params]
        values = [stored_jobs.fresh_value(text) for text in texts]
        declared = known[name].reader.types if name in known else None
        if declared == [str]:  # words, even `1` or `[1, 2]`
            values = [text if known.is_word(name, text) else None for text in texts]
        elif any(isinstance(value, str) for value in values):
            values = [
                v if isinstance(v, str) or (v is None and (declared or name not in each)) else text
                for v, text, each in zip(values, texts, params, strict=True)
            ]
        types = {*map(type, values)} if declared is None else {*declared}
        if bool in types and types & {int, float}:  # 1 is True for Python
            values = [v if v is None else flags.as_text(v) for v in values]
        # 1e30 is stored with all its digits, and too large for a column of integers.
        large = any(isinstance(value, int) and abs(value) >= 2**63 for value in values)
        settings[name] = [float(v) if large and isinstance(v, int) else v for v in values]
    _leave_out(settings, params, known.when)
    return settings


def _leave_out(
    settings: dict[str, list[Any]],
    params: Sequence[Mapping[str, str]],
    when: Mapping[str, Mapping[str, Sequence[Any]]],
) -> None:
    """Give settings no value in jobs in which they do not count, unless the job has stored one:
    neutral values are those of jobs that are older than a setting."""

    def plain(value: Any) -> str:
        return flags.as_text(flags.as_plain(value))

    known = [(name, *rule) for name in when if name in settings for rule in when[name].items()]
    for name, key, wanted in known * len(when):  # until a chain of them has come to its end
        fits, texts = {}, {*map(plain, wanted)}
        for value in {(type(each), each) for each in settings.get(key, ())}:
            fits[value] = plain(value[1]) in texts
        if not all(fits.values()):
            each = zip(settings[name], settings[key], params, strict=True)
            settings[name] = [
                value if fits[type(other), other] or name in own else None
                for value, other, own in each
            ]


def _why_none(experiment: str, script: str, diverged: int) -> str:
    known = stored_jobs.experiments(experiment)
    job = "job" if script == DEFAULT else f"job of {script}.py"
    if diverged:
        return f"all {diverged} {job}s in the experiment {experiment!r} diverged; see their log.txt"
    if experiment in known or not known:
        return f"no finished {job} in the experiment {experiment!r} yet"
    return f"no experiment {experiment!r} in the tracking store; it has {', '.join(known)}"


# The files of jobs: tables that they logged by `job.log_table`, and values that they kept for each
# test example by `job.keep_outputs`.

KEPT = ["run_id", "job_folder", "job_id", DATA]  # a job's columns that say what it has kept
TRUE = ("label", "target", layout.GROUP)  # outputs that are known of an example, and no result
MOST_CLASSES = 1000  # largest number of classes that a figure can show


def logged(jobs: pd.DataFrame, name: str, settings: Collection[str] = ()) -> pd.DataFrame:
    """Return the rows of the tables that finished jobs have logged under a name. The columns are
    `job_id`, these settings (or other columns of the jobs), `step` (the optimizer step), and the
    columns of the tables, which take precedence if names are the same.

    Raises NoResults if a job has logged no such table or it cannot be read, SettingsError for an
    unknown setting."""
    wanted = re.compile(rf"{layout.LOGGED}/{re.escape(name)}-(\d{{8,}})\.csv")
    found = []
    for job, about in _finished(jobs, settings):
        place, tables = (job["run_id"], job["job_folder"]), {}
        try:
            names = stored_jobs.files(*place, layout.LOGGED)
            for match in filter(None, map(wanted.fullmatch, names)):
                content = BytesIO(stored_jobs.file(*place, match[0]))
                # Words such as "None" stay words.
                table = pd.read_csv(content, keep_default_na=False, na_values=["", "nan"])
                tables[int(match[1])] = table
        except Exception as error:  # damaged files raise all kinds of errors
            why = f"the table {name} of the job {job['job_id']} cannot be read ({cause(error)})"
            raise NoResults(why) from error
        if not tables:
            why = f"the job {job['job_id']} has logged no table {name}; see job.log_table"
            raise NoResults(why)
        for step, table in sorted(tables.items()):
            columns = {k: v for k, v in {**about, "step": step}.items() if k not in table}
            found.append(table.assign(**columns)[[*columns, *table]])
    return pd.concat(found, ignore_index=True)


def outputs(jobs: pd.DataFrame, *names: str, settings: Collection[str] = ()) -> pd.DataFrame:
    """Return a row for each test example of each finished job, with the values kept for it. The
    columns are `job_id`, these settings (or other columns of the jobs), `index` (the example's
    index in its dataset, if it is certain), and the outputs with these names, by default all. If an
    example has several numbers, as in an embedding (D,), its value is an array:
    `np.stack(table["embedding"])` is (N, D).

    Raises NoResults if a job has not kept these outputs or they cannot be read, SettingsError for
    an unknown setting."""
    found = []
    for job, columns in _finished(jobs, settings):
        with _kept(job, "outputs") as arrays:
            own = [n for n in arrays if n != layout.INDEX and not n.endswith(layout.LENGTHS)]
            for name in [*([layout.INDEX] if layout.INDEX in arrays else []), *(names or own)]:
                values = arrays[name]
                if name + layout.LENGTHS in arrays:  # examples of different lengths, in a row
                    columns[name] = np.split(values, np.cumsum(arrays[name + layout.LENGTHS]))[:-1]
                else:
                    columns[name] = values if values.ndim == 1 else list(values)
        found.append(pd.DataFrame(columns))
    return pd.concat(found, ignore_index=True)


class OfExamples(NamedTuple):
    """What several jobs have kept of the same test examples."""

    values: NDArray[Any] | None  # (N, jobs); None unless all have kept one number for each
    which: tuple[NDArray[Any], ...]  # indices (N,), and true values or else the data's digest
    group: NDArray[Any] | None  # (N,), if examples belong together


def of_examples(jobs: pd.DataFrame, name: str) -> OfExamples | None:
    """Return the output of the test examples that jobs have kept under a name. None unless all jobs
    are known to have the same examples."""
    rows = jobs.reindex(columns=KEPT).map(str).itertuples(index=False, name=None)
    return _of_examples(tuple(rows), name)


@lru_cache(maxsize=64)  # several figures and tables show the same settings
def _of_examples(jobs: tuple[tuple[str, ...], ...], name: str) -> OfExamples | None:
    columns, which, group = [], [], None
    for row in jobs:
        job = dict(zip(KEPT, row, strict=True))
        with suppress(NoResults), _kept(job, "outputs") as arrays:
            index = arrays[layout.INDEX]
            order = np.argsort(index)
            true = [arrays[each][order] for each in TRUE if each in arrays]
            which.append((index[order], *(true or [np.array(job[DATA])])))
            group = arrays[layout.GROUP][order] if layout.GROUP in arrays else None
            if name in arrays and (values := arrays[name]).ndim == 1:
                columns.append(values[order].astype(float))
    same = (all(map(np.array_equal, which[0], each)) for each in which)
    if len(which) < len(jobs) or not all(same):
        return None
    every = np.stack(columns, -1) if len(columns) == len(jobs) else None
    return OfExamples(every, which[0], group)


class Predictions(NamedTuple):
    """The true and the predicted class of each test example, as numbers (N,), and the names of all
    classes (K,)."""

    label: Any
    predicted: Any
    classes: list[str]


def predictions(job: pd.DataFrame) -> Predictions:
    """Return the classes that the single job in a table predicted: the outputs `label` and
    `predicted`. Raises NoResults if it has kept none, or if they cannot be read or are not classes.
    """
    (row,) = job.to_dict("records")
    with _kept(row, "predicted classes") as arrays:
        label, predicted = arrays["label"], arrays["predicted"]
    numbers = label.dtype.kind in "iub" and predicted.dtype.kind in "iub"
    both = np.concatenate([label.ravel(), predicted.ravel()]) if numbers else np.array([-1])
    count = int(both.max(initial=0)) + 1
    shapes = label.shape == predicted.shape and label.ndim == 1
    if not shapes or both.min(initial=0) < 0 or count > MOST_CLASSES:
        where, last = f"{layout.PREDICTIONS} of the job {row['job_id']}", MOST_CLASSES - 1
        raise NoResults(f"{where} does not have a class from 0 to {last} for each example")
    return Predictions(label, predicted, classes(job, count))


def classes(job: pd.DataFrame, count: int) -> list[str]:
    """Return the names of at least this many classes, from the spec of the single job in a table,
    or else their numbers."""
    (row,) = job.to_dict("records")
    try:
        about = stored_jobs.file(row["run_id"], row["job_folder"], layout.SETTINGS)
        names = json.loads(about)["spec"]["classes"]
    except (OSError, ValueError, KeyError, TypeError):
        names = []
    return [str(name) for name in names] if len(names) >= count else [str(i) for i in range(count)]


@cache
def sizes(folder: str) -> dict[str, int]:
    """Return the numbers of training, validation and test examples of the job with a folder; none
    if it is not on this machine."""
    about = read_json(stored_jobs.folder_of(folder) / layout.SETTINGS)
    return {part: int(count) for part, count in about.get("examples", {}).items()}


def audits(jobs: pd.DataFrame) -> dict[str, str]:
    """Return what `jobs.py audit` found for jobs, `same` or `different`, by their ids; nothing for
    jobs that it has not run again, or whose folders are not on this machine."""
    each = zip(jobs["job_id"], jobs["job_folder"], strict=True)
    return {str(job): status for job, folder in each if (status := _audit(str(folder)))}


@cache
def _audit(folder: str) -> str:
    """What was found for the job with a folder; empty if it was not run again."""
    return str(read_record(stored_jobs.folder_of(folder) / layout.AUDIT).get("status", ""))


def _finished(
    jobs: pd.DataFrame, settings: Collection[str]
) -> list[tuple[dict[Any, Any], dict[str, Any]]]:
    """The rows of the jobs that finished, each with its `job_id` and these settings."""
    require_known(settings, [*map(str, jobs)], "the jobs have no setting {}")
    finished = jobs[~jobs["diverged"]].to_dict("records")
    if not finished:
        raise NoResults("none of the jobs has finished")
    return [(job, {name: job[name] for name in ("job_id", *settings)}) for job in finished]


@contextmanager
def _kept(job: Mapping[Any, Any], what: str) -> Iterator[Mapping[str, Any]]:
    """Open what a job has kept: arrays, by name."""
    try:
        file = stored_jobs.file(job["run_id"], job["job_folder"], layout.PREDICTIONS)
        with np.load(BytesIO(file)) as arrays:
            if arrays.zip.comment.decode() not in ("", job["job_id"]):
                raise ValueError(f"{layout.PREDICTIONS} is of another job")
            yield arrays
    except Exception as error:  # damaged files raise all kinds of errors
        why = f"no {what} of the job {job['job_id']} can be read"
        raise NoResults(f"{why} ({cause(error)}); see job.keep_outputs in run.py") from error
