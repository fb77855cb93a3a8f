"""Settings: flags, help, what is refused, and what a change in settings.py does to the ids of jobs.

The dataclasses here stand for what a student may write.
"""

import dataclasses
import json
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import Literal

import pytest
from labjobs import settings as metrics
from labjobs.cli import flags
from labjobs.cli.parser import parse as parse_command
from labjobs.errors import SettingsError
from labjobs.job.identity import as_words, identity, inputs, job_id, restore, since
from labjobs.job.runtime import Runtime
from labjobs.settings import JobId, Metric, Span, Weights, added, setting

METRICS = {"loss": Metric(better="lower"), "mae": Metric(better="lower", range=(0, None))}


@dataclass(frozen=True, kw_only=True)
class Settings:
    # Data
    dataset: Literal["digits", "mnist"] = "digits"
    """What to learn from, 100% of it."""

    # The paper has 0.2 here; this is a comment, no heading.
    val_fraction: float = setting(0.1, at_least=0, below=1)

    # Training
    epochs: int = setting(30, at_least=1, at_most=1000)
    """Passes over
    the examples."""

    steps: int = setting(0, at_least=0, replaces="epochs")
    minutes: float = setting(0.0, at_least=0, replaces="epochs")
    lr: float = setting(1e-3, above=0)
    warmup: Span = Span("0")
    widths: tuple[int, ...] = setting((256, 256), at_least=1)
    betas: tuple[float, float] = (0.9, 0.999)
    limit: int | None = None
    folder: Path = Path("cache")
    pretrained: bool = False
    monitor: str = setting("val_loss", metric=METRICS)
    seed: int = setting(0, at_least=0)
    note: str = ""

    def __post_init__(self):
        if self.seed == 13:
            raise ValueError("--seed 13: brings bad luck")


def parse(*words, kind=Settings):
    return parse_command(kind, Runtime, words)[0]


def id_of(words="", kind=Settings):
    return job_id(parse(*words.split(), kind=kind))


def refusal(*words, kind=Settings):
    """The one line in which a command is refused."""
    with pytest.raises(SettingsError) as caught:
        parse(*words, kind=kind)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(*new, without=(), former=None):
    """The settings after a student has added, changed and deleted fields."""
    names = {name for name, _, _ in new} | {*without}
    kept = [
        (f.name, f.type, dataclasses.field(default=f.default, metadata=f.metadata))
        for f in fields(Settings)
        if f.name not in names
    ]
    return dataclass_of(*kept, *new, former=former)


def dataclass_of(*declared, former=None):
    namespace = {"FORMER": former or {}}
    return make_dataclass("Settings", declared, namespace=namespace, frozen=True, kw_only=True)


# Values


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--dataset mnist", "dataset", "mnist"),
        ("--epochs=3", "epochs", 3),
        ("--warmup 2.50e", "warmup", Span("2.5e")),
        ("--widths 8,16,4", "widths", (8, 16, 4)),
        ("--widths=", "widths", ()),
        ("--betas 0.5,1", "betas", (0.5, 1.0)),
        ("--limit none", "limit", None),
        ("--folder a/b", "folder", Path("a/b")),
        ("--pretrained", "pretrained", True),
        ("--pretrained=off", "pretrained", False),
        ("--monitor val_mae", "monitor", "val_mae"),
    ],
)
def test_a_flag_sets_its_setting(words, name, value):
    read = getattr(parse(*words.split()), name)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    "note",
    ["a b", 'it\'s "so"', "é 北京 🙂", "two\nlines", "--x", "--lr 3", "a=b", "100%", "", "-1"],
)
def test_text_is_passed_on_exactly(note):
    assert parse(f"--note={note}").note == note
    assert note.startswith("--") or parse("--note", note).note == note


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--datset mnist", "--datset: no such flag; did you mean --dataset?"),
        ("--qqqq", "--qqqq: no such flag; see --help"),
        ("mnist", "'mnist' is not a flag; see --help"),
        ("--lr", "--lr: expected one argument"),
        ("--lr fast", "--lr fast: must be a number"),
        ("--lr nan", "--lr nan: must be finite"),
        ("--lr -1e-3", "--lr -1e-3: must be above 0"),
        ("--epochs 2.5", "--epochs 2.5: must be a whole number"),
        ("--epochs 0", "--epochs 0: must be at least 1 and at most 1,000"),
        ("--val-fraction 1", "--val-fraction 1: must be at least 0 and below 1"),
        ("--seed 9223372036854775808", "--seed 9223372036854775808: must be below 2**63"),
        ("--widths 8,x", "--widths 8,x: must be INT,…"),
        ("--betas 0.9", "--betas 0.9: must be FLOAT,FLOAT"),
        ("--limit few", "--limit few: must be none or a whole number"),
        ("--dataset svhn", "--dataset svhn: must be digits or mnist"),
        ("--pretrained maybe", "--pretrained maybe: must be on or off"),
        ("--monitor val_mea", "--monitor val_mea: METRICS in settings.py has no mea (did you mean"),
        ("--monitor mae", "--monitor mae: must be none, or val_ and a metric; did you mean"),
        ("--steps 5 --epochs 3", "--epochs and --steps: give only one of them"),
        ("--seed 13", "--seed 13: brings bad luck"),
        ("--note \udce9", "--note \udce9: must be text in UTF-8"),
        ("--workers -1", "--workers -1: must be at least 0 and at most 1,024"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words, line):
    assert refusal(*words.split()).startswith(line)


