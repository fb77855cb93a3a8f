"""`python jobs.py publish` and `adopt`: results in a folder, and into another clone."""

import gzip
import io
import json
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import servers
import sqlalchemy
from faults import POINTS, Project, curves, job_of, one_line, same, succeeded
from labjobs.files import read_record, write_record

SHORT = ("--epochs", "2", "--batch-size", "256", "--quiet")
PERSON = "someresearcher"


@pytest.fixture(scope="module")
def published(project, tmp_path_factory):
    """A project with two jobs, and what it has published of them."""
    project.env["LOGNAME"] = PERSON  # by which Python knows a user
    for seed in "01":
        project.finish(*SHORT, "--seed", seed)
    succeeded(project.do("python", "plot.py", "--format", "png"))
    folder = tmp_path_factory.mktemp("published") / "results"
    words = ("publish", "figures/learning-curves.png", str(folder), "--weights")
    said = succeeded(project.do("python", "jobs.py", *words)).stdout
    assert said.startswith(f"{folder}: 2 jobs, ") and said.count("\n") == 1, said
    return folder


@pytest.fixture
def folder(published, tmp_path):
    return Path(shutil.copytree(published, tmp_path / "results"))


def adopt(project: Project, source: Path, *flags: str):
    return project.do("python", "jobs.py", "adopt", str(source), *flags)


@pytest.mark.full
def test_definitions_that_were_added_while_a_job_ran_are_published(project, published, tmp_path):
    """As Python 3.12 finds them: their names stand behind the digest of the code."""
    own = project.clone(tmp_path / "project")
    (job, _) = sorted(path.name for path in own.root.glob("runs/[0-9a-f]*"))
    for name in ("settings.json", "outcome.json"):
        (path,) = own.root.glob(f"runs/{job}/*/{name}")
        about = read_record(path)
        write_record(path, {**about, "code": f"{about['code']} models:block"})
    succeeded(own.do("python", "jobs.py", "publish", job, str(tmp_path / "sent")))
    assert (tmp_path / f"sent/runs/.code/{about['code']}.json").is_file()


@pytest.mark.full
def test_adopted_jobs_are_finished_with_the_same_bits(project, fresh, published, tmp_path):
    archive = shutil.make_archive(str(tmp_path / "sent"), "gztar", published.parent, "results")
    said = succeeded(adopt(fresh, Path(archive))).stdout
    assert said.startswith("adopted 2 jobs\n")
    for seed in "01":
        done = succeeded(fresh.run(*SHORT, "--seed", seed))
        job = job_of(done)
        assert len(fresh.runs(job)) == 1  # nothing was trained
        theirs, ours = project.stored(job), fresh.stored(job)
        assert ours == theirs and ours
        assert same(fresh.weights(job), project.weights(job))
    assert succeeded(adopt(fresh, Path(archive))).stdout.startswith(
        "adopted 0 jobs; 2 already here\n"
    )
    succeeded(fresh.do("python", "plot.py", "--format", "png"))


@pytest.mark.full
def test_weights_that_are_published_later_are_adopted_later(project, fresh, published, tmp_path):
    job = next(path.name for path in published.glob("runs/" + "[0-9a-f]" * 12))
    succeeded(project.do("python", "jobs.py", "publish", job, str(tmp_path / "bare")))
    assert succeeded(adopt(fresh, tmp_path / "bare")).stdout.startswith("adopted 1 job\n")
    lacks = one_line(fresh.do("python", "jobs.py", "export-model", job), 1)
    assert "it was adopted without them; adopt it again, published with --weights" in lacks
    done = succeeded(adopt(fresh, published, "--json", "--spot-check", "1"))
    said = done.stderr.splitlines()[0]
    assert said == "adopted 1 job; 1 already here; 1 with further files now"
    about = json.loads(done.stdout)
    assert (len(about["adopted"]), about["already"], about["completed"]) == (1, [job], [job])
    assert same(fresh.weights(job), project.weights(job))
    succeeded(fresh.run(*SHORT, "--init-from", job))


