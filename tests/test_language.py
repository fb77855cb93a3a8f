"""The example for language models: its tokens, and what it measures."""

import json
import shutil
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from faults import Project, one_line
from repository import imported
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy

run = imported("language", "run")
TINY = ("--model", "gpt-tiny", "--steps", "30", "--eval-every", "15", "--context", "32")
OWN = ("--dataset", "files", "--text", "story.txt", "--tokenizer", "bpe.json")

STORY = "\n".join(
    f"The thé in line {number}, then 日本 and the sea, and another {'the ' * (number % 7)}"
    for number in range(300)
)


def byte_level() -> Tokenizer:
    """A tokenizer of GPT-2's kind: a token is a byte, or a sequence of them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = ("t h", "th e", "Ġ the", "a n", "Ã ©", "Ġ s", "i n")
    merges = [(left, right) for left, right in map(str.split, pairs)]
    known = [*letters, *map("".join, merges)]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(known)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


@pytest.fixture(scope="module")
def project(make):
    """A project with a text and a tokenizer in its data folder."""
    project = Project(make(example="language"))
    folder = project.root / "data"
    folder.mkdir()
    byte_level().save(str(folder / "bpe.json"))
    (folder / "story.txt").write_text(STORY)
    return project


def told(project: Project, code: str, *words: str) -> object:
    """What a Python program in the project prints as JSON."""
    return json.loads(*project.printed(code, *words))


# What is measured

PLAIN = """
import json, math, sys
from pathlib import Path
import torch
from tokenizers import Tokenizer
import jobs

job = jobs.load(sys.argv[1])
text = Path("data/story.txt").read_bytes()
begin = len(text) - len(text) // 10
while sys.argv[2:] and text[begin] & 0xC0 == 0x80:
    begin -= 1
ids, sizes = [*text[begin:]], [1] * (len(text) - begin)  # a token is a byte
if sys.argv[2:]:
    found = Tokenizer.from_file(sys.argv[2]).encode(text[begin:].decode())
    ids, sizes = found.ids, [len(token) for token in found.tokens]  # a letter of a token is a byte
    assert sum(sizes) == len(text) - begin > len(sizes)
context, nats, size = job.spec.context, 0.0, 0
for first in range(0, len(sizes) - context, context):
    window = torch.tensor([ids[first : first + context + 1]])
    logits = job.model.eval()(window[:, :-1])
    chances = torch.log_softmax(logits.double(), -1)[0]
    nats -= chances[range(context), window[0, 1:]].sum().item()
    size += sum(sizes[first + 1 : first + context + 1])