SPAN = "must be a number of steps such as 500, or of epochs such as 2e or 0.5e"


@pytest.mark.parametrize("text", ["1e3", "-1", "2.5", "nan", "inf", "e", "", "1 e", "9" * 13, "٣"])
def test_what_is_no_span_is_refused(text):
    with pytest.raises(ValueError, match=f"^{SPAN}$"):
        Span(text)
    assert refusal(f"--warmup={text}") == f"--warmup {text}: {SPAN}"


def test_a_span_is_a_number_of_steps():
    assert [Span(text).steps(10) for text in ("7", "2e", "0.25e", "0", "0.0e")] == [7, 20, 2, 0, 0]
    assert Span("7").steps(None) == 7
    with pytest.raises(SettingsError, match=r"^2e: .* give a number of steps$"):
        Span("2e").steps(None)
    assert [bool(Span(text)) for text in ("0", "0e", "1", "0.5e")] == [False, False, True, True]


def test_the_length_that_is_named_is_the_one_that_counts():
    stepwise = changed(("steps", int, setting(500, at_least=0, replaces="epochs")))
    assert "epochs" not in identity(parse(kind=stepwise))
    in_epochs = parse("--epochs", "3", kind=stepwise)
    assert (in_epochs.steps, identity(in_epochs)["epochs"]) == (0, 3)
    in_minutes = parse("--minutes", "2", kind=stepwise)
    assert (in_minutes.steps, in_minutes.minutes) == (0, 2.0)
    assert job_id(in_epochs) == id_of("--epochs 3")  # whatever the default is
    assert id_of("--steps 0 --epochs 3") == id_of("--epochs 3")


def test_a_setting_that_means_nothing_without_another_counts_only_with_it():
    rates = [0.1, 1.0]
    nested = changed(("momentum", float, setting(0.9, when={"lr": rates, "seed": 0})))
    for words in (["--lr", "2"], ["--lr", "1", "--seed", "1"]):
        idle = parse(*words, "--momentum", "0.5", kind=nested)
        assert (idle.momentum, "momentum" in identity(idle)) == (0.9, False)
        assert job_id(idle) == job_id(parse(*words, kind=nested)) == id_of(" ".join(words))
        assert restore(nested, identity(idle)) == idle
    more = changed(
        ("nesterov", bool, setting(False, when={"momentum": 0.9})),
        ("momentum", float, setting(0.9, when={"lr": rates, "seed": 0})),
    )
    assert {"momentum", "nesterov"} & identity(parse("--lr", "2", kind=more)).keys() == set()
    assert "nesterov" in identity(parse("--lr", "1", kind=more))
    first, second = (parse("--lr", "1", "--momentum", m, kind=nested) for m in ("0.5", "0.9"))
    assert job_id(first) != job_id(second)
    assert restore(nested, identity(first)) == first


# Runtime


def test_runtime_flags_are_no_settings():
    settings, runtime = parse_command(
        Settings, Runtime, ["--workers", "2", "--lr", "1", "--pause-after", "2e", "--profile"]
    )
    assert settings == Settings(lr=1.0)
    assert (runtime.workers, runtime.pause_after, runtime.profile) == (2, "2e", 20)
    assert parse_command(Settings, Runtime, ["--profile", "5"])[1].profile == 5
    assert not {field.name for field in fields(Runtime)} & {*identity(settings)}