@pytest.mark.full
def test_other_programs_can_read_what_commands_print(project, published, tmp_path):
    """`publish`, `sync` and `accept`, of jobs that become stale."""
    own = project.clone(tmp_path / "project")

    def answer(*words: str) -> Any:
        return json.loads(succeeded(own.do("python", "jobs.py", *words, "--json")).stdout)

    jobs = sorted(path.name for path in own.root.glob("runs/[0-9a-f]*"))
    sent = answer("publish", *jobs, str(tmp_path / "sent"))
    assert (sent["jobs"], sent["stale"]) == (jobs, []) and sent["files"]
    first, again = answer("sync"), answer("sync")  # the copy of the store is another one
    assert [each.split("/")[0] for each in first["sent"]] == jobs
    assert again == {"sent": [], "missing": 0}
    own.edit("models.py", "nn.ReLU()", "nn.ReLU(False)")
    because = ("accept", "--because", "a test")
    (accepted,) = answer(*because)["accepted"]
    assert accepted == {"definition": "models.MLP", "jobs": jobs, "replayed": {}}
    assert answer(*because) == {"accepted": [], "jobs": [], "running": []}


@pytest.mark.long
def test_jobs_are_adopted_into_postgresql(project, fresh, published):
    with servers.postgres() as database:
        fresh.env["MLFLOW_TRACKING_URI"] = database.uri
        assert succeeded(adopt(fresh, published)).stdout.endswith("\n2 of 2 attempts sent\n")
        journals = [*fresh.root.glob("runs/*/*/metrics.jsonl")]
        written = [path.stat().st_mtime_ns for path in journals]
        jobs = [job_of(succeeded(fresh.run(*SHORT, "--seed", seed))) for seed in "01"]
        assert [path.stat().st_mtime_ns for path in journals] == written  # nothing was trained
        engine = sqlalchemy.create_engine(database.uri, poolclass=sqlalchemy.NullPool)
        query = sqlalchemy.text(POINTS.replace("?", ":job"))
        with engine.connect() as store:
            found = {job: [*map(tuple, store.execute(query, {"job": job}))] for job in jobs}
        states = {job: row["state"] for job, row in fresh.listed().items()}
        assert states == dict.fromkeys(jobs, "finished")
    for job, points in found.items():
        assert curves(points) == project.stored(job) != {}
        assert same(fresh.weights(job), project.weights(job))


@pytest.mark.full
def test_an_unfinished_attempt_of_ones_own_is_named_and_stays(fresh, folder):
    job = job_of(succeeded(fresh.run(*SHORT, "--seed", "0", "--pause-after", "1e")))
    done = adopt(fresh, folder)
    assert done.returncode == 1 and done.stdout.startswith("adopted 1 job; 1 already here\n")
    name = f"{job}/{fresh.folder(job).name}"
    assert f"{name} is already here, but not finished: continue it, or remove it\n" in done.stderr
    succeeded(fresh.do("python", "jobs.py", "rm", job, "--anyway"))
    assert succeeded(adopt(fresh, folder)).stdout.startswith("adopted 1 job; 1 already here\n")
    assert job_of(fresh.run(*SHORT, "--seed", "0")) == job and len(fresh.runs(job)) == 1


def test_what_is_published_names_no_person_and_no_folder(project, published):
    texts = {path: path.read_bytes() for path in published.rglob("*") if path.is_file()}
    unpacked = [gzip.decompress(data) for p, data in texts.items() if p.suffix == ".gz"]
    for each in (*texts.values(), *unpacked):
        assert PERSON.encode() not in each
        assert str(project.root).encode() not in each
    assert not [*published.rglob("*log.txt")] and [*published.rglob("best.pt")]


