"""A job that goes on with a damaged journal: real training, and a real store of the points."""

import shutil
import signal

import stored
from attempts import At, Ended, Toy
from labjobs import layout
from labjobs.job import journal
from labjobs.tracking.courier import Delivery
from toy import STEPS

STOP, END = 5, 12
"""The step of the checkpoint, and the last step in the journal."""


def killed(toy: Toy) -> Ended:
    """A job that was killed after step 12 and goes on from its checkpoint of step 5."""
    first = toy.run("parts", stop=At("step", STOP))
    assert first.status == 128 + signal.SIGTERM, first.log
    shutil.copy(first.folder / "last.pt", first.folder.parent)
    left = toy.run("parts", stop=At("step", END - STOP))
    shutil.copy(first.folder.parent / "last.pt", left.folder)
    (left.folder / "outcome.json").unlink()
    return left


def damage(left: Ended, step: int) -> None:
    """Turn over a bit of the point of a step."""
    path = left.folder / layout.JOURNAL
    whole = path.read_bytes()
    assert whole.count(b'"step": %d,' % step) >= 1
    path.write_bytes(whole.replace(b'"step": %d,' % step, b'"step": %d,' % (step ^ 1), 1))


def curves_left(left: Ended) -> dict[str, list[tuple[int, float]]]:
    """The curves in what is whole of a journal."""
    mended = left.folder.parent / "mended"
    shutil.copytree(left.folder, mended / left.folder.name)
    journal.Journal(mended / left.folder.name, 1)
    return Ended(0, "", mended / left.folder.name).curves()


def test_points_after_the_checkpoint_are_measured_again(toy):
    whole = toy.run("whole")
    left = killed(toy)
    damage(left, STOP + 3)
    assert STOP + 3 not in dict(curves_left(left)["train_loss"])
    again = toy.run("parts")
    assert "has lost 1 of its" in again.log and "what was lost is measured again" in again.log
    assert again.content() == whole.content()


def test_points_before_the_checkpoint_are_missing_and_that_is_said(toy):
    whole = toy.run("whole")
    left = killed(toy)
    damage(left, STOP - 2)
    again = toy.run("parts")
    assert "what was lost is missing in the curves" in again.log
    wanted = whole.curves()
    wanted["train_loss"].pop(STOP - 3)
    assert again.curves()["train_loss"] == wanted["train_loss"]
    assert again.content()[:2] == whole.content()[:2]


def test_a_point_that_the_store_has_is_not_sent_again(toy, tmp_path, monkeypatch):
    """Measured again it has another time, so that MLflow would keep both."""
    (tmp_path / "store").mkdir()
    store = stored.fresh(tmp_path / "store")
    experiment = store.client.create_experiment("toy", (tmp_path / "files").as_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setattr("labjobs.tracking.mlflow_store.prepare", lambda: experiment)
    left = killed(toy)
    Delivery(left.folder).send()
    damage(left, STOP + 3)
    again = toy.run("parts")
    Delivery(again.folder).send(over=True)
    (run,) = store.client.search_runs([experiment])
    history = store.client.get_metric_history(run.info.run_id, "train_loss")
    assert sorted(point.step for point in history) == list(range(1, 3 * STEPS + 1))
    assert "measured again" in run.data.tags["damaged"]
    assert run.info.status == "FINISHED"
