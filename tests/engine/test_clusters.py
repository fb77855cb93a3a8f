"""What cluster.toml says, and what is wrong in it: a line that names the file and the key."""

from pathlib import Path

import pytest
from labjobs.errors import SettingsError
from labjobs.sweeps import clusters, options
from labjobs.sweeps.clusters import Array

SLURM = '[hyades]\nsystem = "slurm"\n'
SYSTEM = "system: must be one of slurm, gridengine, pbs, lsf"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The project's cluster.toml and a person's own."""
    monkeypatch.setattr(options, "PROJECT", tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "config" / "labjobs" / "cluster.toml"
    own.parent.mkdir(parents=True)
    return tmp_path / "cluster.toml", own


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "hyades: no such cluster in cluster.toml; jobs.py docs clusters shows how"),
        ("[hyade]", "hyades: no such cluster in cluster.toml; did you mean hyade?"),
        (
            "[hyades",
            "cluster.toml: Expected ']' at the end of a table declaration (at end of document)",
        ),
        ("gpus = 1", "cluster.toml: gpus: must be in a table such as [hyades]"),
        ("[local]", "cluster.toml: local: must be in a table such as [hyades]"),
        ("[hyades]", f"cluster.toml: [hyades] {SYSTEM}"),
        ('[hyades]\nsystem = "torque"', f"cluster.toml: [hyades] {SYSTEM}"),
        (SLURM + "piece = 60", "[hyades] piece: no such key; known: system, "),
        (SLURM + 'partitions = "a"', "[hyades] partitions: no such key; did you mean partition?"),
        (SLURM + 'flag = "a"', "[hyades] flag: no such key; known: system, "),
        (SLURM + "account = 7", "[hyades] account: must be a string on one line"),
        (SLURM + 'account = "a\\nb"', "[hyades] account: must be a string on one line"),
        (SLURM + "gpus = 2", "[hyades] gpus: 2 must be 1, or 0 for none"),
        (SLURM + "gpus = true", "[hyades] gpus: must be a whole number"),
        (SLURM + "cores = -1", "[hyades] cores: -1 must be at least 0"),
        (SLURM + 'memory = "32"', "[hyades] memory: 32 must be a number and its unit, such as 32G"),
        (
            SLURM + 'time = "4:00"',
            "[hyades] time: 4:00 must be at least two minutes, such as 4:00:00",
        ),
        (SLURM + 'time = "0:01:59"', "time: 0:01:59 must be at least two minutes, such as 4:00:00"),
        (SLURM + 'requeue = "no"', "[hyades] requeue: must be true or false"),
        (SLURM + 'setup = "module load cuda"', "[hyades] setup: must be a list of strings"),
        (SLURM + "setup = [1]", "[hyades] setup: must be a list of strings"),
        (SLURM + 'runs = "$UNSET/runs"', "[hyades] runs: $UNSET/runs: $UNSET is not set"),
        (SLURM + 'container = "a.sif"', "[hyades] container: a.sif: there is no such file"),
        (SLURM + "time = 04:00:00", "[hyades] time: must be a string on one line"),
        (SLURM + "ask = 1", "[hyades] ask: must be options by key, such as"),
        (SLURM + 'ask = { gpu = "" }', "[hyades] ask: gpu: no such key; did you mean gpus?"),
        (
            SLURM + 'options = ["--exclusive", "--output=x"]',
            "[hyades] options: --output=x: run.sh sets this option of sbatch",
        ),
        (
            '[hyades]\nsystem = "gridengine"\nmemory = "4G"',
            """[hyades] memory: say how SGE is asked for it: ask = { memory = "-… {}" }""",
        ),
    ],
)
def test_what_is_wrong(files: tuple[Path, Path], text: str, said: str) -> None:
    files[0].write_text(text)
    with pytest.raises(SettingsError) as caught:
        options.cluster("hyades")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_persons_own_file(files: tuple[Path, Path]) -> None:
    """It adds to the project's, and replaces it; what is wrong in it names it."""
    project, own = files
    project.write_text("\ufeff" + SLURM + 'account = "lab"\ntime = "4:00:00"\n')
    own.write_text('[hyades]\naccount = "me"\nqos = "fast"\n[other]\nsystem = "gridengine"\n')
    found = options.cluster("hyades")
    assert (found.account, found.qos, found.time) == ("me", "fast", "4:00:00")
    assert found.wanted == ["--account=me", "--qos=fast", "--time=4:00:00", "--gres=gpu:1"]
    assert options.cluster("other").wanted == ["-l", "gpu=1"]
    own.write_text("[hyades]\nqos = 3\n")
    with pytest.raises(SettingsError, match=r"config/labjobs/cluster.toml: .hyades. qos: must be"):
        options.cluster("hyades")