def test_a_page_shows_the_figure_and_the_jobs(published):
    page = (published / "index.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    ids = {row[0] for row in data["rows"]}
    assert ids == {path.name for path in published.glob("runs/" + "[0-9a-f]" * 12)}
    assert (data["curve"], {*map(len, data["curves"].values())}) == ("val_loss", {2})
    assert page.count("data:image/png;base64,") == 1


def relisted(folder: Path) -> None:
    """Make files.json fit what is in the folder, as somebody who means harm would."""
    walked = os.walk(folder / "runs", followlinks=True)
    files = [Path(where) / name for where, _, names in walked for name in names]
    sums = {str(p.relative_to(folder)): sha256(p.read_bytes()).hexdigest() for p in files}
    (folder / "files.json").write_text(json.dumps({"schema": 1, "files": sums}))


class Code:
    def __reduce__(self):
        return (print, ("run",))


def of_attempt(folder: Path, name: str) -> Path:
    return next(folder.glob(f"runs/*/*/{name}"))


def of_jobs(folder: Path, name: str) -> list[Path]:
    """A file of each of the two jobs."""
    return sorted(folder.glob(f"runs/*/*/{name}"))


def shortened(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def without_its_end(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))


def linked(path: Path, elsewhere: Path) -> None:
    """Move it elsewhere, and leave a link to it."""
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def outside(folder: Path) -> None:
    listed = json.loads((folder / "files.json").read_text())
    (folder / "run.py").write_text("print('run')")
    listed["files"]["runs/../run.py"] = sha256((folder / "run.py").read_bytes()).hexdigest()
    (folder / "files.json").write_text(json.dumps(listed))


def of_terminals(folder: Path) -> None:
    path = of_attempt(folder, "outcome.json")
    about = {k: v for k, v in read_record(path).items() if k != "crc"}
    write_record(path, about | {"said": "test_accuracy 0.9\x1b]0;title\x07"})


def with_a_second_attempt_of_other_settings(folder: Path) -> None:
    one, other = of_jobs(folder, "settings.json")
    second = Path(shutil.copytree(one.parent, one.parents[1] / "00000000"))
    about = read_record(one) | {"settings": read_record(other)["settings"]}
    write_record(second / "settings.json", about)


def kept(folder: Path, **arrays: np.ndarray) -> None:
    np.savez_compressed(of_attempt(folder, "predictions.npz"), **arrays)


HARMS: dict[str, Callable[[Path], object]] = {
    "code": lambda folder: of_attempt(folder, "best.pt").write_bytes(pickle.dumps(Code())),
    "objects": lambda folder: kept(folder, label=np.array([Code()], dtype=object)),
    "a bomb": lambda folder: kept(folder, label=np.zeros(200_000_000, np.int8)),
    "unfinished": lambda folder: of_attempt(folder, "outcome.json").unlink(),
    "a link": lambda folder: linked(of_attempt(folder, "settings.json"), folder / "elsewhere"),
    "behind a link": lambda folder: linked(
        of_attempt(folder, "settings.json").parents[1], folder / "elsewhere"
    ),
    "of terminals": of_terminals,
    "a second attempt of other settings": with_a_second_attempt_of_other_settings,
    "a note of uploads": lambda folder: (
        of_attempt(folder, "settings.json").with_name("sent.json").write_text("{}")
    ),
    "unknown": lambda folder: (folder / "runs" / "run.py").write_text("print('run')"),
    "of another job": lambda folder: shutil.copy(*of_jobs(folder, "settings.json")),
    "shortened": lambda folder: without_its_end(of_attempt(folder, "metrics.jsonl")),
    "weights of another job": lambda folder: shutil.copy(*of_jobs(folder, "best.pt")),
    "damaged outputs": lambda folder: shortened(of_attempt(folder, "predictions.npz"), 500),
}
"""Changes that the list of files knows of: somebody has made it anew."""

DAMAGES: dict[str, Callable[[Path], object]] = {
    "changed": lambda folder: of_attempt(folder, "outcome.json").write_text("{}"),
    "missing": lambda folder: of_attempt(folder, "settings.json").unlink(),
    "outside": outside,
    "without a list": lambda folder: (folder / "files.json").write_text("[]"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_could_do_harm_is_refused(fresh, folder, harm):
    HARMS[harm](folder)
    relisted(folder)
    refused(fresh, folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_as_it_was_published_is_refused(fresh, folder, damage):
    DAMAGES[damage](folder)
    refused(fresh, folder)


def test_a_folder_of_another_version_is_refused(fresh, folder):
    about = json.loads((folder / "files.json").read_text())
    (folder / "files.json").write_text(json.dumps(about | {"schema": 99}))
    assert "files.json is of another version of the engine" in one_line(adopt(fresh, folder), 1)


@pytest.mark.full
def test_only_what_is_listed_is_copied_and_no_mode(fresh, folder):
    listed = of_attempt(folder, "settings.json")
    listed.chmod(0o4755)  # setuid: it would run with the rights of its owner
    (listed.parent / "logged").mkdir()
    (listed.parent / "logged" / "key").symlink_to("/etc/hostname")
    succeeded(adopt(fresh, folder))
    assert not [*fresh.root.glob("runs/*/*/logged")]
    assert all(
        path.stat().st_mode & 0o7111 == 0 for path in fresh.root.glob("runs/*/*/settings.json")
    )
    assert "--spot-check -1: must be" in one_line(adopt(fresh, folder, "--spot-check=-1"), 2)


def test_half_an_archive_is_refused(fresh, published, tmp_path):
    sent = Path(shutil.make_archive(str(tmp_path / "sent"), "gztar", published.parent, "results"))
    sent.write_bytes(sent.read_bytes()[:-2000])
    refused(fresh, sent)


def refused(project: Project, source: Path) -> None:
    done = adopt(project, source)
    one_line(done, 1)
    assert "run\n" not in done.stdout
    assert not [*project.root.glob("runs/" + "[0-9a-f]" * 12)], done


def member(name: str, content: bytes = b"", **about: object) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in about.items():
        setattr(info, field, value)
    return info, io.BytesIO(content)


HARMFUL = {
    "above": member("results/../../../outside.txt", b"out"),
    "link": member("results/runs/link", type=tarfile.SYMTYPE, linkname="/etc"),
    "hard link": member("results/hard", type=tarfile.LNKTYPE, linkname="../../etc/passwd"),
    "device": member("results/device", type=tarfile.CHRTYPE),
    "bomb": member("results/zeros", bytes(150_000_000)),
}


@pytest.mark.parametrize("harm", HARMFUL)
def test_archives_that_would_write_elsewhere_or_too_much_are_refused(fresh, tmp_path, harm):
    about, content = HARMFUL[harm]
    content.seek(0)
    with tarfile.open(tmp_path / "sent.tar.gz", "w:gz") as archive:
        archive.addfile(*member("results/files.json", b'{"schema": 1, "files": {}}'))
        archive.addfile(about, content)
    refused(fresh, tmp_path / "sent.tar.gz")
    assert not [*tmp_path.parent.rglob("outside.txt")]


@pytest.mark.full
def test_a_job_without_monitor_and_split_is_published_with_its_results(fresh, tmp_path):
    job = fresh.finish(*SHORT, "--monitor", "none")
    about = read_record(path := fresh.folder(job) / "settings.json")
    about.pop("split")  # as of a job that splits nothing
    write_record(path, about)
    (tmp_path / "new.part").mkdir()  # somebody else's
    succeeded(fresh.do("python", "jobs.py", "publish", job, str(tmp_path / "new")))
    page = (tmp_path / "new" / "index.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert data["curves"] == {} and data["columns"][0] == "job_id" and len(data["columns"]) > 2
    assert (tmp_path / "new.part").exists()
    (fresh.folder(job) / "logged").mkdir()
    (fresh.folder(job) / "logged" / "where.csv").write_text(f"path\n{fresh.root}/data\n")
    said = succeeded(fresh.do("python", "jobs.py", "publish", job, str(tmp_path / "named"))).stdout
    where = f"runs/{job}/{fresh.folder(job).name}/logged/where.csv"
    assert said.splitlines()[1:] == [
        f"{where} names {fresh.root}: part of a setting, the code or an output"
    ]
    derived = fresh.finish(*SHORT, "--init-from", job)
    said = succeeded(
        fresh.do("python", "jobs.py", "publish", derived, str(tmp_path / "both"))
    ).stdout
    assert said.startswith(f"{tmp_path}/both: 1 job with 1 input, ")
    shutil.rmtree(fresh.root / "runs" / job)
    done = fresh.do("python", "jobs.py", "publish", derived, str(tmp_path / "new" / "other"))
    assert one_line(done, 1).endswith("cannot be published: records are missing or damaged")
    done = fresh.do("python", "jobs.py", "publish", derived, "/proc/new")
    assert one_line(done, 1).startswith("jobs.py: /proc/.new.")
    assert not [*tmp_path.glob("new/*other*")]


def test_what_cannot_be_published_is_said(project, published, tmp_path):
    def publish(*words: str) -> str:
        done = project.do("python", "jobs.py", "publish", *words)
        assert not (tmp_path / "new").exists()
        return one_line(done, done.returncode)

    job = next(path.name for path in published.glob("runs/" + "[0-9a-f]" * 12))
    assert "already exists" in publish(job, str(published))
    assert "there is no job" in publish("ffffffffffff", str(tmp_path / "new"))
    paused = job_of(project.run(*SHORT, "--seed", "7", "--pause-after", "1e"))
    assert f"job {paused} cannot be published: it has not finished" in publish(
        job, paused, str(tmp_path / "new")
    )
    within = project.root / "runs/published"
    assert "is in the folder of runs; name one outside" in publish(job, str(within))
    for lost in (next(project.root.glob("runs/.code/*.tar.gz")), project.folder(job) / "best.pt"):
        aside = lost.rename(lost.with_suffix(".away"))
        said = publish(job, str(tmp_path / "new"), "--weights")
        assert f"{job}/" in said and "cannot be published: its " in said
        aside.rename(lost)
    damaged = project.folder(job) / "predictions.npz"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    assert "predictions.npz is damaged" in publish(job, str(tmp_path / "new"))
