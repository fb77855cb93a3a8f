"""What plot.py writes, by other people's tools: poppler, and LaTeX."""

import os
import re
import shutil
import subprocess
import sys

import debian
import pytest
import stored
from faults import chosen, silent, succeeded
from labjobs.results import style

pytestmark = pytest.mark.full

EXPERIMENT = "sweep"

NAMES = [
    *(
        "a network with a name of sixty characters, as some do have, x",
        r"50% & more_#1 {$x^2$} ~\a|b",
    ),
    *("naïve Œuvre", "", "\N{GREEK SMALL LETTER ALPHA} ≥ 2 → 3"),
]
"""Of models, as tables have to print them."""

GEOMETRY = r"\usepackage[textwidth=%s,columnsep=0.25in,textheight=9in]{geometry}"
CLASSES = {
    "neurips": r"\documentclass[10pt]{article}\usepackage{times}" + GEOMETRY % "5.5in",
    "icml": r"\documentclass[10pt,twocolumn]{article}\usepackage{times}" + GEOMETRY % "6.75in",
    "nature": r"\documentclass{nature}\usepackage{helvet}" + GEOMETRY % "183mm",
}
"""By venue, what Debian has: the class of Nature, and the measures of the two other styles, which
are no part of it."""


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


def test_same_bytes_from_another_process_and_folder(drawn, draw, tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 20\naxes.grid: True\n")
    env = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "HOME": str(tmp_path), "PYTHONHASHSEED": "7"}
    succeeded(draw("--out", "here", cwd=tmp_path, **env))
    for path in drawn[0].parent.iterdir():
        assert (tmp_path / "here" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.fixture(scope="module")
def latex():
    """Sets a document; a second time, so that it knows its figures' numbers."""
    needed = ["kpsewhich", "booktabs.sty", "nature.cls", "fullpage.sty", "ptmr7t.tfm"]
    if not shutil.which("pdflatex") or subprocess.run(needed, capture_output=True).returncode:
        named = "latex-recommended", "latex-extra", "publishers", "fonts-recommended"
        debian.install(*(f"texlive-{name}" for name in named))

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


def test_the_papers_captions_have_the_figures_numbers(project, drawn, latex, poppler):
    text = poppler("pdftotext", latex(project.root / "paper" / "paper.tex"), "-")
    one_line = " ".join(text.split())
    assert "Figure 1 takes" in one_line
    assert "mean of 3 seeds, 95% t interval" in one_line
    assert re.search(r"(told apart|worse|better) .* \(paired by repeat; 5% level", one_line)
    assert re.search(r"Table 1: Test results\. ± and parentheses: 95% intervals", one_line)


@pytest.mark.parametrize("venue", chosen(["icml", "nature"], "icml"))
def test_tables_of_odd_names_in_a_venues_class(
    project, draw, store, latex, poppler, tmp_path, venue
):
    """They compile, and are no wider than was said."""
    experiment = f"names for {venue}"
    stored.Store(store, tmp_path).classifiers(experiment, models=NAMES)
    out = tmp_path / "tables"
    done = draw("--experiment", experiment, "--venue", venue, "--out", str(out), "--unchecked")
    said = dict(re.findall(r"(\w+)\.tex  ([\d.]+) in wide", done.stdout))
    assert {*said} == {"main", "ablation", "cost"}, done.stderr
    at, wide = style.VENUES[venue], "*" * (venue == "icml")
    each = [
        rf"""\begin{{table{wide}}}\centering\fontsize{{{at.text}}}{{{1.2 * at.text}}}\selectfont
        \sbox0{{\input{{tables/{name}.tex}}\unskip}}\typeout{{{name}: \the\wd0}}\usebox0
        \input{{tables/{name}.caption.tex}}\end{{table{wide}}}"""
        for name in said
    ]
    font = r"\renewcommand{\familydefault}{\sfdefault}" * (at.font == "sans")
    head = rf"{CLASSES[venue]}\usepackage{{booktabs}}{font}"
    paper = tmp_path / "paper.tex"
    paper.write_text("\n".join([head, r"\begin{document}", *each, r"\end{document}"]))
    text = " ".join(poppler("pdftotext", "-layout", latex(paper), "-").split())
    assert all(each in text for each in (NAMES[0], "50% & more", NAMES[-1]))
    widths = dict(re.findall(r"^(\w+): ([\d.]+)pt$", paper.with_suffix(".log").read_text(), re.M))
    for name, width in said.items():
        assert float(widths[name]) / 72.27 < float(width) + 0.1, name
