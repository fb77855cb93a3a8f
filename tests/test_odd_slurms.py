"""`bash run.sh --on lab` on a Slurm that is configured in another way."""

import pytest
import slurms
from faults import Project, silent
from slurms import arrays, listed, slurm
from sweeps import write_grid

pytestmark = pytest.mark.full

ENFORCED = """\
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=100
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
"""


@pytest.mark.alike
def test_memory_limits_are_enforced(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is killed without a word, and then gets more memory, which is enough."""
    text = slurms.CONFIGURATION.replace("SelectTypeParameters=CR_Core\n", ENFORCED)
    monkeypatch.setattr(slurms, "CONFIGURATION", text)
    (fresh.root / "cluster.toml").write_text('[lab]\nsystem = "slurm"\ngpus = 0\n')
    write_grid(fresh.root, "--device cpu --epochs 2 --batch-size 256")
    with slurm(gpus=0, largest_array=10) as cluster:
        fresh.env |= cluster.env
        done = silent(fresh.do("bash", "run.sh", "--on", "lab"))
        assert "no comparable jobs tell the time and the memory: the cluster's own" in done.stdout
        cluster.wait_until_empty()
        ((state, about),) = listed(fresh.do("bash", "run.sh", "--list")).values()
        assert state in ("pending", "interrupted") and about == "its task was killed"
        done = silent(fresh.do("bash", "run.sh", "--on", "lab"))
        assert "\neach task has memory " in done.stdout
        arrays(done, 1)
        cluster.wait_until_empty()
        ((state, _),) = listed(fresh.do("bash", "run.sh", "--list")).values()
        assert state == "finished"
