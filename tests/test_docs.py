"""The pages: their links, the tutorial, and the website that is made of them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from faults import silent
from labjobs.commands.command import COMMANDS
from repository import REPOSITORY
from test_prose import listed

sys.path.insert(0, str(REPOSITORY / "docs"))
import build_site
import make_tutorial


def pages() -> list[str]:
    """All pages of the repository that are on the site, and both READMEs."""
    return [name for name in listed("*.md") if build_site.place(name) or "README.md" in name]


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


def test_the_page_about_jobs_lists_all_commands():
    page = (REPOSITORY / build_site.INNER / "labjobs/docs/jobs.md").read_text()
    table = page.partition("## All commands of `jobs.py`")[2].partition("```")[0]
    assert {*COMMANDS} - {*re.findall("`([^`]+)`", table)} == set()


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


def test_the_tutorial_s_edits_fit_the_template(project):
    for step in make_tutorial.STEPS:
        if isinstance(step, make_tutorial.Edit):
            assert (project.root / step.file).read_text().count(step.old) == 1, step
            project.edit(step.file, step.old, step.new)


@pytest.mark.full
def test_the_site_is_built_without_a_warning(tmp_path):
    """Sphinx warns of a link that leads nowhere, and of a place that a page does not have."""
    site = tmp_path / "site"
    command = [sys.executable, "docs/build_site.py", str(site)]
    silent(subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True))
    places = {build_site.place(name) for name in pages()} - {None}
    assert all((site / str(place)).with_suffix(".html").exists() for place in places)
    names = (site / "interface.html").read_text()
    assert "Job.in_background" in re.sub("<[^>]*>", "", names)
    flags = (site / "commands.html").read_text()
    assert "--checkpoint-minutes" in flags and "--redo-stale" in flags
