"""Watches a job: does its fingerprint have all functions of the project that run in it?

    python -m labjobs.watched run.py FLAGS

does what `python run.py FLAGS` does. If a function of the project has run that the fingerprint
lacked, the last line names it, and the exit status is 6. Without this command, a job finds that out
only on Python 3.12 and later (labjobs.evidence.running).
"""

import runpy
import sys

from labjobs.cli.parser import parse
from labjobs.evidence import running
from labjobs.job import code, inputs, scripts
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import leave
from labjobs.paths import CODE

LACKING = 6
"""Exit status if a function ran that the fingerprint lacked."""


def main() -> int:
    """Run the job, and report what its fingerprint lacked; returns the exit status."""
    script = (CODE / sys.argv[1]).resolve()
    sys.argv = [str(script), *sys.argv[2:]]
    sys.path[0] = str(CODE)
    watch, status = running.begin(CODE, on_any_python=True), 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        status = int(end.code or 0)
    if status:
        return status
    name = script.stem
    settings, runtime = parse(scripts.read(name).settings, Runtime, sys.argv[1:])
    present = inputs.present(settings, name, runtime.runs_root)
    lacking = code.lacking(present, name, watch.ran)
    line = f"not in the job's fingerprint: {', '.join(lacking)}; see docs/evidence.md"
    return leave(LACKING, line) if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
