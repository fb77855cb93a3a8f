"""What plot.py writes, by other people's tools: poppler, and LaTeX."""

import os
import re
import shutil
import subprocess
import sys

import debian
import pytest
import servers
import stored
from faults import silent, succeeded

EXPERIMENT = "sweep"


def sweep(uri, folder):
    store = stored.Store(uri, folder)
    store.classifiers(EXPERIMENT)
    store.keep_predictions()
    return uri


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = stored.fresh(tmp_path_factory.mktemp("store"))
    return sweep(store.uri, store.folder)


@pytest.fixture(scope="module")
def draw(project, store):
    def draw(*flags, cwd=project.root, **env):
        command = [sys.executable, project.root / "plot.py", "--experiment", EXPERIMENT, *flags]
        env = os.environ | {"MLFLOW_TRACKING_URI": store} | env
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)

    return draw


@pytest.fixture(scope="module")
def drawn(project, draw):
    """The figures in the project's folder, as pdf files."""
    silent(draw())
    return sorted((project.root / "figures").glob("*.pdf"))


@pytest.fixture(scope="module")
def poppler():
    """Runs a tool of poppler's; what it prints."""
    if not shutil.which("pdffonts"):
        debian.install("poppler-utils")
    return lambda *words: subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.full
def test_same_bytes_from_another_process_and_folder(drawn, draw, tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 20\naxes.grid: True\n")
    env = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "HOME": str(tmp_path), "PYTHONHASHSEED": "7"}
    succeeded(draw("--out", "here", cwd=tmp_path, **env))
    for path in drawn[0].parent.iterdir():
        assert (tmp_path / "here" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.full
def test_same_figures_from_postgresql_and_from_a_server(draw, tmp_path):
    with servers.postgres() as database, servers.mlflow_server(database.uri) as server:
        sweep(database.uri, tmp_path)
        for name, uri in (("database", database.uri), ("server", server.uri)):
            silent(draw("--out", str(tmp_path / name), MLFLOW_TRACKING_URI=uri))
    files = sorted((tmp_path / "database").iterdir())
    assert len(files) == 9 * 4 + 3 * 5 + 2 * 2
    for path in files:
        assert (tmp_path / "server" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.fixture(scope="module")
def latex():
    """Sets a document; a second time, so that it knows its figures' numbers."""
    booktabs = ["kpsewhich", "booktabs.sty"]
    if not shutil.which("pdflatex") or subprocess.run(booktabs, capture_output=True).returncode:
        debian.install("texlive-latex-recommended")

    def latex(path):
        for _ in range(2):
            subprocess.run(
                ["pdflatex", "-halt-on-error", path.name],
                cwd=path.parent,
                check=True,
                stdout=subprocess.DEVNULL,
            )
        return path.with_suffix(".pdf")

    return latex


@pytest.mark.full
def test_the_papers_captions_have_the_figures_numbers(project, drawn, latex, poppler):
    text = poppler("pdftotext", latex(project.root / "paper" / "paper.tex"), "-")
    one_line = " ".join(text.split())
    assert "Figure 1 takes" in one_line
    assert "mean of 3 seeds, 95% t interval" in one_line
    assert re.search(r"(told apart|worse|better) .* \(paired by repeat; 5% level", one_line)
    assert re.search(r"Table 1: Test results\. ± and parentheses: 95% intervals", one_line)
