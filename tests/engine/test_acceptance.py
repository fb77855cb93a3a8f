"""Changes that are accepted as changing no results: which code counts as the same."""

import pytest
from labjobs import layout
from labjobs.errors import SettingsError
from labjobs.job.code_evidence import Accepted, Change, accept, accepted, between

ABOUT = {"because": "a refactor", "by": "Ada", "on": "2026-11-22", "verified": True}


def change(old: dict[str, str], new: dict[str, str]) -> Change:
    return Change(old, new, **ABOUT)


def test_all_codes_that_followed_one_another_count_as_one():
    found = Accepted(codes=[("a", "b"), ("x", "y"), ("b", "c")])
    assert found.same("a") == found.same("c") == {"a", "b", "c"}
    assert found.same("x") == {"x", "y"}
    assert found.same("other") == {"other"}


def test_a_function_that_was_split_is_one_change():
    old, new = {"train": "1", "MLP": "8"}, {"train": "2", "helper": "5", "MLP": "8"}
    ((before, after),) = between(old, new)
    assert (before, after) == ({"train": "1"}, {"train": "2", "helper": "5"})
    assert Accepted([change(before, after)]).oldest(new) == old
    assert between({"train": "1", "MLP": "8"}, {"train": "2", "MLP": "9"}) == [
        ({"train": "1"}, {"train": "2"}),
        ({"MLP": "8"}, {"MLP": "9"}),
    ]


def test_the_larger_of_two_changes_with_the_same_parts_comes_first():
    small = change({"train": "1"}, {"train": "2", "helper": "5"})
    large = change({"train": "1", "MLP": "8"}, {"train": "2", "helper": "5", "MLP": "9"})
    found = Accepted([small, large])
    assert found.oldest({"train": "2", "helper": "5", "MLP": "9"}) == {"train": "1", "MLP": "8"}
    assert found.oldest({"train": "2", "helper": "5"}) == {"train": "1"}


def test_it_is_read_as_written_and_further_changes_are_added(tmp_path):
    first, second = change({"a": "1"}, {"a": "2"}), change({"b": "1"}, {"b": "2"})
    accept([first], [("x", "y")], tmp_path)
    accept([first, second], [("x", "y"), ("y", "z")], tmp_path)
    assert accepted(tmp_path) == Accepted([first, second], [("x", "y"), ("y", "z")])


@pytest.mark.parametrize("content", ["", "[]", "<<<<<<< HEAD", '{"changes": [{}], "codes": []}'])
def test_a_damaged_file_is_one_line(tmp_path, content):
    (tmp_path / layout.ACCEPTED).write_text(content)
    with pytest.raises(SettingsError, match="restore it from version control"):
        accepted(tmp_path)
