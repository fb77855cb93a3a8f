"""Checkpoint files: whole or absent, data and no code, written beside training."""

import errno
import hashlib
import os
import stat
import threading
import zipfile
from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from labjobs.errors import JobError
from labjobs.training import checkpoints
from torch import nn

CPU = torch.device("cpu")


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    weights = checkpoints.on_host(model.state_dict())
    others = {"epoch": 3, "settings": {"lr": 0.1, "note": "é"}}
    checkpoints.save(tmp_path / "best.pt", {"model": weights, **others})
    nn.init.zeros_(model[0].weight)  # what was taken stays as it was
    loaded = checkpoints.load(tmp_path / "best.pt")
    for name, tensor in loaded.pop("model").items():
        assert torch.equal(tensor, weights[name])
    assert weights["0.weight"].all()
    assert loaded == others
    assert torch.load(tmp_path / "best.pt", weights_only=True)["epoch"] == 3


def test_a_copy_on_the_host_has_nothing_in_common_with_what_it_is_of():
    """And what was an array's number is a plain one."""
    tensor = torch.ones(2, requires_grad=True)
    content = {"a": [tensor, (tensor.shape, {3})], "b": {"n": np.float32(0.5), "t": "text"}}
    copied = checkpoints.on_host(content)
    with torch.no_grad():
        tensor += 1
    content["a"].append(1)
    ((kept, (shape, numbers)), plain) = copied["a"], copied["b"]
    assert kept.tolist() == [1, 1] and not kept.requires_grad
    assert shape == (2,) and numbers == {3}
    assert plain == {"n": 0.5, "t": "text"} and type(plain["n"]) is float


class Point(NamedTuple):
    x: int


PLAIN = [
    *("text", b"bytes", True, 3, 0.5, 1j, None, torch.float16, CPU, torch.ones(1), np.int64(3)),
    *([1, (2, {3})], {"a": {(1, 2): [None]}}, torch.Size([2]), OrderedDict(a=1)),
]
OTHERS = {
    "a Point": [Point(1), [Point(1)], {"a": (1, Point(1))}, {Point(1): 1}],
    "a ndarray": [np.ones(2), {"a": [{"b": np.ones(1)}]}],
    "a function": [plain_function := lambda: None, (1, plain_function)],
}


def test_what_can_be_read_again_is_plain(tmp_path):
    for content in PLAIN:
        checkpoints.check_plain(content)
        checkpoints.save(tmp_path / "a.pt", checkpoints.on_host({"content": content}))
        assert checkpoints.load(tmp_path / "a.pt") == {"content": content}
    for said, each in OTHERS.items():
        for content in each:
            with pytest.raises(TypeError, match=f"^{said}$"):
                checkpoints.check_plain(content)


def test_the_one_before_is_kept_under_its_name(tmp_path):
    last, previous = tmp_path / "last.pt", tmp_path / "previous.pt"
    (tmp_path / "last.pt.part").write_text("what a killed process left")
    for step in range(3):
        checkpoints.save(last, {"step": step}, previous)
        assert checkpoints.load(last) == {"step": step}
        assert previous.exists() == (step > 0)
    assert checkpoints.load(previous) == {"step": 1}
    checkpoints.save(last, {"step": 3})
    assert checkpoints.load(previous) == {"step": 1}
    assert {file.name for file in tmp_path.iterdir()} == {"last.pt", "previous.pt"}


def test_the_seal_is_the_comment_of_an_archive_that_others_can_open(tmp_path):
    path = tmp_path / "a.pt"
    checkpoints.save(path, {"w": torch.arange(1000)})
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        comment = archive.comment
    whole = path.read_bytes()
    digest = hashlib.sha256(whole[: -len(comment)]).hexdigest()
    assert comment == f"sha256:{digest}".encode() and whole.endswith(comment)


def test_any_other_byte_is_noticed(tmp_path):
    path = tmp_path / "a.pt"
    checkpoints.save(path, {"w": torch.arange(4)})
    whole = path.read_bytes()
    flipped = [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(len(whole))]
    cut = [whole[:-1], whole[:70], b"", whole + b"\n", whole[1:]]
    for content in flipped + cut:
        path.write_bytes(content)
        with pytest.raises(checkpoints.Damaged, match=r"^a.pt is damaged; give the same command"):
            checkpoints.load(path)


def test_of_several_that_wait_the_newest_is_written_after_what_comes_first(tmp_path):
    writer, last, gate, seen = checkpoints.Writer(), tmp_path / "last.pt", threading.Event(), []
    writer.write(tmp_path / "best.pt", {}, {}, first=partial(gate.wait, 60))
    for step in (1, 2):
        note = partial(lambda step: seen.append((step, last.exists())), step)
        writer.write(last, {"step": step}, {}, first=note)
    gate.set()
    writer.close()
    assert seen == [(2, False)]
    assert checkpoints.load(last) == {"step": 2}


def test_larger_ones_are_checked_to_their_end(tmp_path):
    path = tmp_path / "a.pt"
    checkpoints.save(path, {"w": torch.zeros(3 << 18)})
    assert path.stat().st_size > 3 << 20
    checkpoints.load(path)
    with path.open("r+b") as file:
        file.seek(5 << 19)
        file.write(b"x")
    with pytest.raises(checkpoints.Damaged):
        checkpoints.load(path)


def test_a_disk_that_fails_after_all_was_written_is_said(tmp_path, monkeypatch):
    def fail(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        checkpoints.save(tmp_path / "a.pt", {"step": 1})


class Code:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_checkpoint_with_code_in_it_is_refused_and_does_not_run(tmp_path):
    content = {"model": Code(f"touch '{tmp_path}/ran'")}
    torch.save(content, tmp_path / "plain.pt")
    with pytest.raises(checkpoints.Damaged):
        checkpoints.load(tmp_path / "plain.pt")
    checkpoints.save(tmp_path / "sealed.pt", content)
    with pytest.raises(
        JobError, match=r"holds more than plain data and was not opened: delete it$"
    ):
        checkpoints.load(tmp_path / "sealed.pt")
    assert not (tmp_path / "ran").exists()