ALL = """
partition = "long"
account = "a project"
constraint = "gpu_type=h100"
cores = 4
memory = "8G"
time = "4:00:00"
"""

ARRAY = Array("exec job", Path("/the folder"), 1, ok=["17_0"], ended=["16_3"])

WORDS = {
    "pbs": (
        "-J 0-1:2 -N project -S /bin/sh -V -j oe -o /dev/null"
        " -l select=1:gpu_type=h100:ncpus=4:ngpus=1:mem=8Gb -q long -A|a project"
        "|-l walltime=4:00:00 -W depend=afterany:16:17",
        "exec >>'/the folder/pbs-'\"$PBS_JOBID.txt\" 2>&1; PATH=$PBS_O_PATH; exec timeout"
        " --foreground --preserve-status -s USR1 14340 /bin/sh -c 'exec job'\n",
    ),
    "lsf": (
        "-J project[1-1] -o|/the folder/lsf-%J_%I.txt|-q long -P|a project"
        "|-R select[gpu_type=h100] -gpu num=1 -W 4:00 -n 4 -R span[hosts=1] -M 8G"
        " -R rusage[mem=8G] -r -Q 99 -wa USR1 -wt 1 -w|done(17[1]) && ended(16[4])|-ti",
        "#!/bin/sh\nexec job\n",
    ),
}
"""What a system is asked (words with spaces between bars), and what it reads."""


@pytest.mark.parametrize("system", WORDS)
def test_what_a_system_is_asked(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    answers = {"pbs": "7[].server", "lsf": "Job <7> is submitted to queue <long>."}
    asked: list[tuple[list[str], str | None]] = []

    def ask(*words: str, given: str | None = None) -> str:
        asked.append(([*words[1:]], given))
        return answers[system]

    monkeypatch.setattr(clusters, "ask", ask)
    monkeypatch.setattr(clusters, "experiment_name", lambda: "project")
    files[0].write_text(f'[hyades]\nsystem = "{system}"{ALL}')
    cluster = options.cluster("hyades")
    assert cluster.batch.submit(cluster, ARRAY) == ("7[]" if system == "pbs" else "7")
    words, script = WORDS[system]
    parts = words.split("|")
    wanted = [w for part in parts for w in ([part] if part in asked[0][0] else part.split())]
    assert asked == [(wanted, script)]


QSTAT = """
server:
                                                            Req'd  Req'd   Elap
Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time
--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----
17[].server     ada      workq    project       --    1   4    8gb 04:00 B   --
   Job Array Began at Fri Nov 27 at 10:00
17[0].server    ada      workq    project      4711   1   4    8gb 04:00 R 00:02
17[1].server    ada      workq    project       --    1   4    8gb 04:00 Q   --
   Not Running: Insufficient amount of resource: ngpus
17[2].server    ada      workq    project       --    1   4    8gb 04:00 X 00:01
18.server       ada      workq    other        4712   1   1    --  04:00 R 00:02
19[0].server    ada      workq    project       --    1   4    8gb 04:00 H   --
"""

BJOBS = """\
17|1|RUN|-
17|2|PEND|Job slot limit reached: 3 hosts;
18|0|RUN|-
19|1|USUSP|-
"""


@pytest.mark.parametrize(
    ("system", "printed", "array", "reason"),
    [
        ("pbs", QSTAT, "[]", "Not Running: Insufficient amount of resource: ngpus"),
        ("lsf", BJOBS, "", "Job slot limit reached: 3 hosts;"),
    ],
)
def test_what_a_system_says_of_tasks(
    monkeypatch: pytest.MonkeyPatch, system: str, printed: str, array: str, reason: str
) -> None:
    monkeypatch.setattr(clusters, "ask", lambda *_: printed)
    found = clusters.SYSTEMS[system].tasks()
    assert found[f"17{array}"] == {0: "RUNNING", 1: f"PENDING, {reason}"}
    assert found[f"19{array}"] == {0: "PENDING, Dependency" if system == "pbs" else "USUSP"}
