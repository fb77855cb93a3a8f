"""Builds the website from the pages that there are: docs/, the engine's, examples, benchmarks.

    python docs/build_site.py           # docs/_site/index.html
    python docs/build_site.py FOLDER    # a new or empty one

Pages stay where they are and read well there. They are copied into a folder, links between them
are set to their new places, and what comes from the code is added: what the commands print for
`--help`, the names of `labjobs` with their docstrings, the layers of the engine. docs/index.md
is the home page and, with its headings and links, the navigation. Sphinx's warnings are errors.
"""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cookiecutter.main import cookiecutter

REPOSITORY = Path(__file__).resolve().parents[1]
INNER = "{{cookiecutter.project_slug}}"

LINK = re.compile(r"(?<=\])\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

COMMANDS = [
    ["python", "run.py", "--help"],
    ["bash", "run.sh", "--help"],
    ["python", "plot.py", "--help"],
    ["python", "jobs.py", "--help"],
    *(["python", "jobs.py", name, "--help"] for name in ("list", "show", "stale", "why")),
    *(
        ["python", "jobs.py", name, "--help"]
        for name in ("accept", "sync", "repeat", "export-model")
    ),
    *(["python", "jobs.py", "find", name, "--help"] for name in ("lr", "batch-size")),
    *(["python", "jobs.py", "find", name, "--help"] for name in ("noise-scale", "workers")),
]
OF_THE_ENGINE = {"start", "stop", "finish", "close", "end_training"}
"""Methods of a job that the engine calls, and no script."""
MADE_BY_THE_ENGINE = {"Job", "Batches", "Forward", "Timing"}


def place(path: str) -> str | None:
    """Return where a file of the repository is on the site; None if it is not there."""
    if path == "README.md":
        return "readme.md"
    example = re.fullmatch(r"examples/(\w+)/README\.md", path)
    if example:
        return f"examples/{example[1]}.md"
    for folder, there in (
        (f"{INNER}/labjobs/docs/", "project/"),
        ("benchmarks/", path[:11]),
        ("docs/", ""),
    ):
        if path.startswith(folder) and path.endswith((".md", ".png")):
            return there + path.removeprefix(folder)
    return None


def relinked(text: str, path: str) -> str:
    """Return a page with its links set to the site; those to files elsewhere become plain text.

    Raises FileNotFoundError for a link to nothing.
    """
    here = place(path)
    assert here
    folder = os.path.dirname(path) or "."

    def link(found: re.Match[str]) -> str:
        """Return the target of a link as the website needs it; empty if the site has no such page.

        Raises FileNotFoundError for a file that the repository does not have.
        """
        target = os.path.normpath(f"{folder}/{unquote(found[1])}")
        if not (REPOSITORY / target).exists():
            raise FileNotFoundError(f"{path}: link to {found[1]}")
        there = place(target)
        if not there:
            return ""
        return f"({os.path.relpath(there, os.path.dirname(here) or '.')}{found[2] or ''})"

    parts, end = [], 0
    for block in FENCED.finditer(text):
        parts += [LINK.sub(link, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(link, text[end:])])


def stage(folder: Path) -> None:
    """Copy all pages and pictures to a folder, with their links set."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for path in done.stdout.splitlines():
        there = place(path)
        if not there or not (REPOSITORY / path).is_file():
            continue
        copy = folder / there
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            copy.write_text(relinked((REPOSITORY / path).read_text(), path))
        else:
            shutil.copyfile(REPOSITORY / path, copy)


def add_navigation(index: Path) -> None:
    """Add to the home page a table of contents for each of its headings with links."""
    text = index.read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        links = re.findall(r"\[(.+)\]\(([\w./-]+)\.md\)", section)
        pages = [f"{name.replace('`', '')} <{page}>" for name, page in links]
        title = section.splitlines()[0]
        options = f":hidden:\n:caption: {title}\n\n"
        text += f"\n```{{toctree}}\n{options}" + "\n".join(pages) + "\n```\n"
    index.write_text(text)


def add_commands(page: Path, project: Path) -> None:
    """Add what a project's commands print for `--help` to the page."""
    text = page.read_text()
    for command in COMMANDS:
        env = os.environ | {"COLUMNS": "80"}
        words = [sys.executable, *command[1:]] if command[0] == "python" else command
        done = subprocess.run(
            words, cwd=project, env=env, capture_output=True, text=True, check=True
        )
        title = " ".join(command[:-1])
        text += f"\n## `{title}`\n\n```\n{done.stdout}```\n"
    page.write_text(text)


def add_interface(page: Path) -> None:
    """Add the names of `labjobs` and their docstrings to the page."""
    import labjobs

    text = page.read_text()
    for name in sorted(labjobs._homes(), key=lambda name: (name != "Job", name.lower())):
        named = getattr(labjobs, name, None)  # None: a module, which has a docstring of its own
        if inspect.getdoc(named) and callable(named):
            taken = "" if name in MADE_BY_THE_ENGINE else signature(named)
            text += f"\n## `{name}{taken}`\n\n{inspect.getdoc(named)}\n"
            for member, value in members(named):
                title = f"{member}{signature(value)}" if callable(value) else member
                text += f"\n### `{name}.{title}`\n\n{inspect.getdoc(value)}\n"
    page.write_text(text)


def members(named: object) -> list[tuple[str, Any]]:
    """Return the methods and properties of an engine's class that scripts may use."""
    found: dict[str, Any] = {}
    for kind in reversed(inspect.getmro(named) if inspect.isclass(named) else ()):
        if kind.__module__.startswith("labjobs."):
            found |= {name: each for name, each in vars(kind).items() if name[0] != "_"}
    return [
        (name, each)
        for name, each in found.items()
        if name not in OF_THE_ENGINE and getattr(each, "__doc__", None)
        if inspect.isfunction(each) or hasattr(each, "fget") or hasattr(each, "attrname")
    ]


def signature(named: Any) -> str:
    """Return what a function or a class takes, without types and self."""
    try:
        given = inspect.signature(named)
    except (TypeError, ValueError):
        return ""
    bare = [
        each.replace(annotation=inspect.Parameter.empty)
        for name, each in given.parameters.items()
        if name != "self"
    ]
    return str(given.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def add_layers(page: Path) -> None:
    """Put the picture of the layers into the page, where its comment says."""
    before, mark, after = page.read_text().partition("<!-- layers -->")
    assert mark, f"{page.name}: no place for the picture"
    page.write_text(f"{before}![The layers of the engine](layers.svg){after}")


def build(site: Path) -> int:
    """Build the site in a folder; return Sphinx's exit status."""
    import draw_layers  # beside this file

    with tempfile.TemporaryDirectory() as temporary:
        pages = Path(temporary) / "pages"
        stage(pages)
        project = cookiecutter(
            str(REPOSITORY),
            no_input=True,
            default_config=True,
            output_dir=temporary,
            extra_context={"engine": "source"},
        )
        sys.path.insert(0, project)
        add_commands(pages / "commands.md", Path(project))
        add_interface(pages / "interface.md")
        draw_layers.draw(pages / "layers.svg")
        add_layers(pages / "architecture.md")
        add_navigation(pages / "index.md")
        options = ["-W", "--keep-going", "-q", "-c", str(REPOSITORY / "docs")]
        doctrees = ["-d", str(Path(temporary) / "doctrees")]
        command = [sys.executable, "-m", "sphinx", *options, *doctrees, str(pages), str(site)]
        return subprocess.run(command).returncode


def main() -> int:
    """Build the site where the command line says."""
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        print("usage: python docs/build_site.py [FOLDER]", file=sys.stderr)
        return 2
    site = Path(sys.argv[1] if sys.argv[1:] else REPOSITORY / "docs" / "_site")
    status = build(site)
    if not status:
        print(site / "index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())
