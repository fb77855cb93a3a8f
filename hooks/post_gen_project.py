"""Say what to type next."""

import shlex
from pathlib import Path

project = Path.cwd()
print(f"""
{project.name} is ready. Type next:

    cd {shlex.quote(str(project))}
    uv sync && source .venv/bin/activate    # without uv: see README.md
    python run.py                           # one job
    bash run.sh                             # the grid of jobs
    python plot.py                          # the figures""")
