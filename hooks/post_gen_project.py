"""Put the chosen example's files in place, note the commit, and say what to type next."""

import json
import shlex
import shutil
from pathlib import Path

# Cookiecutter renders this file. JSON in a raw string holds any path; the spaces keep its quotes
# apart from Python's. Cruft tells the commit, cookiecutter the folder of the template.
ANSWERS = json.loads(r""" {{ cookiecutter|jsonify }} """)


def checked_out(folder):
    """The commit that a clone has checked out, read without git; empty if that is not known."""
    git = folder / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        branch = head.removeprefix("ref: ")
        if (git / branch).exists():
            return (git / branch).read_text().strip()
        packed = (git / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), "")
    except OSError:
        return ""


project = Path.cwd()
examples = project / ".examples"
chosen = examples / "{{ cookiecutter.example }}"
if chosen.is_dir():  # classification is what the template itself has
    shutil.copytree(chosen, project, dirs_exist_ok=True)
shutil.rmtree(examples)

# What the checks of the template leave in it.
for cache in [*project.rglob("__pycache__"), *project.glob(".*cache")]:
    shutil.rmtree(cache)

commit = ANSWERS.get("_commit") or checked_out(Path(ANSWERS.get("_repo_dir", "")))
(project / "labjobs" / "commit.txt").write_text(f"{commit}\n")

print(f"""
{project.name} is ready. Type next:

    cd {shlex.quote(str(project))}
    uv sync && source .venv/bin/activate    # without uv: see README.md
    python run.py                           # one job
    bash run.sh                             # the grid of jobs
    python plot.py                          # the figures""")
