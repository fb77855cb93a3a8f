"""The pages: their links, the tutorial, and the website that is made of them."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from faults import silent
from repository import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs"))
import build_site
import make_tutorial

LISTED = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]


def pages() -> list[str]:
    """All pages of the repository that are on the site, and both READMEs."""
    done = subprocess.run(LISTED, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    found = [name for name in done.stdout.splitlines() if (REPOSITORY / name).is_file()]
    return [name for name in found if build_site.place(name) or name.endswith("README.md")]


def linked(name: str) -> set[str]:
    """The files that a page links to, by their paths in the repository."""
    text = build_site.FENCED.sub("", (REPOSITORY / name).read_text())
    found = [unquote(match[1]) for match in build_site.LINK.finditer(text)]
    return {os.path.normpath(os.path.join(os.path.dirname(name), link)) for link in found}


@pytest.mark.parametrize("name", pages())
def test_no_link_of_a_page_leads_nowhere(name):
    of_examples = {f"{build_site.INNER}/docs/example.md"}  # that project's README links to it
    missing = {link for link in linked(name) if not (REPOSITORY / link).exists()}
    assert missing - of_examples == set()


def test_every_page_is_in_the_navigation():
    on_site = {name for name in pages() if build_site.place(name)} - {"docs/index.md"}
    assert {name for name in linked("docs/index.md") if name.endswith(".md")} == on_site


def test_the_tutorial_has_the_commands_of_its_script_and_their_pictures():
    page = make_tutorial.PAGE.read_text()
    runs = [step for step in make_tutorial.STEPS if isinstance(step, make_tutorial.Run)]
    assert re.findall(r"^\$ (.*)$", page, re.MULTILINE) == [run.command for run in runs]
    for step in make_tutorial.STEPS:
        if isinstance(step, make_tutorial.Picture):
            assert f"![{step.description}](tutorial/{Path(step.path).stem}.png)" in page
        elif isinstance(step, str):
            assert step in page
    assert str(REPOSITORY) not in page


def test_the_tutorial_s_edits_fit_the_template(make):
    project = make()
    for step in make_tutorial.STEPS:
        if isinstance(step, make_tutorial.Edit):
            text = (project / step.file).read_text()
            assert text.count(step.old) == 1, step
            (project / step.file).write_text(text.replace(step.old, step.new))


class Links(HTMLParser):
    """What a page of the site links to, and the places in it that can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.places.add(value)
            elif name in ("href", "src") and value and not re.match(r"[a-z]+:|//", value):
                self.links.add(value)


@pytest.mark.full
def test_the_site_is_built_without_a_warning_and_no_link_is_broken(tmp_path):
    command = [sys.executable, "docs/build_site.py", str(tmp_path / "site")]
    silent(subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True))
    read = {page: Links(page) for page in (tmp_path / "site").rglob("*.html")}
    broken, followed = [], 0
    for page, parsed in read.items():
        for link in parsed.links - {"#"}:
            parts = urlsplit(link)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            place = unquote(parts.fragment)
            followed += 1
            if not target.exists() or (place and place not in read[target].places):
                broken.append(f"{page.name}: {link}")
    assert broken == []
    places = {build_site.place(name) for name in pages()} - {None}
    assert {f"{str(place)[:-3]}.html" for place in places} <= {
        str(page.relative_to(tmp_path / "site")) for page in read
    }
    assert followed > 1000
    names = (tmp_path / "site" / "interface.html").read_text()
    assert "Job.in_background" in re.sub("<[^>]*>", "", names)
    flags = (tmp_path / "site" / "commands.html").read_text()
    assert "--checkpoint-minutes" in flags and "--redo-stale" in flags
