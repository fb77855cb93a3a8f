"""The example for language models: its windows, what it measures, and what a token can see."""

import json
import math
import subprocess

import numpy as np
import pytest
from faults import Project, job_of, one_line

TINY = ("--model", "gpt-tiny", "--steps", "30", "--eval-every", "15", "--context", "32")


@pytest.fixture(scope="module")
def project(make) -> Project:
    return Project(make(example="language"))


def run(project: Project, *flags: str) -> subprocess.CompletedProcess[str]:
    done = project.run(*flags)
    assert done.returncode == 0, done
    return done


def told(project: Project, code: str, *words: str) -> object:
    """What a Python program in the project prints as JSON."""
    return json.loads(*project.printed(code, *words))


def test_metrics_are_those_of_all_test_tokens(project):
    job = job_of(run(project, *TINY, "--batch-size", "512"))
    tested = {
        key.removeprefix("test_"): points[-1][1]
        for key, points in project.stored(job).items()
        if key.startswith("test_")
    }
    with np.load(project.folder(job) / "predictions.npz") as kept:
        losses = kept["loss"]
    held_out = told(
        project,
        "import data; from pathlib import Path; "
        "print(len(data.parts_of(data.pydoc(Path())[0])[2]))",
    )
    assert losses.shape == ((held_out - 1) // 32, 32)
    mean = losses.astype(float).mean()
    assert tested["loss"] == pytest.approx(mean, rel=1e-5)
    assert tested["bits_per_byte"] == pytest.approx(mean / math.log(2), rel=1e-5)
    assert tested["perplexity"] == pytest.approx(math.exp(mean), rel=1e-5)
    assert tested["bits_per_byte"] < 7
    logged = sorted(file.name for file in (project.folder(job) / "logged").iterdir())
    assert len(logged) == 2


WINDOWS = """
import json, sys
from pathlib import Path
import data
from settings import Settings

parts = data.load(Settings(dataset="files", context=int(sys.argv[2])), Path(sys.argv[1]))
print(json.dumps([[[each.tolist() for each in window] for window in part]
                  for part in (parts.train, parts.val, parts.test)]))
"""


def test_each_token_of_a_part_is_once_one_to_predict(project, tmp_path):
    random = np.random.default_rng(0)
    texts = [random.integers(0, 256, size, dtype=np.uint8).tobytes() for size in (1010, 400, 13)]
    (tmp_path / "more").mkdir()
    (tmp_path / "first.txt").write_bytes(texts[0])
    (tmp_path / "more" / "second.txt").write_bytes(texts[1])
    (tmp_path / "tiny.txt").write_bytes(texts[2])
    (tmp_path / "empty.txt").touch()
    (tmp_path / "no-text.csv").write_text("1, 2")
    parts = told(project, WINDOWS, str(tmp_path), "16")
    for number, part in enumerate(parts):
        wanted = []
        for text in texts:
            held_out = len(text) // 10
            ends = (0, len(text) - 2 * held_out, len(text) - held_out, len(text))
            wanted += text[ends[number] : ends[number + 1]]
        count = (len(wanted) - 1) // 16 * 16
        assert [token for tokens, _ in part for token in tokens] == wanted[:count]
        assert [token for _, following in part for token in following] == wanted[1 : count + 1]
        assert {len(tokens) for tokens, _ in part} == {16}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--context", "100000"), "--context 100000: the text of "),
        (("--dataset", "files", "--data-root", "engine"), "engine: is no folder with texts"),
    ],
)
def test_too_little_text_is_said_in_one_line(project, flags, said):
    assert said in one_line(project.run(*flags), 2)


SEES = """
import json, torch
import models
from settings import Settings

model = models.make(Settings(model="gpt-tiny"), models.Spec(12, 7)).eval()
tokens = torch.randint(7, (3, 12), dtype=torch.uint8)
changed = tokens.clone()
changed[:, 5] = (tokens[:, 5] + 1) % 7
before, after = model(tokens), model(changed)
same = torch.isclose(before, after, atol=1e-5).all(-1).all(0)
print(json.dumps([list(before.shape), same.tolist()]))
"""


def test_no_token_sees_those_after_it(project):
    shape, same = told(project, SEES)
    assert shape == [3, 12, 7]
    assert same == [place < 5 for place in range(12)]
