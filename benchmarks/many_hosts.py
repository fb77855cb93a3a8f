"""What run.sh itself has to do for a grid of many jobs on many hosts and nodes.

    python benchmarks/many_hosts.py > benchmarks/many-hosts.md

The queue, the reading of the jobs and the questions to the store are run.sh's own. The places, the
cluster and the jobs only pretend (pretended_queue.py): no machine here could run them.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from pages import machine, page
from projects import make, run

QUEUE = Path(__file__).resolve().parent / "pretended_queue.py"


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--hosts", type=int, default=64)
    given = parser.parse_args()
    rows = []
    for nodes in (0, given.hosts // 2):
        hosts = given.hosts - nodes
        with tempfile.TemporaryDirectory() as folder:
            project = make(folder)
            run(project, "run.py", "--epochs", "1", "--quiet")  # so that there is a store
            words = map(str, (QUEUE, given.jobs, hosts, nodes))
            found = json.loads(run(project, *words).splitlines()[-1])
        rows.append(
            [
                f"{hosts} places on hosts" + f", a cluster of {nodes} nodes" * bool(nodes),
                f"{found['planned']:.0f} s",
                f"{found['took'] / found['ideal']:.2f}",
                f"{1000 * found['used'] / given.jobs:.1f} ms",
                f"{found['memory'] / 1e6:.0f} MB",
                f"{found['on the cluster']:,}",
                f"{found['scheduler']:.1f}",
                f"{found['store']:.1f}",
            ]
        )
    about = (
        f"{machine('mlflow')}; {given.jobs:,} jobs that take 1 to 3 s, once. The places, the "
        "cluster and the jobs only pretend; the queue, the reading of the jobs and the questions "
        "are run.sh's. Time is that of the queue as a ratio to the time that the jobs need if no "
        "place ever waits; questions are those of the ten seconds with the most, after the first "
        "ten, in which the jobs are submitted in arrays of 1,001. "
        f"`{' '.join(['python benchmarks/many_hosts.py', *sys.argv[1:]])}` makes this page."
    )
    head = ["", "to read the jobs", "time", "of a core, each job", "memory"]
    head += ["jobs on the cluster", "questions to it a second", "to the store"]
    page("A grid on many hosts", about, head, rows)


if __name__ == "__main__":
    main()
