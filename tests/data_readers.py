"""The ways in which projects read data, and changes of data that a finished job has to notice.

A dataset in data.py reads a few values in one of these ways, and a job trains on it. Then the data
is changed, and the same command says that the job is stale, or that this is unknown, or nothing.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from faults import Project, ended, succeeded

FLAGS = ("--dataset", "own", "--epochs", "1", "--batch-size", "20", "--quiet")
CHANGES = ("edited", "added", "removed", "replaced")

DATASET = """
import zlib

def own(root, _size):
    random = np.random.default_rng(zlib.crc32(repr(values_in(root)).encode()))
    images = torch.from_numpy(random.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8))
    return Source(TensorDataset(images, torch.arange(40) % 2), ["even", "odd"])

DATASETS["own"] = own
"""

OF_FILES = """
def values_in(root):
    return [value(path) for path in sorted(root.glob("part*"))]
"""


@dataclass(frozen=True)
class Reader:
    """A way to read data: code that writes some values to a file, and code that reads it."""

    write: str  # the body of write(path, values)
    read: str  # value(path), or a whole values_in(root)
    package: str = ""
    one: bool = False  # a file holds all values, instead of one each
    starts: bool = False  # processes whose Python is to be that of an environment with the engine
    jobs: int = 1  # the last of them is the one that is asked


PILLOW = """
    from PIL import Image
    Image.new("RGB", (8, 8), (values[0], 0, 0)).save(path, "PNG")
"""
ARROW = """
    import pyarrow as pa
    table = pa.table({"value": values})
"""
TAR = """
    import io, tarfile
    with tarfile.open(path, "w") as tar:
        for n, value in enumerate(values):
            about = tarfile.TarInfo(f"{n}.txt")
            about.size = 3
            tar.addfile(about, io.BytesIO(b"%03d" % value))
"""
TEXT = '    path.write_text("".join(f"{value:03d}" for value in values))\n'

READERS = {
    "Parquet": Reader(
        ARROW + "    import pyarrow.parquet\n    pyarrow.parquet.write_table(table, path)",
        """
import pyarrow.parquet as pq

def values_in(root):
    return pq.read_table(root)["value"].to_pylist()
""",
        "pyarrow",
    ),
    "text": Reader(TEXT, "def value(path):\n    return path.read_text()\n"),
    "NumPy": Reader(
        "    import numpy\n    with open(path, 'wb') as file:\n        numpy.save(file, values)",
        "def value(path):\n    return np.load(path).tolist()\n",
    ),
    "memory map": Reader(
        "    import numpy\n    numpy.array(values).tofile(path)",
        "def value(path):\n    return np.memmap(path, dtype=int, mode='r').tolist()\n",
    ),
    "HDF5": Reader(
        """
    import h5py
    with h5py.File(path, "w") as file:
        file["values"] = values
""",
        """
import h5py

def value(path):
    with h5py.File(path) as file:
        return file["values"][:].tolist()
""",
        "h5py",
        one=True,
    ),
    "LMDB": Reader(
        """
    import lmdb
    with lmdb.open(str(path), map_size=2**20) as env, env.begin(write=True) as writes:
        for n in range(9):
            writes.delete(b"%d" % n)
        for n, value in enumerate(values):
            writes.put(b"%d" % n, b"%03d" % value)
""",
        """
import lmdb

def value(path):
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as reads:
        return [*reads.cursor()]
""",
        "lmdb",
        one=True,
    ),
    "SQLite": Reader(
        """
    import sqlite3
    store = sqlite3.connect(path)
    store.executescript("DROP TABLE IF EXISTS t; CREATE TABLE t (value)")
    store.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
    store.commit()
    store.close()
""",
        """
import sqlite3

def value(path):
    store = sqlite3.connect(path)
    found = store.execute("SELECT value FROM t").fetchall()
    store.close()
    return found
""",
        one=True,
    ),
    "Feather": Reader(
        ARROW + "    import pyarrow.feather\n    pyarrow.feather.write_feather(table, str(path))",
        """
from pyarrow import feather

def value(path):
    return feather.read_table(path)["value"].to_pylist()
""",
        "pyarrow",
    ),
    "safetensors": Reader(
        """
    import torch
    from safetensors.torch import save
    path.write_bytes(save({"values": torch.tensor(values)}))
""",
        """
from safetensors.torch import load_file

def value(path):
    return load_file(path)["values"].tolist()
""",
        "safetensors",
    ),
    "Pillow": Reader(
        PILLOW,
        """
from PIL import Image

def value(path):
    with Image.open(path) as image:
        return image.getpixel((0, 0))
""",
    ),
    "OpenCV": Reader(
        PILLOW,
        """
import cv2

def value(path):
    return cv2.imread(str(path))[0, 0].tolist()
""",
        "cv2",
    ),
    "torchvision.io": Reader(
        PILLOW,
        """