# Help


def shown_help(kind, capsys):
    with pytest.raises(SystemExit) as ended:
        parse("--help", kind=kind)
    assert ended.value.code == 0
    return capsys.readouterr().out


@dataclass(frozen=True, kw_only=True)
class Longer(Settings):
    """Settings of a second script."""

    # More
    depth: int = 2
    """Layers."""


@pytest.mark.parametrize("kind", [Settings, Longer])
def test_help_has_headings_docstrings_and_defaults(kind, capsys):
    shown = " ".join(shown_help(kind, capsys).split())
    assert ("More: --depth INT Layers. (default: 2)" in shown) == (kind is Longer)
    for words in (
        "Data: --dataset digits|mnist What to learn from, 100% of it. (default: digits)",
        "Training: --epochs INT Passes over the examples. (default: 30)",
        "--widths INT,… (default: 256,256)",
        "--limit none|INT (default: none)",
        "--pretrained [on|off] (default: off)",
        "--monitor NAME One of none, val_loss, val_mae. (default: val_loss)",
        "--note STR (default: empty)",
    ):
        assert words in shown
    assert "a comment, no heading" not in shown


# Jobs that are derived from others


FIRST, SECOND = "1872aa178ea7", "6481210abf0b"


@dataclass(frozen=True, kw_only=True)
class Derived:
    """What a script may have that does not train."""

    first: JobId
    others: tuple[JobId, ...] = ()
    teacher: JobId | None = None


def test_other_jobs_are_named_by_their_ids():
    settings = parse("--first", FIRST, "--others", f"{FIRST},{SECOND}", kind=Derived)
    assert inputs(settings) == {FIRST: "--first", SECOND: "--others"}
    assert restore(Derived, json.loads(json.dumps(identity(settings)))) == settings
    wanted = "the id of a job, 12 hexadecimal digits or at least its first 4"
    assert refusal(kind=Derived) == f"--first: is missing; it must be {wanted}"
    assert refusal("--first=1872aa", kind=Derived) == "--first 1872aa: no such job here"
    for wrong in ("", "187", FIRST.upper(), f"{FIRST}0"):
        assert "must be the id of a job" in refusal(f"--first={wrong}", kind=Derived)


@dataclass(frozen=True, kw_only=True)
class Begun:
    """What a job may have that begins with another one's weights."""

    init_from: Weights | None = added(None, neutral=None)


def test_weights_are_named_by_the_job_that_has_learnt_them(capsys):
    best, last = (parse("--init-from", text, kind=Begun) for text in (FIRST, f"{FIRST}:last"))
    assert (best.init_from.job, best.init_from.last) == (FIRST, False)
    assert (last.init_from.job, last.init_from.last) == (FIRST, True)
    for settings in (best, last):
        assert inputs(settings) == {FIRST: "--init-from"}
        assert restore(Begun, json.loads(json.dumps(identity(settings)))) == settings
    assert len({job_id(each) for each in (best, last, Begun())}) == 3
    assert inputs(parse("--init-from", "none", kind=Begun)) == {}
    assert "--init-from none|WEIGHTS" in shown_help(Begun, capsys)
    for wrong in ("", "187", f"{FIRST}:first", f"{FIRST}:", ":last"):
        line = f"--init-from {wrong}: must be none or the id of a job, 12 hexadecimal digits"
        assert refusal(f"--init-from={wrong}", kind=Begun).startswith(line)


def test_flags_of_training_are_for_settings_that_train(capsys):
    for flag in ("--pause-after=3", "--profile", "--loader=workers"):
        assert parse(flag)
        assert "no such flag" in refusal("--first", FIRST, flag, kind=Derived)
    assert "--loader" not in shown_help(Derived, capsys)
    assert "--loader" in shown_help(dataclass_of(("batch_size", int, 8)), capsys)


# Registries


REGISTRIES = {
    "a dict": 'NAMES = {"mlp": 1, "vit": 2}',
    "another dict in it": 'MORE = {"vit": 2}\nNAMES = {"mlp": 1, **MORE}',
    "a line below": 'NAMES = {"mlp": 1}\nNAMES["vit"] = 2',
    "an addition below": 'NAMES = {"mlp": 1}\nNAMES |= {"vit": 2}',
    "itself in it": 'NAMES = {"mlp": 1}\nNAMES = {**NAMES, "vit": 2}',
    "a decorator": 'NAMES = {"mlp": 1}\n@register("vit")\ndef vit(): ...',
    "a decorated class": 'NAMES = {"mlp": 1}\n@register("vit")\nclass ViT: ...',
}
OTHER = 'OTHER = {"x": 1}\nOTHER["y"] = 2\n'