mean = nats / (first + context)
print(json.dumps([first // context + 1, mean, math.exp(mean), nats / math.log(2) / size]))
"""


@pytest.mark.full
@pytest.mark.parametrize("tokenizer", [(), ("data/bpe.json",)], ids=["bytes", "tokens"])
def test_metrics_are_those_of_a_plain_computation_with_all_test_tokens(project, tokenizer):
    """With tokens of several bytes, and characters too."""
    job = project.finish(*TINY, *(OWN if tokenizer else OWN[:4]))
    windows, *wanted = told(project, PLAIN, job, *tokenizer)
    results, losses = project.tested(job), project.outputs(job)["loss"]
    assert losses.shape == (windows, 32)
    found = [results[name] for name in ("loss", "perplexity", "bits_per_byte")]
    assert found == pytest.approx(wanted, rel=1e-5)
    assert losses.astype(float).mean() == pytest.approx(results["loss"], rel=1e-5)
    assert results["bits_per_byte"] < 7
    _, last = sorted((project.folder(job) / "logged").iterdir())
    assert len(last.read_text()) > 50 and "Ġ" not in last.read_text()
    assert json.loads((project.folder(job) / "settings.json").read_text())["spec"]
    lines = project.lines(job)
    points = [line["metrics"] for line in lines if "examples_per_second" in line.get("metrics", {})]
    rates = [(each["examples_per_second"], each["tokens_per_second"]) for each in points]
    assert len(rates) == 2 and all(other == pytest.approx(32 * one) for one, other in rates)
    assert not any("mfu" in each for each in points)  # a CPU has no known peak


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_in_chunks_has_the_same_gradient(smoothing, monkeypatch):
    """Also if a student takes another loss."""
    other = partial(cross_entropy, reduction="none", label_smoothing=smoothing)
    monkeypatch.setattr(run, "measure", lambda *tensors: {"loss": other(*tensors)})
    settings = run.Settings(model="gpt-tiny", loss_chunk=0)
    torch.manual_seed(0)
    model = run.models.make(settings, run.models.Spec(12, 300)).double()
    tokens, sizes = torch.randint(300, (5, 13)), torch.randint(1, 4, (5, 13))
    batch = tokens.to(torch.int16), sizes.to(torch.int16)
    answers = []
    for chunk in (0, 7, 16, 60):
        model.zero_grad()
        loss, measured = run.forward(model, batch, replace(settings, loss_chunk=chunk))
        (65536 * loss).backward()  # as a GradScaler would
        values = [loss, measured["loss"], *measured["bits_per_byte"]]
        values += [parameter.grad for parameter in model.parameters()]
        answers.append(torch.cat([value.detach().double().flatten() for value in values]))
        with torch.no_grad():  # as in evaluation
            again, _ = run.forward(model, batch, replace(settings, loss_chunk=chunk))
            assert torch.equal(again, loss)
    assert all(torch.allclose(answers[0], each, rtol=1e-6, atol=1e-3) for each in answers[1:])


# Texts and tokens

WINDOWS = """
import json, sys
from pathlib import Path
import data, texts
from settings import Settings

settings = Settings(dataset="files", context=int(sys.argv[2]), text=sys.argv[3])
parts = data.load(settings, Path(sys.argv[1]))
print(json.dumps([[texts.unsigned(window).tolist() for window, in part]
                  for part in (parts.train, parts.val, parts.test)]))
"""


@pytest.mark.parametrize("pattern", ["**/*.txt", "more/second.txt"])
def test_each_token_of_a_part_is_once_one_to_predict(project, tmp_path, pattern):
    random = np.random.default_rng(0)
    texts = [random.integers(0, 256, size, dtype=np.uint8).tobytes() for size in (1010, 400, 13)]
    (tmp_path / "more").mkdir()
    (tmp_path / "first.txt").write_bytes(texts[0])
    (tmp_path / "more" / "second.txt").write_bytes(texts[1])
    (tmp_path / "tiny.txt").write_bytes(texts[2])
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "no-text.csv").write_text("1, 2")
    read = texts if pattern == "**/*.txt" else texts[1:2]
    parts = told(project, WINDOWS, str(tmp_path), "16", pattern)
    for number, part in enumerate(parts):
        wanted = []
        for text in read:
            tenth = len(text) // 10
            ends = (0, len(text) - 2 * tenth, len(text) - tenth, len(text))
            wanted += text[ends[number] : ends[number + 1]]
        count = (len(wanted) - 1) // 16 * 16
        assert [token for window in part for token in window[:-1]] == wanted[:count]
        assert [token for window in part for token in window[1:]] == wanted[1 : count + 1]
        assert {len(window) for window in part} == {17}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--context", "100000"), "--context 100000: the text of "),
        (("--dataset", "files", "--data-root", "tests"), "tests: has no files that match **/*.txt"),
        (("--dataset", "files", "--text", "shelf"), "--text shelf: is a folder; name its files"),
        (("--text", "story.txt"), "--text story.txt: needs --dataset files"),
        (("--dataset", "files", "--text", "../a.txt"), "--text ../a.txt: must name files in "),
        (("--tokenizer", "none.json"), "--tokenizer none.json: there is no such tokenizer.json"),
        (("--tokenizer", "story.txt"), "--tokenizer: is not a valid tokenizer.json ("),
        ((*OWN[:2], "--text", "latin", *OWN[4:]), "--tokenizer: the text is not UTF-8; convert it"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(project, flags, said):
    (project.root / "data" / "shelf").mkdir(exist_ok=True)
    (project.root / "data" / "latin").write_bytes("thé ".encode("latin-1") * 100)
    assert said in one_line(project.run(*flags), 2)


def test_a_missing_package_is_named_with_its_group(project, tmp_path):
    (tmp_path / "tokenizers.py").write_text("raise ImportError")
    done = project.run(*TINY, *OWN, "--seed", "9", PYTHONPATH=str(tmp_path))
    assert "needs the package tokenizers: uv sync --group tokenizer" in one_line(done, 2)


KILLED = """
import os, signal, sys
from pathlib import Path
import data, texts
from settings import Settings

written = texts._append
def append(path, *args):
    written(path, *args)
    if path.stem == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
texts._append = append
data.load(Settings(dataset="files", text="story.txt", tokenizer="bpe.json"), Path("data"))
"""


@pytest.mark.full
def test_a_job_that_is_killed_while_it_writes_tokens_harms_nothing(project, fresh):
    cache = fresh.root / ".cache" / "tokens"
    shutil.rmtree(cache, ignore_errors=True)
    for part in ("train", "test"):
        killed = fresh.do("python", "-c", KILLED, part)
        assert killed.returncode == -signal.SIGKILL
        assert [path.suffix for path in cache.iterdir() if path.is_dir()] == [".part"]
    job = fresh.finish(*TINY, *OWN)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    assert not folder.suffix and len([*folder.iterdir()]) == 6
    sizes = np.fromfile(folder / "test.sizes", np.uint16)
    tokens = np.fromfile(folder / "test.bin", np.uint16)
    text = STORY.encode()
    assert len(tokens) == len(sizes)
    assert byte_level().decode(tokens.tolist()) == text[-int(sizes.sum()) :].decode()
    assert fresh.tested(job) == project.tested(project.finish(*TINY, *OWN))


# Networks


def test_no_token_sees_those_after_it():
    model = run.models.make(run.Settings(model="gpt-tiny"), run.models.Spec(12, 7)).eval()
    tokens = torch.randint(7, (3, 12), dtype=torch.uint8)
    changed = tokens.clone()
    changed[:, 5] = (tokens[:, 5] + 1) % 7
    before, after = model(tokens), model(changed)
    assert before.shape == (3, 12, 7)
    same = torch.isclose(before, after, atol=1e-5).all(-1).all(0)
    assert same.tolist() == [place < 5 for place in range(12)]