from torchvision.io import read_image

def value(path):
    return read_image(str(path))[:, 0, 0].tolist()
""",
    ),
    "tar": Reader(
        TAR,
        """
import tarfile

def value(path):
    with tarfile.open(path) as tar:
        return [tar.extractfile(each).read() for each in tar]
""",
        one=True,
    ),
    "zip": Reader(
        """
    import zipfile
    with zipfile.ZipFile(path, "w") as file:
        for n, value in enumerate(values):
            file.writestr(f"{n}.txt", f"{value:03d}")
""",
        """
import zipfile

def value(path):
    with zipfile.ZipFile(path) as file:
        return [file.read(name) for name in file.namelist()]
""",
        one=True,
    ),
    "webdataset": Reader(
        TAR,
        """
import webdataset

def value(path):
    return [each["txt"] for each in webdataset.WebDataset(str(path), shardshuffle=False)]
""",
        "webdataset",
        one=True,
    ),
    "datasets": Reader(
        "    import json\n    path.write_text(json.dumps([{'value': value} for value in values]))",
        """
def value(path):
    import datasets
    kept = str(path.parent.parent / ".datasets")
    found = datasets.load_dataset("json", data_files=str(path), cache_dir=kept)
    return found["train"]["value"][:]
""",
        "datasets",
        one=True,
        jobs=2,  # the second finds what the first has kept
    ),
    "torch.load": Reader(
        "    import torch\n    torch.save(torch.tensor(values), path)",
        "def value(path):\n    return torch.load(path, weights_only=True).tolist()\n",
    ),
    "YAML": Reader(
        "    import yaml\n    path.write_text(yaml.safe_dump([f'{v:03d}' for v in values]))",
        "import yaml\n\ndef value(path):\n    return yaml.safe_load(path.open())\n",
        "yaml",
    ),
    "pickle": Reader(
        "    import pickle\n    path.write_bytes(pickle.dumps([f'{v:03d}' for v in values]))",
        "import pickle\n\ndef value(path):\n    return pickle.loads(path.read_bytes())\n",
    ),
    "Python program": Reader(
        TEXT,
        """
import subprocess, sys

def value(path):
    command = [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", path]
    return subprocess.run(command, capture_output=True, check=True).stdout
""",
        starts=True,
    ),
    "spawned pool": Reader(
        TEXT,
        """
import multiprocessing

def values_in(root):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(Path.read_text, sorted(root.glob("part*")))
""",
    ),
    "joblib": Reader(
        TEXT,
        """
import joblib

def values_in(root):
    paths = sorted(root.glob("part*"))
    return joblib.Parallel(2)(joblib.delayed(Path.read_text)(path) for path in paths)
""",
        starts=True,
    ),
    "own DataLoader": Reader(
        TEXT,
        """
from torch.utils.data import DataLoader

class Texts(Dataset[str]):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, n):
        return self.paths[n].read_text()

def values_in(root):
    texts = Texts(sorted(root.glob("part*")))
    return [*DataLoader(texts, num_workers=1, multiprocessing_context="spawn")]
""",
        starts=True,
    ),
    "symbolic links": Reader(
        """
    if path.is_symlink():
        path.resolve().write_text(f"{values[0]:03d}")
    else:
        target = path.parents[2] / "elsewhere" / f"{path.name}-{values[0]}"
        target.parent.mkdir(exist_ok=True)
        target.write_text(f"{values[0]:03d}")
        path.symlink_to(target)
""",
        "def value(path):\n    return path.read_text()\n",
    ),
    "read-only image": Reader(TEXT, "def value(path):\n    return path.read_text()\n"),
    "another program": Reader(
        TEXT,
        """
import subprocess

def value(path):
    return subprocess.run(["cat", path], capture_output=True, check=True).stdout
""",
    ),
}
IMAGE = "read-only image"

SITE = """
import os
if "LABJOBS_READS" in os.environ:
    from labjobs.job import data_evidence
    data_evidence.join_by_environment()
"""
"""What the package's labjobs_reads.pth does whenever Python starts."""


def available() -> list[str]:
    """Return the readers that can be tried here."""
    found = (n for n, each in READERS.items() if not each.package or find_spec(each.package))
    return [name for name in found if name != IMAGE or os.geteuid() == 0]


