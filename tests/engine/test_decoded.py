"""Decoded images on disk: they are those of the files, whatever happens to the cache."""

import os
import pickle
import random
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from labjobs.data import vision
from labjobs.data.vision import ImageFolder
from labjobs.errors import JobError, SettingsError
from PIL import Image
from torch import Tensor

RANDOM = np.random.default_rng(0)
SIDE = 8
COUNT = 10


def draw(path: Path) -> None:
    """Write an image of random pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RANDOM.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path):
    for n in range(COUNT):
        draw(tmp_path / "data" / ("cat", "dog")[n % 2] / f"{n}.png")
    return tmp_path / "data"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("IMAGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read(folder: Path) -> Tensor:
    """Return all images (N, 3, side, side), as another job reads them."""
    dataset = ImageFolder(folder, SIDE)
    return torch.stack([dataset[index][0] for index in range(len(dataset))])


@pytest.fixture
def decoded(monkeypatch):
    """The files that were decoded."""
    files: list[str] = []
    decode = vision.in_colour

    def noting(path: str | Path, upright: bool = True) -> Image.Image:
        files.append(Path(path).name)
        return decode(path, upright)

    monkeypatch.setattr(vision, "in_colour", noting)
    monkeypatch.setattr(vision, "in_colour", noting)
    return files


def test_an_image_is_decoded_once(folder, cache, decoded):
    first = read(folder)
    assert len(decoded) == COUNT
    assert torch.equal(read(folder), first)
    assert len(decoded) == COUNT
    (file,) = cache.iterdir()
    assert file.stat().st_size == COUNT * (3 * SIDE**2 + 8)


def test_a_dataset_with_an_open_cache_can_be_sent_to_a_process(folder, cache):
    dataset = ImageFolder(folder, SIDE)
    expected = dataset[3][0]
    sent = pickle.dumps(dataset)
    assert len(sent) < 10_000
    assert torch.equal(pickle.loads(sent)[3][0], expected)


@pytest.mark.parametrize("name", ["cat/0.png", "dog/7.png"])
def test_an_image_that_changed_is_decoded_again(folder, cache, decoded, name):
    before = read(folder)
    decoded.clear()
    draw(folder / name)
    after = read(folder)
    assert decoded == [Path(name).name]
    assert (before != after).flatten(1).any(1).sum() == 1
    assert torch.equal(read(folder), after)


def test_a_damaged_cache_is_never_believed(folder, cache):
    chance, expected = random.Random(0), read(folder)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    for _ in range(200):
        damaged = bytearray(whole)
        start = chance.randrange(len(whole))
        end = start + chance.choice((1, 8, 100, len(whole)))
        damaged[start:end] = chance.randbytes(len(damaged[start:end]))
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(whole)) :]
        file.write_bytes(damaged)
        assert torch.equal(read(folder), expected)


def test_without_a_place_for_it_nothing_is_kept(folder, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("IMAGE_CACHE", str(tmp_path / "file" / "cache"))
    first = read(folder)
    monkeypatch.setenv("IMAGE_CACHE_GIB", "0")
    assert torch.equal(read(folder), first)


def test_a_size_that_is_none_is_refused(folder, cache, monkeypatch):
    monkeypatch.setenv("IMAGE_CACHE_GIB", "much")
    with pytest.raises((SettingsError, JobError), match="IMAGE_CACHE_GIB=much: must be a number"):
        read(folder)


def test_only_so_much_is_kept_and_what_was_used_last_stays(folder, cache, monkeypatch, decoded):
    row = 3 * SIDE**2 + 8
    monkeypatch.setenv("IMAGE_CACHE_GIB", str((4 * row + 1) / 2**30))
    first = read(folder)
    (file,) = cache.iterdir()
    assert file.stat().st_size == 4 * row
    decoded.clear()
    assert torch.equal(read(folder), first)
    assert len(decoded) == COUNT - 4
    ImageFolder(folder, 4)[0]
    assert file not in cache.iterdir()


def in_a_process(task: Callable[[], object]) -> int:
    """Return how a forked process that does a task ended; negative for a signal."""
    if process := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    try:
        task()
        os._exit(0)
    finally:
        os._exit(1)


def test_a_disk_that_is_full_is_no_error(folder, cache, monkeypatch):
    """A limit for the size of files stands for a full disk: what is written ends at some byte."""
    row = 3 * SIDE**2 + 8
    monkeypatch.setenv("IMAGE_CACHE_GIB", "0")
    expected = read(folder)
    monkeypatch.delenv("IMAGE_CACHE_GIB")
    ImageFolder(folder, SIDE)[0]

    def task() -> None:
        most = 5 * row + 17
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert torch.equal(read(folder), expected)

    assert in_a_process(task) == 0
    assert torch.equal(read(folder), expected)


def test_killed_at_any_moment_it_leaves_nothing_wrong(folder, cache, monkeypatch):
    monkeypatch.setenv("IMAGE_CACHE_GIB", "0")
    expected = read(folder)
    monkeypatch.delenv("IMAGE_CACHE_GIB")
    chance = random.Random(0)

    def task() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 5e-3))
        while True:
            for file in cache.glob("*"):
                file.unlink(missing_ok=True)
            read(folder)

    for _ in range(10):
        chance.random()
        assert in_a_process(task) == -signal.SIGALRM
        assert torch.equal(read(folder), expected)


def test_an_image_may_be_changed_in_place(folder, cache):
    first = ImageFolder(folder, SIDE)
    before = first[0][0].clone()
    first[0][0].zero_()
    again = ImageFolder(folder, SIDE)
    again[0][0].zero_()
    assert torch.equal(first[0][0], before) and torch.equal(again[0][0], before)
