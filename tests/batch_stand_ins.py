#!/usr/bin/env python3
"""PBS and LSF as their manuals describe them, as far as a project uses them: commands that refuse
and answer like theirs, and run tasks. PBS is not in Debian, and LSF is not free.

Sources: qsub(1B), qstat(1B) and qdel(1B) of OpenPBS 23.06.06; the pages bsub, bjobs, bkill and
bparams of the IBM Spectrum LSF 10.1.0 documentation.
"""

import getopt
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

OWN = Path(__file__)
DELETED = 271  # the exit status of a task of PBS that was deleted
FOLDER = Path(os.environ.get("STAND_IN", ""))

SHIM = """#!/bin/sh
# The clock of a task on PBS: it warns when the test says so, instead of after a time.
[ "$1 $2 $3 $4" = "--foreground --preserve-status -s USR1" ] || exit 125
shift 5
"$@" &
while kill -0 $! 2>/dev/null; do
  if [ -e "$STAND_IN/warn" ]; then kill -USR1 $!; rm "$STAND_IN/warn"; fi
  sleep 0.1
done
wait $!
"""


class System:
    """A batch system in a folder, which runs one task after another; `statuses` are those with
    which the tasks of each array have ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"PATH": f"{folder}:{os.environ['PATH']}", "STAND_IN": str(folder)}
        self.statuses: dict[str, list[int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        for name in ("qsub", "qstat", "qdel", "bsub", "bjobs", "bkill", "bparams"):
            (folder / name).symlink_to(OWN)
        (folder / "timeout").write_text(SHIM)
        (folder / "timeout").chmod(0o755)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def warn(self) -> None:
        """Have the running task be warned of its time limit."""
        (self.folder / "warn").touch()

    def is_empty(self) -> bool:
        """Whether all tasks have ended."""
        arrays = self.submitted()
        return all(len(self.statuses.get(a["id"], [])) == len(a["numbers"]) for a in arrays)

    def submitted(self) -> list[dict[str, Any]]:
        """The arrays that it was given."""
        paths = sorted(self.folder.glob("*.json"), key=lambda path: int(path.stem))
        return [json.loads(path.read_text()) for path in paths]

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            for array in self.submitted():
                ended = self.statuses.setdefault(array["id"], [])
                numbers = array["numbers"][len(ended) :]
                deleted = [(self.folder / f"{array['id']}.{n}.deleted").exists() for n in numbers]
                if numbers and (deleted[0] or not (self.folder / "closed").exists()):
                    status = DELETED if deleted[0] else self._run_task(array, numbers[0])
                    if array["words"].get("-Q") != str(status):  # LSF puts such a task back
                        ended.append(status)
                    counts = {array: len(each) for array, each in self.statuses.items()}
                    (self.folder / "ended").write_text(json.dumps(counts))
                    break  # arrays come after those that they wait for

    def _run_task(self, array: dict[str, Any], number: int) -> int:
        state = self.folder / f"{array['id']}.{number}"
        state.touch()
        env = array["env"] | {k: v.replace("#", str(number)) for k, v in array["own"].items()}
        script = self.folder / "script"
        script.write_text(array["script"])
        with (self.folder / "printed").open("a") as output:
            task = subprocess.Popen(["/bin/sh", script], env=env, stdout=output, stderr=output)
        while task.poll() is None:
            if self._stop.wait(0.1):
                task.kill()
            if "-wa" in array["words"] and (self.folder / "warn").exists():
                (self.folder / "warn").unlink()
                task.send_signal(signal.SIGUSR1)
        state.unlink()
        return task.returncode


@contextmanager
def stand_in(folder: Path) -> Iterator[System]:
    folder.mkdir()
    system = System(folder)
    system.start()
    try:
        yield system
    finally:
        system.end()


# The commands, by the names of links to this file.


def refuse(line: str) -> NoReturn:
    sys.exit(f"{Path(sys.argv[0]).name}: {line}")


def keep(words: dict[str, str], numbers: list[int], form: str, own: dict[str, str]) -> str:
    """Take an array into the queue; returns its id. Tasks get their `own` variables, with their
    numbers for #."""
    number = 1 + len(known())
    array = form.format(number)
    about = {"id": array, "words": words, "numbers": numbers, "env": {**os.environ}}
    about |= {"own": {name: value.replace("@", array) for name, value in own.items()}}
    path = FOLDER / f"{number}.json"
    path.with_suffix(".part").write_text(json.dumps(about | {"script": sys.stdin.read()}))
    path.with_suffix(".part").rename(path)
    return array


def known() -> dict[str, list[int]]:
    """The numbers of each array's tasks."""
    paths = sorted(FOLDER.glob("*.json"), key=lambda path: int(path.stem))
    arrays = (json.loads(path.read_text()) for path in paths)
    return {array["id"]: array["numbers"] for array in arrays}