@pytest.fixture
def with_registry(tmp_path, monkeypatch):
    """Returns settings with a name out of a registry that stands in a module `parts`."""
    monkeypatch.setattr(flags, "CODE", tmp_path)

    def make(source, file="parts.py", **rules):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("raise SystemExit  # imported\n" + source)
        return dataclass_of(("model", str, setting("mlp", names="parts.NAMES", **rules)))

    return make


@pytest.mark.parametrize("source", REGISTRIES.values(), ids=REGISTRIES)
def test_names_of_a_registry_are_known_without_importing_it(with_registry, source, capsys):
    kind = with_registry(OTHER + source)
    assert parse("--model", "vit", kind=kind).model == "vit"
    assert refusal("--model", "vti", kind=kind) == "--model vti: no such model; did you mean vit?"
    assert refusal("--model", "q", kind=kind) == "--model q: no such model; known: mlp, vit"
    assert "One of mlp, vit. (default: mlp)" in shown_help(kind, capsys)


def test_a_registry_may_be_a_package_and_other_names_allowed(with_registry, capsys):
    kind = with_registry(REGISTRIES["a dict"], "parts/__init__.py", others="any classifier")
    assert parse("--model", "resnet18", kind=kind).model == "resnet18"
    assert "One of mlp, vit, or any classifier." in shown_help(kind, capsys)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("NAMES = {n: n for n in 'ab'}", "parts.NAMES: must be a dict with literal names"),
        ("NAMES = {first: 1}", "parts.NAMES: must be a dict with literal names"),
        ("OTHER = {}", "parts.NAMES: there is no such dict, or it is empty"),
        ("NAMES = {", "parts.py, line 2:"),
        ('NAMES = {"vit": 1}', "Settings.model: its default 'mlp': no such model"),
    ],
)
def test_a_registry_that_cannot_be_read_is_named(with_registry, source, line):
    assert refusal(kind=with_registry(source)).startswith(line)
    nowhere = "parts.NAMES: there is no parts.py in the project"
    (Path(flags.CODE) / "parts.py").unlink()
    assert refusal(kind=with_registry(source, "other.py")) == nowhere


# What a change in settings.py does to ids


def test_ids_are_those_of_always():
    # A change here makes every finished job of every project a new one.
    assert job_id(Settings()) == "d356012f2f9c"
    assert job_id(Settings(), "analyse") != job_id(Settings())


def test_the_spelling_of_a_value_does_not_matter():
    assert len({id_of(words) for words in ("", "--lr 0.001", "--lr 1e-3", "--lr=.00100")}) == 1
    assert job_id(Settings(lr=1)) == id_of("--lr 1") == id_of("--lr 1.0")
    assert id_of("--val-fraction -0.0") == id_of("--val-fraction 0")
    assert id_of("--betas 1,0") == id_of("--betas 1.0,0.0")
    assert id_of("--warmup 2.0e") == id_of("--warmup 02e")
    assert id_of("--folder a/") == id_of("--folder a")


def test_every_setting_counts_but_a_replaced_one():
    values = {
        **{"dataset": "mnist", "epochs": 3, "steps": 3, "minutes": 3, "lr": 1, "warmup": "1e"},
        **{"widths": 2, "betas": "1,1", "limit": 0, "folder": "x", "pretrained": "on"},
        **{"monitor": "none", "seed": 1, "note": "x"},
    }
    assert {*values} == {field.name for field in fields(Settings)} - {"val_fraction"}
    one_each = ["", "--warmup 1", *(f"--{name} {value}" for name, value in values.items())]
    assert len({id_of(words) for words in one_each}) == len(one_each)
    assert job_id(Settings(steps=3, epochs=1)) == job_id(Settings(steps=3, epochs=2))


