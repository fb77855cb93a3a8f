"""Writes docs/tutorial.md: makes a project, types the commands, and keeps what they print and draw.

    python docs/make_tutorial.py

Takes some minutes on two cores. Needs the environment of `bash test.sh`, pdflatex and pdftoppm (on
Debian: texlive-latex-base, poppler-utils). Nothing in the page is written by hand but the words
between the commands, below in STEPS. tests/test_docs.py compares the page with STEPS and with the
template's files, so it fails where either has changed since.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "tutorial.md"
PICTURES = REPOSITORY / "docs" / "tutorial"
WIDEST = 150
"""Characters of a line that are shown at most."""


@dataclass(frozen=True)
class Run:
    """A command as a reader types it; `shown` lines of what it prints at most, 0 for none."""

    command: str
    shown: int = 12
    status: int = 0


@dataclass(frozen=True)
class Edit:
    """A change of a file: `new` in place of `old`, which occurs once in it."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Picture:
    """A page of a PDF that the commands have made, with its description."""

    path: str
    description: str
    page: int = 1
    dpi: int = 150


NETWORK = '''class Residual(nn.Module):
    """A perceptron whose hidden layers add to what they get."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 256))
        self.hidden = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))
        self.last = nn.Linear(256, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of images (B, C, H, W)."""
        features = self.first(images)
        for layer in self.hidden:
            features = features + layer(features.relu())
        logits: Tensor = self.last(features)
        return logits


'''
HIDDEN = "        self.hidden = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))\n"
LINE = '    "residual": lambda settings, spec: Residual(spec.shape, len(spec.classes)),\n'

STEPS: list[str | Run | Edit | Picture] = [
    """# Tutorial: from a clone to a figure in a paper

This tutorial adds a network, compares it with two built-in ones on scikit-learn's handwritten
digits, and puts the comparison into a PDF. No GPU is needed. Everything below was printed and drawn
by `python docs/make_tutorial.py`; long outputs are cut at `…`.

## Make a project""",
    Run("cookiecutter PATH-OR-URL --no-input project_name=Digits"),
    """Without `--no-input`, cookiecutter asks a few questions. The project needs an environment:
`uv sync && source .venv/bin/activate`. It should also be a git repository, so that each job can
record its commit:""",
    Run("cd digits", 0),
    Run("git init -q -b main && git add -A && git commit -qm 'A new project'", 0),
    "## Run one job",
    Run("python run.py --epochs 5"),
    """The last line has the job's id and its validation results. The id is computed from the
settings, so the same command is the same job:""",
    Run("python run.py --epochs 5"),
    "A wrong flag is refused before anything starts:",
    Run("python run.py --epoch 5", status=2),
    "## Interrupt it",
    """`--pause-after` stops a job as Ctrl-C would. The same command without it continues, and ends
as if nothing had happened:""",
    Run("python run.py --model convnet --epochs 4 --pause-after 2e", 8),
    Run("python run.py --model convnet --epochs 4", 8),
    "## Add a network",
    "A network is a class or a function, and a line in `MODELS`. In `models.py`, above `MODELS`:",
    Edit("models.py", "MODELS: dict[str,", NETWORK + "MODELS: dict[str,"),
    "and in `MODELS`:",
    Edit(
        "models.py",
        '    "convnet": lambda settings, spec: ConvNet(',
        LINE + '    "convnet": lambda settings, spec: ConvNet(',
    ),
    "`--check` tests whether the engine's promises hold for this code:",
    Run("python run.py --check --model residual"),
    "## Run a sweep",
    """The grid is the loop at the top of `run.sh`. Ours has three networks, and 10 epochs for each
job:""",
    Edit("run.sh", "  for model in mlp convnet; do", "  for model in mlp residual convnet; do"),
    Edit(
        "run.sh",
        '        job --model "$model" --lr "$lr" --seed "$seed"',
        '        job --model "$model" --lr "$lr" --seed "$seed" --epochs 10',
    ),
    Run("git add -A && git commit -qm 'A residual perceptron, and a sweep'", 0),
    Run("bash run.sh --list", 6),
    Run("bash run.sh", 6),
    "If it is run again, it has nothing to do:",
    Run("bash run.sh"),
    "## Change the code",
    "Say that the network was meant to have two hidden layers:",
    Edit("models.py", HIDDEN, HIDDEN.replace("3", "2")),
    Run("python jobs.py stale"),
    """Only the jobs with this network are stale. `bash run.sh --redo-stale` would run them again.
Here the change is undone, and their results count as before:""",
    Run("git checkout -q models.py && bash run.sh"),
    """## Draw the figures

The jobs with 4 and 5 epochs were trials. Leave them out in `plot.py`:""",
    Edit("plot.py", "ONLY: dict[str, object] = {}", 'ONLY: dict[str, object] = {"epochs": 10}'),
    Run("python plot.py --venue icml"),
    Picture("figures/learning-curves.pdf", "Learning curves of three networks"),
    "The caption comes with the figure, in `figures/learning-curves.tex`:",
    Run("cat figures/learning-curves.tex", 20),
    "`ranking` orders the settings by validation results, with the test results below them:",
    Picture("figures/ranking.pdf", "Settings by validation loss, with their test loss"),
    "A year later, the file can still tell where it came from:",
    Run("python plot.py --provenance figures/ranking.pdf", 8),
    "## Put them into a paper",
    "`paper/paper.tex` includes figures and captions as they are, without a width:",
    Run("cd paper && for time in 1 2; do pdflatex paper.tex > log.txt; done; cd ..", 0),
    Picture("paper/paper.pdf", "The page of the paper with the figures", page=2, dpi=80),
    "## What is next",
    """[Recipes](../%7B%7Bcookiecutter.project_slug%7D%7D/labjobs/docs/recipes.md) for other losses,
metrics, data and scripts; [a
search](../%7B%7Bcookiecutter.project_slug%7D%7D/labjobs/docs/sweeps.md) in place of the grid; [the
results in MLflow](../%7B%7Bcookiecutter.project_slug%7D%7D/labjobs/docs/mlflow.md).""",
]


