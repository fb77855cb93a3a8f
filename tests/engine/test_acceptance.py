"""Changes that are accepted as changing no results: which code counts as the same."""

import shutil
import subprocess

import pytest
from labjobs import layout
from labjobs.errors import SettingsError
from labjobs.job.code_evidence import Accepted, accept, accepted, oldest, same
from repository import PROJECT, commit


def change(old: str, new: str) -> Accepted:
    return Accepted(old, new, {"run.train": ["1", "2"]}, "a refactor", "Ada", "2026-11-22", {})


def test_all_codes_that_followed_one_another_count_as_one(tmp_path):
    accept([change("x", "y"), change("b", "c")], tmp_path)
    accept([change("a", "b")], tmp_path)
    assert accepted(tmp_path) == [change("a", "b"), change("b", "c"), change("x", "y")]
    assert [same(each, tmp_path) for each in "acx-"] == [{*"abc"}, {*"abc"}, {*"xy"}, {"-"}]
    assert [oldest(each, tmp_path) for each in "acy-"] == ["a", "a", "x", "-"]


def test_a_change_that_was_accepted_both_ways_has_an_oldest_code(tmp_path):
    accept([change("a", "b"), change("b", "a")], tmp_path)
    assert oldest("a", tmp_path) in same("b", tmp_path) == {"a", "b"}


def test_what_two_branches_accept_merges(tmp_path):
    def git(*words: str) -> None:
        who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    shutil.copy(PROJECT / ".gitattributes", tmp_path)
    accept([change("a", "b")], tmp_path)
    commit(tmp_path)
    git("branch", "other")
    accept([change("b", "c")], tmp_path)
    git("commit", "-qam", "one")
    git("checkout", "-q", "other")
    accepted.cache_clear()
    accept([change("b", "d")], tmp_path)
    git("commit", "-qam", "other")
    git("merge", "-q", "@{-1}", "-m", "both")
    accepted.cache_clear()
    assert accepted(tmp_path) == [change("a", "b"), change("b", "c"), change("b", "d")]
    assert same("c", tmp_path) == {*"abcd"}


@pytest.mark.parametrize("content", ["[]", "<<<<<<< HEAD", "{}", '{"schema": 3}'])
def test_a_damaged_file_is_one_line(tmp_path, content):
    (tmp_path / layout.ACCEPTED).write_text(content)
    with pytest.raises(SettingsError, match="restore it from version control"):
        accepted(tmp_path)