CHANGES = {
    "default": (changed(("lr", float, 3e-3)), {"": "--lr 3e-3", "--lr 1e-3": ""}),
    "added": (
        changed(("dropout", float, added(0.1, neutral=0.0))),
        {"--dropout 0": "", "--dropout 0 --lr 1": "--lr 1"},
    ),
    "renamed": (
        changed(("rate", float, setting(1e-3, formerly="lr")), without=["lr"]),
        {"": "", "--rate 1": "--lr 1"},
    ),
    "deleted": (
        changed(without=["lr"], former={"lr": 0.5}),
        {"": "--lr 0.5", "--seed 1": "--lr 0.5 --seed 1"},
    ),
}
"""Settings after a change, and words that name the same job then as others before."""


@pytest.mark.parametrize(("kind", "alike"), CHANGES.values(), ids=CHANGES)
def test_ids_stay_what_they_were(kind, alike):
    for now, before in alike.items():
        assert id_of(now, kind) == id_of(before)


def test_what_was_added_renamed_or_deleted_is_known():
    with_dropout, with_rate, without_lr = (CHANGES[n][0] for n in ("added", "renamed", "deleted"))
    words = ("", "--dropout 0.2", "--dropout 0")
    assert len({id_of(each, with_dropout) for each in words}) == 3
    assert since(with_dropout)["neutral"] == {"dropout": 0}
    for flag in (["--lr", "1"], ["--lr=1"]):
        assert refusal(*flag, kind=with_rate) == "--lr: is now --rate"
        assert refusal(*flag, kind=without_lr) == "--lr: was deleted; see FORMER in Settings"
    assert id_of(kind=changed(without=["lr"])) not in {id_of(), id_of("--lr 0.5")}


@pytest.mark.parametrize(
    "words", ["", "--steps 7", "--betas 1,0 --limit 3 --warmup 2e --pretrained"]
)
@pytest.mark.parametrize("change", CHANGES)
def test_a_stored_job_is_the_same_one_under_later_settings(change, words):
    job = parse("--lr", "0.5", *words.split())
    stored = json.loads(json.dumps(identity(job)))
    assert job_id(restore(Settings, stored)) == job_id(job)
    assert job_id(restore(CHANGES[change][0], stored)) == job_id(job)


def test_a_setting_that_does_not_count_keeps_its_default_in_a_stored_job():
    dropout = added(0.1, neutral=0.0, when={"lr": 5.0})
    kind = changed(("dropout", float, dropout))
    stored = {rate: restore(kind, identity(Settings(lr=rate))).dropout for rate in (0.5, 5.0)}
    assert stored == {0.5: 0.1, 5.0: 0.0}


def test_words_that_look_like_other_values_are_stored_as_they_are():
    readers = {
        name: flags.Reader(kind)
        for name, kind in (("word", Literal["None", "True"]), ("text", str), ("none", str | None))
    }
    words = {
        name: [t for t in ("None", "True", "1") if r.is_word(t)] for name, r in readers.items()
    }
    assert words == {
        "word": ["None", "True"],
        "text": ["None", "True", "1"],
        "none": ["True", "1"],
    }


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (changed(without=["lr"]), "lr=0.5: no setting in this settings.py"),
        (changed(without=["lr"], former={"lr": 1}), "lr=0.5: no setting in this settings.py"),
        (changed(("width", int, 3)), "the job has no value of the setting width, which has no"),
    ],
)
def test_a_stored_job_that_cannot_be_said_any_longer_is_refused(kind, line):
    with pytest.raises(SettingsError) as caught:
        restore(kind, identity(Settings(lr=0.5)))
    assert str(caught.value).startswith(line)


def test_a_job_is_called_by_its_seed_and_what_is_not_default():
    assert as_words(parse()) == "seed=0"
    words = "--lr 1 --note", "a  b\nc", "--widths 8,9 --pretrained --limit 3 --seed 2"
    said = as_words(parse(*words[0].split(), words[1], *words[2].split()))
    assert said == "seed=2 lr=1 widths=8,9 limit=3 pretrained=on note=a b c"
    assert as_words(parse("--lr", "1", "--note", "x" * 300)) == "seed=0 lr=1"  # short for MLflow
    red = as_words(parse("--note", "\x1b[31mred"))
    assert red == "seed=0 note=?[31mred"  # or a terminal would obey
    kind = changed(("model", str, "mlp"))
    assert as_words(kind(lr=1.0, model="convnet")) == "convnet seed=0 lr=1"


# Mistakes in settings.py


