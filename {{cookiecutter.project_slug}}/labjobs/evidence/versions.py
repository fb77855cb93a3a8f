"""Record the engine's modules in versions.json; for maintainers of the template.

    python -m labjobs.evidence.versions                          # after a change without effect
    python -m labjobs.evidence.versions --raise labjobs.data.order  # after one that changes results

Raise the results version of a module if the same job would give other results: jobs that use the
module are then stale in all projects that take the new engine over. For a change that leaves
results as they are, run it without --raise.
"""

import argparse
import ast
import json
import sys
from pathlib import Path
from typing import Any

from labjobs.evidence import engine_code
from labjobs.evidence.canonical import SCHEME
from labjobs.evidence.engine_code import MANIFEST, EngineCode
from labjobs.paths import CODE

COMMAND = "python -m labjobs.evidence.versions"


def record(folder: Path, raised: list[str]) -> dict[str, Any]:
    """Return what versions.json should hold, with the results version of some modules raised."""
    engine = EngineCode(folder)
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.joinpath("labjobs").rglob("*.py")):
        module = ".".join(file.relative_to(folder).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        if not engine_code.counts(module):
            continue
        data = file.read_bytes()
        imported = set(engine_code.imports(ast.parse(data), engine)) - {module}
        results = engine.known.get(module, {}).get("results", 1)
        found[module] = {
            "results": results + (module in raised),
            "code": engine_code.code_hash(data),
            "text": engine_code.text_hash(data),
            "imports": sorted(imported),
        }
    return {"scheme": SCHEME, "modules": found}


def main() -> int:
    """Write versions.json; refused in a project, where an edited engine counts as the project's
    code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--raise", dest="raised", nargs="+", default=[], metavar="MODULE")
    arguments = parser.parse_args()
    if not (CODE.parent / "cookiecutter.json").is_file():
        return _refused("for the template only: an engine that you edit counts as your own code")
    new = record(CODE, arguments.raised)
    for module in arguments.raised:
        if module not in new["modules"]:
            return _refused(f"--raise {module}: no module of the engine that can change results")
    MANIFEST.write_text(json.dumps(new, indent=1) + "\n")
    return 0


def _refused(why: str) -> int:
    print(f"{COMMAND}: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
