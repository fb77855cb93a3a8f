"""Random damage to the files of a job: whether any is taken silently, or ends in a traceback.

    python scripts/mutate_records.py [--count 10000] [--seed 0] [--record lock]

Each of the records is damaged so many times, and the job's command is given again in this process.
Prints a row of docs/damage.md for each record, and whatever was silent or ended in a traceback.
"""

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = ("tests", "tests/engine", "{{cookiecutter.project_slug}}")
sys.path[:0] = [str(REPOSITORY / folder) for folder in FOLDERS]

import repository  # noqa: E402, F401  (the engine takes the inner folder for its project)


def main() -> int:
    """Print the counts; returns 1 if any damage was silent or ended in a traceback."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="append", help="only this one, such as lock")
    arguments = parser.parse_args()

    from record_mutations import RECORDS, WORDS, Damages

    os.fsync = lambda file: None  # type: ignore[assignment]  # no power is cut here
    bad = 0
    print("| Record |", " | ".join(WORDS), "|")
    with tempfile.TemporaryDirectory() as root:
        damages = Damages(Path(root))
        for record in arguments.record or RECORDS:
            counts: Counter[str] = Counter()
            chance = random.Random(f"{arguments.seed} {record}")
            for _ in range(arguments.count):
                came = damages.try_one(record, chance)
                counts[came.word] += 1
                if came.word in ("silent", "traceback"):
                    bad += 1
                    print(came.word, came.about, flush=True)
            print(
                f"| `{record}` |", " | ".join(str(counts[word]) for word in WORDS), "|", flush=True
            )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