def left() -> Iterator[tuple[str, int, bool]]:
    """Yield the tasks that have not ended, and whether they run."""
    path = FOLDER / "ended"
    ended = json.loads(path.read_text()) if path.exists() else {}
    for array, numbers in known().items():
        for number in numbers[ended.get(array, 0) :]:
            if not (FOLDER / f"{array}.{number}.deleted").exists():
                yield array, number, (FOLDER / f"{array}.{number}").exists()


def delete(form: str) -> None:
    """Delete tasks that wait, by their names."""
    for name in sys.argv[1:]:
        found = re.fullmatch(form, name)
        if not found or (found[1], int(found[2]), False) not in {*left()}:
            refuse(f"{name}: unknown")
        (FOLDER / f"{found[1]}.{found[2]}.deleted").touch()


def qsub() -> None:
    given, rest = getopt.getopt(sys.argv[1:], "A:J:N:S:W:j:l:o:q:r:V")
    words = dict(given)
    first, last, step, _ = re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?(%\d+)?", words["-J"]).groups()
    if rest or int(first) >= int(last) or words.get("-r") == "n":
        refuse("illegal -J value")
    if not re.fullmatch("[A-Za-z][^ ]*", words["-N"]):
        refuse("illegal -N value")
    asked = [value for option, value in given if option == "-l"]
    if any(not re.match(r"select=|walltime=\d+:\d\d:\d\d$", each) for each in asked):
        refuse("Illegal attribute or resource value")
    waits = words.get("-W", "depend=afterany:").removeprefix("depend=afterany:")
    if not {*filter(None, waits.split(":"))} <= known().keys():
        refuse("invalid dependency")
    numbers = [*range(int(first), int(last) + 1, int(step or 1))]
    own = {"PBS_ARRAY_INDEX": "#", "PBS_O_PATH": os.environ["PATH"], "PATH": "/usr/bin:/bin"}
    own |= {"PBS_JOBID": f"{1 + len(known())}[#].lab", "NCPUS": "1"}
    print(keep(words | {"-l": " ".join(asked)}, numbers, "{}[]", own) + ".lab")


def qstat() -> None:
    if sys.argv[1:] == ["-B", "-f"]:
        print("Server: lab\n    server_state = Active\n    max_array_size = 10000")
        return
    print("\nlab: \n" + " " * 60 + "Req'd  Req'd   Elap")
    print("Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time")
    print("--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----")
    for array, number, runs in left():
        name = f"{array[:-2]}[{number}].lab"
        state, elapsed = ("R", "00:01") if runs else ("Q", "  -- ")
        print(
            f"{name:15} root     workq    my_project    --    1   1    --  00:02 {state} {elapsed}"
        )
        print("   " + ("Job run at Fri" if runs else "Not Running: Insufficient amount of ngpus"))


def qdel() -> None:
    sys.argv[1:] = [re.sub(r"\[(\d+)\]", r"[]\1", name) for name in sys.argv[1:]]
    delete(r"(\d+\[\])(\d+)")


def bkill() -> None:
    delete(r"(\d+)\[(\d+)\]")


def bsub() -> None:
    flags, words, options = {"-r", "-rn", "-ti"}, {}, iter(sys.argv[1:])
    values = {
        "-J",
        "-M",
        "-P",
        "-Q",
        "-R",
        "-W",
        "-gpu",
        "-n",
        "-o",
        "-q",
        "-sla",
        "-w",
        "-wa",
        "-wt",
    }
    for option in options:
        if option not in flags | values:
            refuse(f"{option}: Bad option")
        words[option] = "" if option in flags else next(options)
    _, last = re.fullmatch(r"([\w.-]+)\[1-(\d+)\](?:%\d+)?", words["-J"]).groups()
    if not re.fullmatch(r"(\d+:)?\d+", words.get("-W", "1")):
        refuse(f"{words['-W']}: Illegal run limit")
    waits = words.get("-w", "").split(" && ") if "-w" in words else []
    if any(not re.fullmatch(r"(done|ended)\(\d+(\[\d+\])?\)", each) for each in waits):
        refuse(f"{words['-w']}: Bad syntax for dependency condition")
    own = {"LSB_JOBID": "@", "LSB_JOBINDEX": "#", "LSB_DJOB_NUMPROC": "1"}
    array = keep(words, [*range(1, int(last) + 1)], "{}", own)
    print(f"Job <{array}> is submitted to default queue <normal>.")


def bjobs() -> None:
    lines = [
        f"{array}|{number}|RUN|-" if runs else f"{array}|{number}|PEND|New job is waiting"
        for array, number, runs in left()
    ]
    if not lines:
        print("No unfinished job found", file=sys.stderr)
        sys.exit(255)  # with LSB_BJOBS_CONSISTENT_EXIT_CODE=Y
    print("\n".join(lines))


def bparams() -> None:
    print("    MAX_JOB_ARRAY_SIZE = 1000\n    MAX_JOB_NUM = 1000")


if __name__ == "__main__":
    globals()[Path(sys.argv[0]).name]()
