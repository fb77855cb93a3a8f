"""Put the chosen example's files in place, and say what to type next."""

import shlex
import shutil
from pathlib import Path

project = Path.cwd()
examples = project / ".examples"
chosen = examples / "{{ cookiecutter.example }}"
if chosen.is_dir():  # classification is what the template itself has
    shutil.copytree(chosen, project, dirs_exist_ok=True)
shutil.rmtree(examples)

# What the checks of the template leave in it.
for cache in [*project.rglob("__pycache__"), *project.glob(".*cache")]:
    shutil.rmtree(cache)

print(f"""
{project.name} is ready. Type next:

    cd {shlex.quote(str(project))}
    uv sync && source .venv/bin/activate    # without uv: see README.md
    python run.py                           # one job
    bash run.sh                             # the grid of jobs
    python plot.py                          # the figures""")