class Data:
    """The data of a project: three values, in a file or in one each."""

    def __init__(self, project: Project, reader: Reader) -> None:
        self._reader, self.at = reader, project.root / "data"
        self._home = project.root.parent
        names: dict[str, Any] = {}
        exec(f"def write(path, values):\n{reader.write}", names)
        self._write = names["write"]
        self._begin()

    def _begin(self) -> None:
        self.at.mkdir()
        self._put(self.at, 1, 2, 3)
        for folder, kept in self._kept:
            shutil.copytree(folder, kept, symlinks=True)

    @property
    def _kept(self) -> list[tuple[Path, Path]]:
        """Folders of the data, each with a copy."""
        folders = self.at, self._home / "elsewhere"  # where links lead
        copies = (self._home / f"{folder.name}-copy" for folder in folders)
        return [pair for pair in zip(folders, copies, strict=True) if pair[0].exists()]

    def _put(self, folder: Path, *values: int) -> None:
        if self._reader.one:
            self._write(folder / "part", values)
        else:
            for n, value in enumerate(values):
                self._write(folder / f"part{n}", [value])

    def change(self, how: str) -> None:
        """Change a value, add one or remove one; or replace a file by another of the same age."""
        if how == "replaced":
            self._replace()
        elif self._reader.one:
            values = {"edited": (1, 9, 3), "added": (1, 2, 3, 4), "removed": (1, 2)}
            self._put(self.at, *values[how])
        elif how == "removed":
            (self.at / "part2").unlink()
        else:
            part, value = {"edited": ("part1", 9), "added": ("part3", 4)}[how]
            self._write(self.at / part, [value])

    def _replace(self) -> None:
        new = self.at.with_name("new")
        new.mkdir()
        self._put(new, 1, 9, 3)
        for path in (each for each in new.rglob("*") if each.is_symlink() or each.is_file()):
            old = self.at / path.relative_to(new)
            times = old.lstat()
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns), follow_symlinks=False)
            path.replace(old)
        shutil.rmtree(new)

    def undo(self) -> None:
        """Have the first data again."""
        for folder, kept in self._kept:
            shutil.rmtree(folder)
            shutil.copytree(kept, folder, symlinks=True)


class ImageOfData(Data):
    """The data on a read-only image, whose times are whole seconds; all files are as old."""

    def _begin(self) -> None:
        self._mounted = self.at
        self._mounted.mkdir()
        self.at = self._home / "on-image"
        super()._begin()
        self._mount()

    def _mount(self) -> None:
        for path in (self.at, *self.at.iterdir()):
            os.utime(path, (10**9, 10**9))
        image = self._home / "image"
        image.unlink(missing_ok=True)
        _do("mke2fs", "-q", "-t", "ext2", "-I", "128", "-d", self.at, image, "1M")
        _do("mount", "-o", "ro,loop", image, self._mounted)

    def change(self, how: str) -> None:
        """Mount another image."""
        super().change(how)
        self.close()
        self._mount()

    def undo(self) -> None:
        """Mount an image with the first data again."""
        super().undo()
        self.close()
        self._mount()

    def close(self) -> None:
        """Unmount it."""
        _do("umount", self._mounted)


def _do(*words: object) -> None:
    subprocess.run([*map(str, words)], check=True, capture_output=True)


LOADS = "    splits = data.load("
DECLARES = f"    job.data(job.runtime.data_root)\n{LOADS}"


def rows(project: Project, name: str, folder: Path) -> Iterator[str]:
    """Yield a reader's row of the table, with what is said after each change; if something cannot
    be told, also the row of a project that declares its data. The projects are copies in a folder.
    """
    found = answers(project.copy(folder / "plain" / "project"), name)
    yield row(name, found)
    if UNKNOWN in found:
        copy = project.copy(folder / "declares" / "project")
        copy.edit("run.py", LOADS, DECLARES)
        yield row(f"{name}, `job.data`", answers(copy, name))


def row(first: str, others: Iterable[str]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join([first, *others])} |"


def answers(project: Project, name: str) -> list[str]:
    """Return what a finished job says after each of the changes. Raises AssertionError if it is
    stale while the data is as it was."""
    reader = READERS[name]
    with (project.root / "data.py").open("a") as file:
        file.write(reader.read + ("" if "def values_in" in reader.read else OF_FILES) + DATASET)
    if reader.starts:
        site = project.root.parent / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE)
        project.env["PYTHONPATH"] = os.pathsep.join(map(str, (site, project.root)))
    data = (ImageOfData if name == IMAGE else Data)(project, reader)
    try:
        for seed in map(str, range(reader.jobs)):
            succeeded(project.run(*FLAGS, "--seed", seed))
        unchanged, found = answer(project, seed), []
        for how in CHANGES:
            data.change(how)
            found.append(answer(project, seed))
            data.undo()
            assert answer(project, seed) == unchanged != STALE
        return found
    finally:
        if isinstance(data, ImageOfData):
            data.close()


STALE, UNKNOWN, MISSED = "stale", "unknown", "missed"


def answer(project: Project, seed: str) -> str:
    """Return what a new Python says of a finished job."""
    done = ended(project.start(*FLAGS, "--seed", seed))
    if done.returncode == 5:
        assert "was finished with other data (data" in done.stderr, done
        return STALE
    assert done.returncode == 0 and "already finished" in done.stdout, done
    return UNKNOWN if "not all data was checked" in done.stdout else MISSED