NO_TYPE = dataclass(frozen=True)(type("Settings", (), {"width": 3}))
NOT_FROZEN = make_dataclass("Settings", [("width", int, 3)])
DECLARE = "Settings: must be a @dataclass(frozen=True, kw_only=True)"
MISTAKES = [
    (type("Settings", (), {}), DECLARE),
    (NOT_FROZEN, DECLARE),
    (NO_TYPE, "Settings.width: needs a type, such as `width: int = …`"),
    (dataclass_of(("width", int)), "Settings.width: needs a default"),
    (dataclass_of(("width", complex, 3j)), "Settings.width: its type must be bool, int, float, "),
    (dataclass_of(("width", "Wdth", 3)), "Settings: a type cannot be read: name 'Wdth' is not"),
    (dataclass_of(("width", int, 2.5)), "Settings.width: its default 2.5: must be a whole number"),
    (dataclass_of(("width", int, setting(0, above=0))), "Settings.width: its default 0: must be"),
    (dataclass_of(("width", int, added(1, neutral="none"))), "Settings.width: its neutral value"),
    (dataclass_of(("width", int, setting(0, role="x"))), 'Settings.width: role="x": must be'),
    (
        dataclass_of(("width", int, dataclasses.field(default=3, init=False))),
        "Settings.width: a value",
    ),
    (dataclass_of(("device", str, "auto")), "Settings.device: --device is a flag of the engine"),
    (dataclass_of(("help", str, "")), "Settings.help: --help is a flag of the engine"),
    (dataclass_of(("step", int, 3)), "Settings.step: tables of results have a column of this name"),
    (dataclass_of(("steps", int, setting(0, replaces="epoch"))), "Settings.steps: replaces="),
    (dataclass_of(("m", int, setting(0, when={"opt": "sgd"}))), "Settings.m: when={'opt': 'sgd'}"),
    (
        changed(("m", int, setting(0, when={"lr": [0.1, "high"]}))),
        "Settings.lr: its value in when of m 'high': must be",
    ),
    (
        changed(
            ("steps", int, setting(3, replaces="epochs")),
            ("minutes", float, setting(3.0, replaces="epochs")),
        ),
        "Settings.steps: only one of steps and minutes may have a default above 0",
    ),
    (changed(("rate", float, setting(1.0, formerly="lr"))), 'Settings.rate: formerly="lr" is'),
    (changed(former={"lr": 1}), "Settings.lr: is in FORMER as well, among the deleted settings"),
    (changed(("monitor", str, setting("val_x", metric=METRICS))), "Settings.monitor: its default"),
]


@pytest.mark.parametrize(("kind", "line"), MISTAKES, ids=[line[:50] for _, line in MISTAKES])
def test_a_mistake_in_the_dataclass_is_said_in_one_line(kind, line):
    assert refusal(kind=kind).startswith(line)


@pytest.mark.parametrize(
    ("declared", "line"),
    [
        (["loss"], "METRICS: must be a dict of names and Metric(…)"),
        ({"val_loss": Metric(better="lower")}, "METRICS['val_loss']: val_ is added to the name"),
        ({"my loss": Metric(better="lower")}, "METRICS['my loss']: its name must be letters"),
        ({"loss": "lower"}, "METRICS['loss']: must be a Metric"),
        ({"loss": Metric(better="up")}, "METRICS['loss']: better='up': must be"),
        ({"loss": Metric(better="lower", scale="sqrt")}, "METRICS['loss']: scale='sqrt': must be"),
        ({"loss": Metric(better="lower", range=(1, 0))}, "METRICS['loss']: range=(1, 0): must be"),
        ({"loss": Metric(better="lower", target="0")}, "METRICS['loss']: target='0': must be"),
        ({"loss": Metric(better="lower", at_start="log(x)")}, "METRICS['loss']: at_start='log(x)'"),
    ],
)
def test_a_mistake_in_the_metrics_is_said_in_one_line(declared, line):
    with pytest.raises(SettingsError) as caught:
        metrics.check(declared)
    assert str(caught.value).startswith(line)


def test_declared_metrics_survive_as_json():
    stored = json.loads(json.dumps(metrics.as_plain(METRICS)))
    assert metrics.from_plain(stored) == METRICS
    stored["loss"]["later"] = 1
    assert metrics.from_plain(stored) == METRICS
    for damaged in ([], {"loss": 3}, {"loss": {}}, {"loss": {"better": "lower", "range": 3}}):
        with pytest.raises(SettingsError, match=r"^METRICS"):
            metrics.from_plain(damaged)
