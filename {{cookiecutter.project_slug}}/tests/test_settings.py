"""The settings: flags, the job's identity, and what is refused."""

import ast
from dataclasses import dataclass, fields, make_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from engine.cli import parser as cli
from engine.cli import settings
from engine.cli.settings import JobSettings, Runtime, added, as_words, identity, job_id
from engine.errors import SettingsError

DEFAULTS = JobSettings()
NAMES = [field.name for field in fields(JobSettings)]
RUNTIME = [field.name for field in fields(Runtime)]


@dataclass(frozen=True, kw_only=True)
class Grown(JobSettings):
    """Later"""

    dropout: float = added(0.1, neutral=0.0)
    """Share of activations set to zero, 100% at most."""

    width: float = added(2, neutral=1)
    """Width of the network."""


def parse(*words):
    return cli.parse(JobSettings, words)


def id_of(*words, kind=JobSettings):
    return job_id(cli.parse(kind, words))


def flag(name):
    return "--" + name.replace("_", "-")


def other(name):
    """A value of a setting that is not its default."""
    default, kind = getattr(DEFAULTS, name), get_type_hints(JobSettings)[name]
    if get_origin(kind) is Literal:
        return next(word for word in get_args(kind) if word != default)
    match default:
        case bool():
            return not default
        case int():
            return default + 1
        case float():
            return default / 2 or 0.5
        case Path():
            return default / "other"
        case "auto" if int in get_args(kind):
            return 7
    return default + "x"


@pytest.mark.parametrize("name", NAMES)
def test_each_flag_sets_its_setting(name):
    value = other(name)
    words = [flag(name)] if value is True else [flag(name), str(value)]
    assert parse(*words) == replace(DEFAULTS, **{name: value})
    assert parse("=".join(words)) == parse(*words)


@pytest.mark.parametrize("name", NAMES)
def test_id_changes_with_every_setting_but_those_of_runtime(name):
    changed = replace(DEFAULTS, **{name: other(name)})
    assert (job_id(changed) == job_id(DEFAULTS)) is (name in RUNTIME)
    assert (name in identity(changed)) is (name not in RUNTIME)
    assert as_words(changed) == ("defaults" if name in RUNTIME else f"{name}={other(name)}")


def test_old_ids_never_change():
    # The one reason to change this: a default was changed, so the bare command is another job.
    assert job_id(DEFAULTS) == "d542853c09c9"


def test_spelling_of_a_number_is_no_matter():
    spelled = (("--lr", "0.001"), ("--lr", "1e-3"), ("--lr=.00100",), ())
    assert {id_of(*words) for words in spelled} == {job_id(DEFAULTS)}
    assert id_of("--lr", "1") == id_of("--lr", "1.0")
    assert id_of("--weight-decay", "-0.0") == id_of("--weight-decay", "0")


def test_whole_number_in_the_code_is_the_same_as_on_the_command_line():
    assert job_id(JobSettings(lr=1)) == id_of("--lr", "1")
    assert id_of(kind=Grown) == id_of("--width", "2", kind=Grown)


def test_setting_added_later_leaves_old_ids_alone():
    neutral = ("--dropout", "0", "--width", "1")
    assert id_of(*neutral, kind=Grown) == job_id(DEFAULTS)
    assert id_of(*neutral, "--lr", "1", kind=Grown) == id_of("--lr", "1")
    ids = [id_of(*words, kind=Grown) for words in ((), neutral, neutral[:2], neutral[2:])]
    assert len(set(ids)) == 4


def docs():
    """The docstrings of the fields, as they stand in the source, by field."""
    tree = ast.parse(Path(settings.__file__).read_text() + Path(__file__).read_text())
    bodies = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        field.target.id: doc.value.value
        for body in bodies
        for field, doc in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr)
    }


