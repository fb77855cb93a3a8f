"""Copies in TensorBoard, Trackio and Weights & Biases, as these read them: the journal, each point
once, whichever process is killed. The tests need `uv pip install --group trackers`.
"""

import json
import random
import re
import shutil
import signal
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from faults import OFTEN, Project, courier_of, ended, job_of, kill, lines_in, succeeded, wait_until
from labjobs.tracking import costs

pytestmark = pytest.mark.full

SHORT = ("--epochs", "2", "--log-every", "1", "--quiet")
LONG = ("--epochs", "60", "--log-every", "1", "--quiet", *OFTEN)

Points = Counter[tuple[object, ...]]
"""(metric, step, value, time in milliseconds) of each point, and how often it is there."""


@pytest.fixture
def tracked(fresh: Project, tmp_path: Path) -> Project:
    """A project with all trackers, whose jobs are copied all the time and log an image."""
    for package in ("tensorboard", "trackio", "wandb"):
        pytest.importorskip(package)
    courier = "labjobs/tracking/courier.py"
    fresh.edit(courier, "LIVE = 30.0", "LIVE = 0.1")
    fresh.edit(courier, "SELDOM = 50.0", "SELDOM = 0.1")
    image = 'job.log_image("batch", part[0][:4])\n        metrics = evaluate('
    fresh.edit("run.py", "metrics = evaluate(", image)
    fresh.env |= {"TRACKERS": "wandb, TensorBoard,trackio", "TRACKIO_DIR": str(tmp_path / "db")}
    fresh.env |= {"HOME": str(tmp_path)}  # nobody is logged in
    return fresh


def journalled(attempt: Path) -> Points:
    return Counter(
        (name, line["step"], value, line["time"])
        for line in lines_in(attempt)
        for name, value in line.get("metrics", {}).items()
    )


def images(attempt: Path) -> list[int]:
    """The steps of an attempt's images."""
    return sorted(int(path.stem.split("-")[1]) for path in (attempt / "logged").glob("*.png"))


def tensorboard(project: Project) -> tuple[Points, list[int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (project.root / "tensorboard").iterdir()
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0}).Reload()
    tags = found.Tags()
    points = Counter(
        (tag, point.step, point.value, round(point.wall_time * 1000))
        for tag in tags["scalars"]
        for point in found.Scalars(tag)
    )
    return points, [image.step for tag in tags["images"] for image in found.Images(tag)]


def as_float32(points: Points) -> Points:
    """Points as TensorBoard has them."""
    near: Points = Counter()
    for (name, step, value, at), count in points.items():
        near[name, step, struct.unpack("f", struct.pack("f", value))[0], at] += count
    return near


ALL_LOGS = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage as Storage
(run,) = Storage.get_run_records(sys.argv[1])
logs = Storage.get_logs(sys.argv[1], run["name"], max_points=None, run_id=run["id"])
config = Storage.get_run_config(sys.argv[1], run["name"], run["id"])
print(json.dumps({"logs": logs, "config": config}))
"""


def trackio(project: Project) -> dict[str, Any]:
    """What Trackio has of the only run; by a process, since it reads its folder's name once."""
    (line,) = project.printed(ALL_LOGS, "my_project")
    return dict(json.loads(line))


def points_of(rows: list[dict[str, Any]], time_of: Callable[[dict[str, Any]], float]) -> Points:
    """The points of rows as Trackio and W&B have them."""
    return Counter(
        (name, row["step"], float(value), round(time_of(row) * 1000))
        for row in rows
        for name, value in row.items()
        if name not in ("step", "timestamp") and name[0] != "_" and not isinstance(value, dict)
    )


def records(file: Path) -> Iterator[Any]:
    """The records of an offline file of W&B: a log of LevelDB's with 32 KiB blocks
    (github.com/google/leveldb, doc/log_format.md)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, part = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole or the last part of a record
            yield Record.FromString(part)
            part = b""


def wandb(project: Project, attempt: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of all folders that W&B has of an attempt's run, in their order; the last config."""
    rows, config, runs = [], {}, set()
    with (attempt / "metrics.jsonl").open() as file:
        journal = json.loads(file.readline())["start"]["journal"]
    for path in sorted((project.root / "wandb").glob(f"offline-run-*-{journal}/*.wandb")):
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                row: dict[str, Any] = {}
                for item in record.history.item:
                    if len(item.nested_key) == 1:
                        row[item.nested_key[0]] = json.loads(item.value_json)
                    else:
                        row[item.nested_key[0]] = {}
                rows.append(row)
            elif kind == "run":
                runs.add(record.run.run_id)
                update = record.run.config.update
                config |= {item.key: json.loads(item.value_json) for item in update}
    assert runs == {journal}
    assert [row["_step"] for row in rows] == sorted({row["_step"] for row in rows})
    return rows, config


