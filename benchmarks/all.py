"""Run all measurements and write their pages, on this machine's CPU or on its GPU.

    python benchmarks/all.py                        # the pages in benchmarks/
    python benchmarks/all.py --device cuda          # the pages about a GPU, in benchmarks/gpu/
    python benchmarks/all.py steps loading          # some of them

Each page is written when its measurement has ended, so you can stop and continue with the others
later.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent

PAGES = {
    "steps": ("steps.py",),
    "best-steps": ("best_steps.py",),
    "nanogpt": ("nanogpt.py",),
    "buildup": ("buildup.py",),
    "buildup-gpt": ("buildup.py", "--gpt"),
    "loading": ("loading.py",),
    "checkpoints": ("checkpoints.py",),
    "overlap": ("overlap.py",),
    "sweeps": ("sweeps.py",),
    "costs": ("costs.py",),
    "proposals": ("proposals.py",),
    "halving": ("halving.py",),
    "halving-kills": ("halving_kills.py",),
    "techniques": ("techniques.py",),
    "start": ("start.py",),
    "courier": ("courier.py",),
    "trackers": ("trackers.py",),
    "drawing": ("drawing.py",),
    "drawing-server": ("drawing.py", "--server"),
    "fingerprint": ("fingerprint.py",),
    "refactor": ("refactor.py",),
    "many-jobs": ("many_jobs.py",),
    "many-hosts": ("many_hosts.py",),
    "finding": ("finding.py",),
    "finding-speeds": ("finding.py", "--speeds"),
    "custom-kernels": ("custom_kernels.py",),
}
"""The commands that print them."""

ON_GPU = {
    "steps": ("gpu_steps.py",),
    **{name: PAGES[name] for name in ("loading", "checkpoints", "custom-kernels")},
}
"""Pages of what a GPU does; the others measure the host, the disk or the store."""


def measure(name: str, command: Sequence[str], folder: Path, env: dict[str, str]) -> bool:
    """Write a page; returns whether its measurement ended well."""
    script, *flags = command
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(HERE / script), *flags], env=env, stdout=subprocess.PIPE, text=True
    )
    took = f"{time.monotonic() - begun:.0f} s"
    if done.returncode:
        print(f"{name}: failed after {took}", flush=True)
        return False
    (folder / f"{name}.md").write_text(done.stdout)
    print(f"{name}: {took}", flush=True)
    return True


def main() -> int:
    """Write the pages; returns 1 if a measurement failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "pages",
        nargs="*",
        metavar="PAGE",
        help=f"of {', '.join(PAGES)}; on a GPU, of {', '.join(ON_GPU)}",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    pages = PAGES if arguments.device == "cpu" else ON_GPU
    if unknown := {*arguments.pages} - {*pages}:
        parser.error(f"no such page: {', '.join(sorted(unknown))}")
    env, folder = dict(os.environ), HERE
    if arguments.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    else:
        import torch

        if not torch.cuda.is_available():
            parser.error("--device cuda: torch sees no GPU")
        folder = HERE / "gpu"
        folder.mkdir(exist_ok=True)
    ended = [measure(name, pages[name], folder, env) for name in arguments.pages or pages]
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