def shell(command: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command with bash; both of its streams in the order in which they were written."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def printed(text: str, most: int, folder: Path) -> str:
    """Return an output as the page has it: without paths of this machine, and not too long."""
    text = re.sub(r"[^\n]*\r", "", text).replace(str(folder), "~")  # \r: lines of a progress bar
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) > most:
        lines = [*lines[: most - 2], "…", lines[-1]]
    lines = [line if len(line) <= WIDEST else f"{line[:WIDEST]}…" for line in lines]
    return "".join(f"{line}\n" for line in lines)


def page(folder: Path, env: dict[str, str]) -> str:
    """Do all steps in a folder; return the page."""
    parts, block, place = [], "", folder
    for step in STEPS:
        if isinstance(step, Run):
            command = step.command.replace("PATH-OR-URL", str(REPOSITORY))
            done = shell(command, place, env)
            assert done.returncode == step.status, f"{step.command}:\n{done.stdout}"
            print(f"$ {step.command}\n{done.stdout}", flush=True)
            block += f"$ {step.command}\n{printed(done.stdout, step.shown, folder)}"
            if step.command == "cd digits":
                place = folder / "digits"
            continue
        if block:
            parts.append(f"```\n{block}```")
            block = ""
        if isinstance(step, Edit):
            file = place / step.file
            text = file.read_text()
            assert text.count(step.old) == 1, f"{step.file}: {step.old}"
            file.write_text(text.replace(step.old, step.new))
            language = "python" if step.file.endswith(".py") else "bash"
            shown = step.new.replace(step.old, "") if step.new.endswith(step.old) else step.new
            parts.append(f"```{language}\n{shown.strip(chr(10))}\n```")
        elif isinstance(step, Picture):
            name = Path(step.path).with_suffix("").name
            to_png = f"pdftoppm -png -singlefile -f {step.page} -r {step.dpi} {step.path}"
            made = shell(f"{to_png} {PICTURES / name}", place, env)
            assert not made.returncode, made.stdout
            parts.append(f"![{step.description}](tutorial/{name}.png)")
        else:
            parts.append(step)
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the page and its pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kept = {key: each for key, each in os.environ.items() if not key.startswith("MLFLOW_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        identity = {
            f"GIT_{role}_{what}": each
            for role in ("AUTHOR", "COMMITTER")
            for what, each in (("NAME", "Ada"), ("EMAIL", "ada@example.org"))
        }
        env = kept | identity | {"PATH": path, "COLUMNS": "100", "GIT_CONFIG_GLOBAL": os.devnull}
        PAGE.write_text(page(folder, env))


if __name__ == "__main__":
    main()
