"""The example for fine-tuning: its texts and tokens, its metrics and its checkpoints."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from faults import Project, one_line, succeeded
from safetensors.torch import load_file, save_file
from sklearn.metrics import accuracy_score, f1_score

pytestmark = pytest.mark.full

SHORT = ("--steps", "20", "--eval-every", "10", "--quiet")
CHECKPOINT = ("--model", "pretrained", "--max-tokens", "48", *SHORT)
STILL = ("--lr", "1e-30", "--weight-decay", "0", "--optimizer", "sgd")


@pytest.fixture(scope="module")
def project(make):
    project = Project(make(example="finetuning"))
    project.printed(MADE)
    return project


MADE = """
from pathlib import Path
import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertForPreTraining, GPT2Config, GPT2LMHeadModel
import data

torch.manual_seed(5)
tokenizer = data.words(data.pydoc(Path()).texts)
words = {"vocab_size": tokenizer.get_vocab_size()}
layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
encoder = BertConfig(**words, **layers, max_position_embeddings=48, num_attention_heads=2)
ends = {"bos_token_id": 2, "eos_token_id": 3}  # and no token for padding
decoder = GPT2Config(**words, **ends, n_positions=64, n_embd=32, n_layer=1, n_head=2)
made = {"pretrained": BertForPreTraining(encoder), "decoder": GPT2LMHeadModel(decoder)}
for name, model in made.items():
    model.save_pretrained(f"data/{name}")
    tokenizer.save(f"data/{name}/tokenizer.json")
"""
"""Writes checkpoints as published ones are: their heads are others than the job's."""


# Texts and tokens


COLLATED = """
import sys
import torch
from pathlib import Path
import data
import models
from settings import Settings

settings = Settings(max_tokens=40, model=sys.argv[1])
splits = data.load(settings, Path("data"))
model = models.make(settings, splits.spec).eval()
examples = [("The str method.", 0), (" ".join(["string"] * 100), 1), ("list of objects", 2)]
batch = splits.collate(examples)
print(*batch["input_ids"].shape, batch["attention_mask"].sum(1).tolist(), batch["labels"].tolist())
with torch.no_grad():
    logits = model(batch["input_ids"], batch["attention_mask"])
    for number, example in enumerate(examples):
        alone = splits.collate([example])
        found = model(alone["input_ids"], alone["attention_mask"])[0]
        print(len(alone["input_ids"][0]), torch.allclose(found, logits[number], atol=1e-5))
    wrong = model(batch["input_ids"], torch.ones_like(batch["attention_mask"]))
    print(torch.allclose(wrong[0], logits[0], atol=1e-5))
"""


@pytest.mark.parametrize("model", ["bert-tiny", "distilbert-tiny", "decoder"])
def test_padding_does_not_count(project, model):
    shape, *alone, without_mask = project.printed(COLLATED, model)
    assert shape == "3 40 [6, 40, 5] [0, 1, 2]"
    assert alone == ["16 True", "40 True", "16 True"]
    assert without_mask == str(model == "decoder")  # it sees nothing that comes later


# What is measured


def test_metrics_are_those_of_scikit_learn(project):
    job = project.finish("--epochs", "3", "--quiet")
    kept, tested = project.outputs(job), project.tested(job)
    labels, predicted = kept["label"], kept["predicted"]
    assert len({*labels}) == 8 and tested["accuracy"] > 0.2
    assert tested["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    wanted = f1_score(labels, predicted, average="macro", zero_division=0)
    assert tested["macro_f1"] == pytest.approx(wanted)


# Checkpoints


def transformer(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A network's tensors without those on top of the transformer, by their names within it."""
    found = {name.partition("bert.")[2]: tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in found.items() if name and "pooler" not in name}


def test_a_job_starts_from_a_checkpoint_s_weights(project):
    job = project.finish(*CHECKPOINT, *STILL, "--head-lr", "0.1")
    published = transformer(load_file(project.root / "data" / "pretrained" / "model.safetensors"))
    found = project.weights(job)
    still = transformer(found)
    assert len(still) > 10 and {*still} <= {*published}
    assert all((tensor - published[name]).abs().max() < 1e-20 for name, tensor in still.items())
    assert not torch.equal(found["network.classifier.bias"], torch.zeros(8))
    moved = transformer(project.weights(project.finish(*CHECKPOINT)))
    name = "encoder.layer.0.output.dense.weight"
    assert 0 < (moved[name] - published[name]).abs().max() < 0.1


def test_a_job_is_stale_once_its_checkpoint_is_another(fresh):
    job = fresh.finish(*CHECKPOINT)
    assert "already finished" in succeeded(fresh.run(*CHECKPOINT)).stdout
    path = fresh.root / "data" / "pretrained" / "model.safetensors"
    other = {name: tensor + 1 for name, tensor in load_file(path).items()}
    save_file(other, path, {"format": "pt"})
    refused = one_line(fresh.run(*CHECKPOINT), 5)
    assert f"job {job} was finished with other data" in refused
    assert "data/pretrained/model.safetensors changed" in refused


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "{"),
        ("config.json", '{"model_type": "llama", "eos_token_id": null}'),
        ("tokenizer.json", "{}"),
        ("model.safetensors", "x" * 100),
        ("model.safetensors", None),
    ],
)
def test_a_damaged_checkpoint_is_refused_in_one_line(project, tmp_path, file, content):
    folder = shutil.copytree(project.root / "data" / "pretrained", tmp_path / "damaged")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    where = ("--data-root", str(tmp_path), "--model", "damaged", "--max-tokens", "48")
    assert str(folder) in one_line(project.run(*where, *SHORT), 2)


