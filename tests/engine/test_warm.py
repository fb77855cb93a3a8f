"""Programs that start as forks: what they see, how they end, and what happens without a server."""

import os
from pathlib import Path

import pytest
from labjobs import fork_server

PROGRAM = """
import atexit, json, os, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
json.mark = getattr(json, "mark", 0) + 1
print(__name__, os.path.basename(__file__), sys.argv[1:], os.getcwd(), os.environ.get("WORD"))
print(json.mark, "colorsys" in sys.modules, sys.stdin.read())
left_open = open("left-open", "w")
left_open.write("flushed")
atexit.register(print, "atexit")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
pool = ThreadPoolExecutor(1)  # its thread waits for work until the program ends
pool.submit(print, "pool").result()
exec(sys.argv[1])
"""


@pytest.fixture(scope="module")
def server():
    """A server with a module that the programs do not import themselves."""
    made = fork_server.serve(["json", "colorsys"], Path("/"), os.environ)
    assert made
    yield made
    made.close()


@pytest.fixture
def start(tmp_path):
    """Starts PROGRAM, whose output goes into `out`, with a server or cold."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(server: fork_server.Server | None, *words: str) -> fork_server.Process:
        with open(os.devnull) as nothing, (tmp_path / "out").open("w") as out:
            files = (nothing.fileno(), out.fileno(), out.fileno())
            words = ("program.py", *words)
            env = os.environ | {"WORD": "é"}
            return fork_server.start(server, words, tmp_path, files, env=env)

    return start


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('a reason')", 1, "a reason"),
        ("{}['key']", 1, "KeyError: 'key'"),
        ("os.kill(os.getpid(), 9)", -9, ""),
        ("os.kill(os.getpid(), 15)", -15, ""),
    ],
)
def test_a_fork_is_as_a_new_python(server, start, tmp_path, ending, status, said):
    """But for the modules that are imported; what one program changes the next one does not see."""
    printed = []
    for each in (None, server, server):
        process = start(each, ending)
        assert process.wait(60) == process.poll() == status
        printed.append((tmp_path / "out").read_text())
        assert printed[-1].count(said) >= 1
        if status >= 0:
            assert (tmp_path / "left-open").read_text() == "flushed"
    cold, *warm = printed
    assert warm == [cold.replace(" False ", " True ")] * 2
    if "KeyError" in said:
        assert "server.py" not in warm[0]


def test_a_module_that_was_imported_before_and_closes_its_output(tmp_path):
    (tmp_path / "in.json").write_text("[]")
    server = fork_server.serve(["json.tool"], tmp_path, os.environ)
    with open(os.devnull) as nothing, (tmp_path / "out").open("w") as out:
        files = (nothing.fileno(), out.fileno(), out.fileno())
        process = fork_server.start(server, ["-m", "json.tool", "in.json"], tmp_path, files)
    assert isinstance(process, fork_server.Fork) and process.wait(60) == 0
    assert (tmp_path / "out").read_text() == "[]\n"


THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
"""


USES_THE_GPU = "opened = open('nvidia-uvm', 'w')"  # as CUDA does


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (THREAD, "starts threads"),
        (USES_THE_GPU, "uses the GPU"),
        (THREAD.replace("(9,)", "(0,)") + "time.sleep(0.5)", ""),
        ("raise ImportError", ""),
        ("import numpy", ""),  # whose threads end before a fork
    ],
    ids=["stays", "gpu", "ends", "fails", "pool"],
)
def test_a_library_that_a_fork_could_not_use(start, tmp_path, capfd, library, why):
    """It ends the server, with one line, and programs start cold."""
    (tmp_path / "library.py").write_text(library)
    env = os.environ | {"OMP_NUM_THREADS": "2"}
    server = fork_server.serve(["json", "colorsys", "library"], tmp_path, env)
    process = start(server, "pass")
    assert process.wait(60) == 0
    assert isinstance(process, fork_server.Fork) is not bool(why)
    line = f"run.sh: no warm start, since library {why} when it is imported\n"
    assert capfd.readouterr().err == (line if why else "")
