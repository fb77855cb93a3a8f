"""Record the engine's modules in labjobs/evidence/versions.json.

    python scripts/results_versions.py                  after a change that changes no result
    python scripts/results_versions.py --raise MODULE   after one that changes results
    python scripts/results_versions.py --check          exit 1 if that is left to do

Raise the results version of a module if the same job would give other results: jobs that use the
module are then stale in all projects that take the new engine over. For a change that leaves
results as they are, run it without --raise.
"""

import argparse
import json
import sys
from typing import Any

from merge import TEMPLATE

sys.path.insert(0, str(TEMPLATE))

from labjobs.evidence.canonical import SCHEME
from labjobs.evidence.engine_code import (
    MANIFEST,
    EngineCode,
    counts,
    text_hash,
)

CURE = (
    "type python scripts/results_versions.py, with --raise and their names if the same job gives"
    " other results now"
)


def record(raised: list[str]) -> dict[str, Any]:
    """Return what versions.json should hold, with the results version of some modules raised."""
    engine = EngineCode(TEMPLATE)
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((TEMPLATE / "labjobs").rglob("*.py")):
        module = ".".join(file.relative_to(TEMPLATE).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        if counts(module):
            data = file.read_bytes()
            code, imported = engine.look(data)
            found[module] = {
                "results": engine.known.get(module, {}).get("results", 1) + (module in raised),
                "code": code,
                "text": text_hash(data),
                "imports": [name for name in imported if name != module],
            }
    return {"scheme": SCHEME, "modules": found}


def main() -> int:
    """Write versions.json, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--raise", dest="raised", nargs="+", default=[], metavar="MODULE")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    new = record(given.raised)
    if unknown := [module for module in given.raised if module not in new["modules"]]:
        parser.error(f"--raise {unknown[0]}: no module of the engine that can change results")
    if not given.check:
        MANIFEST.write_text(json.dumps(new, indent=1) + "\n", "utf-8")
    elif json.loads(MANIFEST.read_bytes()) != new:
        print(f"engine modules have changed: {CURE}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