def test_help_has_every_flag_with_its_docstring_and_default(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.parse(Grown, ["--help"])
    assert ended.value.code == 0
    shown = "".join(capsys.readouterr().out.split())  # however it was wrapped
    for field in fields(Grown):
        default = str(field.default)
        default = {"True": "on", "False": "off", "": "none"}.get(default, default)
        words = f"{docs()[field.name]} (default: {default})"
        assert flag(field.name) in shown
        assert "".join(words.split()) in shown
    for heading in ("Data", "Model", "Optimization", "Later"):
        assert f"{heading}:--" in shown


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--modle mlp", "--modle: no such flag; did you mean --model?"),
        ("--optim sgd", "--optim: no such flag; did you mean --optimizer?"),
        ("--qqqq", "--qqqq: no such flag; see --help"),
        ("mlp", "'mlp' is not a flag; see --help"),
        ("--lr", "--lr: expected one argument"),
        ("--lr fast", "--lr: 'fast' is not a number"),
        ("--epochs 2.5", "--epochs: '2.5' is not a whole number"),
        ("--image-size big", "--image-size: 'big' is not auto or a whole number"),
        ("--optimizer adamm", "--optimizer: no 'adamm'; did you mean adam?"),
        ("--optimizer qqqq", "--optimizer: no 'qqqq'; known: adam, adamw, sgd"),
    ],
)
def test_wrong_flag_or_word_is_said_in_one_line(words, line):
    with pytest.raises(SettingsError) as caught:
        parse(*words.split())
    assert str(caught.value) == line


def test_a_flag_that_counts_may_stand_alone():
    alone = parse("--profile", "--eval-beside", "--quiet")
    assert (alone.profile, alone.eval_beside, alone.quiet) == (20, 1, True)
    numbered = parse("--profile", "5", "--eval-beside=3")
    assert (numbered.profile, numbered.eval_beside) == (5, 3)


def test_a_schedule_by_results_needs_them_at_once():
    with pytest.raises(SettingsError, match=r"^--eval-beside 1: must be 0 for --schedule plateau$"):
        parse("--eval-beside", "--schedule", "plateau")


OUT_OF_RANGE = {
    "lr": ("0", "-1", "inf", "nan"),
    "epochs": ("0", "-1"),
    "batch_size": ("0",),
    "weight_decay": ("-1", "inf", "nan"),
    "warmup": ("-1", "30", "nan"),
    "label_smoothing": ("-0.1", "1", "nan"),
    "val_fraction": ("0", "1", "nan"),
    "ema": ("-0.1", "1", "nan"),
    "clip_norm": ("-1", "inf", "nan"),
    "checkpoint_minutes": ("0", "-1", "nan"),
    "patience": ("-1",),
    "seed": ("-1", str(2**64)),
    "split_seed": ("-1",),
    "image_size": ("0",),
    "workers": ("-1",),
    "log_every": ("0",),
    "profile": ("-1",),
    "eval_beside": ("-1",),
}


def test_every_number_has_its_bounds():
    numbers = {name for name in NAMES if type(other(name)) in (int, float)}
    assert numbers == set(OUT_OF_RANGE)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in OUT_OF_RANGE for value in OUT_OF_RANGE[name]]
)
def test_number_out_of_range_is_said_in_one_line(name, value):
    with pytest.raises(SettingsError) as caught:
        parse(f"{flag(name)}={value}")
    assert str(caught.value).startswith(f"{flag(name)} {value.split('.')[0]}")
    assert ": must be " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", ["--lr=--", "--note=--"])
def test_two_dashes_are_a_value_or_refused(words):
    """argparse takes them for a value from Python 3.13 on."""
    try:
        assert parse(words).note == "--"
    except SettingsError as error:
        assert "'--'" in str(error) and "\n" not in str(error)


def test_newline_in_a_wrong_flag_stays_in_the_line():
    with pytest.raises(SettingsError) as caught:
        parse("--a\nb")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "note",
    ["a b", 'it\'s "so"', "é 北京 🙂", "two\nlines", "--x", "--lr 3", "a=b", "100%", ""],
)
def test_note_is_passed_on_exactly(note):
    assert parse(f"--note={note}").note == note
    assert note.startswith("--") or parse("--note", note).note == note


@pytest.mark.parametrize("kind", [tuple[int, ...], int | None])
def test_setting_of_a_type_that_cannot_be_read_is_refused(kind):
    wrong = make_dataclass("Settings", [("width", kind, 3)], bases=(JobSettings,), frozen=True)
    with pytest.raises(SettingsError, match=r"^Settings\.width: needs a default, and one of"):
        cli.parse(wrong, [])
