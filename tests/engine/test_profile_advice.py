"""What the report of --profile advises."""

from dataclasses import replace

import pytest
from labjobs.training.probes import Watched, advice, report

CPU = Watched(
    steps=10,
    batch_size=64,
    device="cpu",
    precision="fp32",
    compiled=False,
    graphed=False,
    loader="workers",
    plain=2.0,
    examples=600,
    waiting=0.0,
    seconds=4.0,
    parts={"forward": 3.0, "everything else": 1.0},
    peak=2**20,
)
GPU = replace(CPU, device="a GPU", busy=1.0, precision="bf16", compiled=True)


def advised(seen: Watched) -> list[str]:
    """Return what is to be changed, in order."""
    return [text for _, text in sorted(advice(seen), reverse=True)]


@pytest.mark.parametrize("seen", [CPU, GPU])
def test_a_job_that_computes_all_the_time_is_advised_nothing(seen):
    assert advised(seen) == []
    assert "nothing stands out: the time goes into computing" in report(seen)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (replace(CPU, waiting=0.5), ["--workers"]),
        (replace(CPU, waiting=0.5, loader="resident"), ["--batch-size"]),
        (replace(GPU, busy=0.4, graphed=True), ["launch work: --batch-size larger"]),
        (replace(GPU, busy=0.4), ["(job.graphed), --batch-size larger"]),
        (replace(GPU, busy=0.4, compiled=False), ["(job.graphed), --compile on, or --batch-size"]),
        (replace(GPU, busy=0.4, waiting=0.6), ["--workers"]),  # it waits for data, not the host
        (replace(GPU, precision="fp32"), ["--precision bf16"]),
        (replace(GPU, precision="fp32", busy=0.3, waiting=0.7), ["--workers", "--precision"]),
        (replace(GPU, copying=0.2), ["--loader resident"]),
        (replace(CPU, parts={"evaluation": 2.0}), ["--eval-every"]),
        (replace(CPU, recompiled=("Graph break at run.py:3",)), ["torch.compile"]),
    ],
)
def test_what_to_change_first(seen, said):
    found = advised(seen)
    assert len(found) == len(said)
    assert all(words in text for words, text in zip(said, found, strict=True))
