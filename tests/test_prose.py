"""What people read: its spelling, and words that we agreed not to use (docs/words.txt)."""

import re
import subprocess
import sys

import pytest
from repository import REPOSITORY

WORDS = REPOSITORY / "docs" / "words.txt"
INNER = "{{cookiecutter.project_slug}}"
SPELLED = ("*.md", "*.py", "*.sh", "*.toml", "*.yml", "*.tex", "cookiecutter.json", WORDS.name)
MISSPELLED = ("abd", "analise", "acuracy", "caf", "lits", "modle", "notin", "regist")
"""Words that tests misspell on purpose, and parts of names."""


def listed(*patterns: str) -> list[str]:
    """Files of the repository, those that are new included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (REPOSITORY / name).is_file()]


def prose(page: str) -> str:
    """A page's sentences, on the lines where they were: code and addresses are one letter."""
    page = re.sub(
        r"^```.*?^```", lambda found: "\n" * found[0].count("\n"), page, flags=re.M | re.S
    )
    page = re.sub(r"`[^`]*`", lambda found: "C" + "\n" * found[0].count("\n"), page)
    return re.sub(r"\]\([^)]*\)|^\[[^\]]+\]: .*", "]", page, flags=re.M)


@pytest.fixture(scope="module")
def pages():
    """The sentences of all pages, and of the texts of --help, by file."""
    found = {name: prose((REPOSITORY / name).read_text()) for name in listed("*.md")}
    for name in ("settings.py", "labjobs/job/runtime.py", "labjobs/commands/command.py"):
        found[f"{INNER}/{name}"] = (REPOSITORY / INNER / name).read_text()
    return found


def unwanted() -> list[tuple[re.Pattern[str], str]]:
    lines = [line for line in WORDS.read_text().splitlines() if line and line[0] != "#"]
    rows = [line.rsplit(" | ", 1) for line in lines]
    return [(re.compile(rf"\b({words})\b", re.IGNORECASE), instead) for words, instead in rows]


def found_in(pages: dict[str, str]) -> list[str]:
    """Each unwanted word, with its place and what to write instead."""
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}: {instead}"
        for name, text in pages.items()
        for words, instead in unwanted()
        for found in words.finditer(text)
    ]


def test_no_page_has_an_unwanted_word(pages):
    assert found_in(pages) == []


def test_unwanted_words_are_found_on_their_line_and_not_in_code():
    page = "# A title\n\n```\nroom\n```\nThe `room`\nhas a floor.\n"
    assert found_in({"page.md": prose(page)}) == ["page.md:7: floor: layer"]


def test_spelling():
    tests = [name for name in listed(*SPELLED) if "code_edits" not in name]
    command = [sys.executable, "-m", "codespell_lib", "-L", ",".join(MISSPELLED), *tests]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