def test_a_checkpoint_without_all_layers_is_refused(project, tmp_path):
    folder = shutil.copytree(project.root / "data" / "pretrained", tmp_path / "part")
    tensors = load_file(folder / "model.safetensors")
    lost = {name: tensor for name, tensor in tensors.items() if "layer.0.output" not in name}
    assert 0 < len(lost) < len(tensors)
    save_file(lost, folder / "model.safetensors", {"format": "pt"})
    where = ("--data-root", str(tmp_path), "--model", "part", "--max-tokens", "48")
    said = one_line(project.run(*where, *SHORT), 2)
    assert f"{folder} lacks weights of the transformer: bert.encoder.layer.0.output." in said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "bert-tine"), "there is no {root}/data/bert-tine/config.json; did you mean"),
        (("--model", "pretrained"), "--max-tokens 64: pretrained takes 48"),
        (("--val-fraction", "0"), "without validation examples, add --monitor none"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(project, flags, message):
    assert message.format(root=project.root) in one_line(project.run(*flags), 2)


# Texts of one's own


def written(folder: Path) -> Path:
    """A folder with texts of two classes, half of them in each kind of file."""
    folder.mkdir()
    words = {"warm": "sun heat summer sand", "cold": "snow ice winter frost"}
    names = ["text", "label", "group"]
    rows = [
        [f"{' '.join(text.split()[n % 3 :])} day {n}", label, f"{label} {n % 10}"]
        for n in range(40)
        for label, text in words.items()
    ]
    (folder / "some.csv").write_text("\n".join(map(",".join, [names, *rows[:40]])))
    others = [json.dumps(dict(zip(names, row, strict=True))) for row in rows[40:]]
    (folder / "others.jsonl").write_text("\n".join(others))
    return folder


def test_texts_in_files_are_read(project, tmp_path):
    folder = written(tmp_path / "texts")
    flags = ("--dataset", "files", "--data-root", str(folder), "--batch-size", "8", "--lr", "3e-3")
    flags += ("--steps", "60", "--eval-every", "20", "--quiet")
    job = project.finish(*flags)
    assert project.tested(job)["macro_f1"] == 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.csv", "text,label\nwarm,\n", "{root}/a.csv, row 1 has no label"),
        ("a.jsonl", '{"text": "warm", "label": 0}\n\n["cold", 1]\n', "a.jsonl, row 2 has no text"),
        ("a.csv", "text,label\nwarm,0\nhot,0\n", "{root} has only one label, 0"),
        ("a.jsonl", '{"text": "warm"', "{root}/a.jsonl: "),
        ("a.txt", "warm", "there are no texts in {root}, as *.csv or *.jsonl"),
        ("a.csv", "text,label\n1,a\n2,a\n3,b\n4,b\n", "with the label"),
    ],
)
def test_texts_that_will_not_do_are_refused_in_one_line(project, tmp_path, file, content, message):
    (tmp_path / file).write_text(content)
    done = project.run("--dataset", "files", "--data-root", str(tmp_path), "--note", content)
    assert message.format(root=tmp_path) in one_line(done, 2)