def without_costs(points: Points) -> Points:
    """The points of the journal alone. A finished job's costs are there once."""
    names = Counter(name for name, *_ in points if name in costs.NAMES)
    assert names["cpu_hours"] == 1 and max(names.values()) == 1
    return Counter({point: n for point, n in points.items() if point[0] not in costs.NAMES})


def assert_copied(project: Project, attempt: Path) -> None:
    """Each tracker has one run with the job's points and images, each once."""
    wanted, shown = journalled(attempt), images(attempt)
    assert shown
    points, steps = tensorboard(project)
    assert (without_costs(points), sorted(steps)) == (as_float32(wanted), shown)
    stored = trackio(project)["logs"]

    def logged(row: dict[str, Any]) -> float:
        return time_of(row["timestamp"])

    assert without_costs(points_of(stored, logged)) == wanted
    assert [row["step"] for row in stored if isinstance(row.get("batch"), dict)] == shown
    rows, _ = wandb(project, attempt)
    assert without_costs(points_of(rows, lambda row: row["_timestamp"])) == wanted
    assert [row["step"] for row in rows if "batch" in row] == shown


def time_of(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def disturb(project: Project, chance: random.Random) -> tuple[str, bool]:
    """Start the job, and kill it and its courier at random instants; who was killed, and whether
    the job has ended before."""
    job = project.start(*LONG)
    wait_until(lambda: job.poll() is not None or courier_of(job) is not None, pause=0.001)
    courier = courier_of(job) or 0

    def points() -> int:
        return sum(file.read_text().count('"lr"') for file in runs.glob("*/*/metrics.jsonl"))

    runs, segments = project.root / "runs", project.root / "wandb"
    begun, wait = time.monotonic(), chance.uniform(0, 4)
    most = points() + chance.randrange(1, 150)
    if chance.random() < 0.7:
        wait_until(lambda: job.poll() is not None or points() > most, pause=0.001)
    else:
        wait_until(lambda: job.poll() is not None or time.monotonic() > begun + wait, pause=0.001)
    over = job.poll() is not None
    whom = chance.choice(["job", "both", "courier, then job", *3 * ["job, then courier"]])
    first, second = (courier, job.pid) if whom.startswith("courier") else (job.pid, courier)
    ways: dict[str, Callable[[], bool]] = {
        "later": lambda: time.monotonic() > begun + wait,
        "W&B": lambda: any(segments.glob(".*/wandb/*/*.wandb")),
        "W&B is done": lambda: any(runs.glob("*/*/wandb.json.part")),
    }
    way = chance.choice([*ways]) if whom == "job, then courier" else "later"
    if not over:
        kill(first)
        if "then" in whom:
            begun, wait = time.monotonic(), chance.uniform(0, 3)
            last = begun + 10
            wait_until(lambda: ways[way]() or time.monotonic() > last, pause=0.001)
        if whom != "job" and second:
            kill(second)
    done = ended(job)
    assert done.returncode in {0, 3, -signal.SIGKILL}, done
    return ("too late" if over else f"{whom}, {way}"), done.returncode in {0, 3}


def finished(project: Project, *flags: str) -> str:
    """Run a job to its end, and until everything is uploaded; returns its id."""
    done = project.run(*flags)
    if done.returncode == 3:  # on a slow machine, not all is copied within 30 s
        succeeded(project.do("python", "jobs.py", "sync"))
        done = project.run(*flags)
    return job_of(succeeded(done))


def assert_ends_copied(project: Project) -> None:
    finished(project, *LONG)
    (attempt,) = (project.root / "runs").glob("*/*/")
    assert_copied(project, attempt)


def test_killed_again_and_again(tracked, pytestconfig):
    """The job, its courier or both, at any instant, such as while a copy is made."""
    chance, hit = random.Random(36), Counter[str]()
    while hit.total() - hit["too late"] - hit["ends"] < pytestconfig.getoption("kills"):
        when, over = disturb(tracked, chance)
        hit[when] += 1
        if over:
            assert_ends_copied(tracked)
            hit["ends"] += 1
            for name in ("runs", "tensorboard", "wandb", tracked.env["TRACKIO_DIR"]):
                shutil.rmtree(tracked.root / name)
            (tracked.root / "mlflow.db").unlink()
    print("\n", dict(sorted(hit.items())))
    assert_ends_copied(tracked)


def test_a_job_s_settings_tags_and_files(tracked):
    """The costs of a finished job are there as well, once."""
    job = finished(tracked, *SHORT, "--lr", "0.01")
    attempt = tracked.folder(job)
    assert_copied(tracked, attempt)
    settings = json.loads((attempt / "settings.json").read_text())["settings"]
    for config in (trackio(tracked)["config"], wandb(tracked, attempt)[1]):
        facts = config.pop("labjobs")
        assert {name: config[name] for name in settings} == settings
        assert (facts["job_id"], facts["status"], facts["script"]) == (job, "FINISHED", "run")
        assert "predictions.npz" in facts["files"]
    hyperparameters, texts = of_tensorboard(tracked)
    assert hyperparameters["lr"] == 0.01 and hyperparameters.keys() == settings.keys()
    assert texts["status"] == "FINISHED" and texts["script"] == "run"
    assert texts["file predictions.npz"] == "predictions.npz"


def of_tensorboard(project: Project) -> tuple[dict[str, object], dict[str, str]]:
    """The hyperparameters and the texts that TensorBoard has of the only run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    (folder,) = (project.root / "tensorboard").iterdir()
    found = EventAccumulator(str(folder)).Reload()
    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = HParamsPluginData.FromString(content).session_start_info.hparams
    texts = {
        tag: found.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
        for tag in found.Tags()["tensors"]
        if not tag.startswith("_")
    }
    return {name: getattr(v, v.WhichOneof("kind")) for name, v in values.items()}, texts


class Service:
    """A stand-in for the server of W&B: it stores the lines that it receives, each at the line
    number that comes with it, and says how many it has."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        service = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                data = json.loads(body) if body.startswith(b"{") else {}  # no telemetry
                for name, file in data.get("files", {}).items():
                    if name == "wandb-history.jsonl":
                        service.lines[file["offset"] :] = map(json.loads, file["content"])
                answer = {"data": service.answer(data)} if "query" in data else {}
                self.reply(json.dumps(answer).encode())

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.reply(b"")

            def reply(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, data: dict[str, Any]) -> dict[str, Any]:
        if "upsertBucket" in data["query"]:
            project = {"id": "1", "name": "my_project", "entity": {"id": "1", "name": "lab"}}
            last = [json.dumps(line) for line in self.lines[-1:]]
            bucket = {"id": "1", "name": data["variables"]["name"], "displayName": ""}
            bucket |= {"historyLineCount": len(self.lines), "historyTail": json.dumps(last)}
            bucket |= {"config": "{}", "project": project, "summaryMetrics": "{}"}
            return {"upsertBucket": {"bucket": bucket, "inserted": not self.lines}}
        if "createRunFiles" in data["query"]:
            root = f"http://127.0.0.1:{self.server.server_port}/"
            files = [{"name": n, "uploadUrl": root + n} for n in data["variables"]["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        return {}


@pytest.mark.long
def test_what_wandb_uploads_between_and_after_the_parts_of_a_job(tracked):
    """`wandb sync` adds to a run, so what it has uploaded must not be offered again."""
    service = Service()
    address = f"http://127.0.0.1:{service.server.server_port}"
    tracked.env |= {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40}
    upload = (str(Path(sys.executable).with_name("wandb")), "sync", "--yes")
    succeeded(tracked.run(*SHORT, "--pause-after", "10"))
    wait_until(lambda: any((tracked.root / "wandb").glob("offline-run-*")))  # a paused job does not
    succeeded(tracked.do(*upload))
    uploaded = len(service.lines)
    assert uploaded >= 10
    job = finished(tracked, *SHORT)
    for _ in range(2):
        (tracked.folder(job) / "sent.json").unlink()
        succeeded(tracked.do("python", "jobs.py", "sync"))
        succeeded(tracked.do(*upload))
    assert len(service.lines) > uploaded
    points = points_of(service.lines, lambda row: row["_timestamp"])
    assert without_costs(points) == journalled(tracked.folder(job))


@pytest.mark.long
def test_sync_copies_what_ran_before_and_what_force_has_replaced_is_gone(tracked):
    """In W&B, what was replaced stays a run of its own: it may have been uploaded."""
    job = finished(tracked, *SHORT)
    tracked.env["TRACKERS"], names = "", tracked.env["TRACKERS"]
    tracked.finish(*SHORT, "--force")
    tracked.env["TRACKERS"] = names
    done = succeeded(tracked.do("python", "jobs.py", "sync"))
    assert re.fullmatch(rf"job {job}/\w+ sent\n1 of 1 attempts sent\n", done.stdout)
    assert_copied(tracked, tracked.folder(job))
