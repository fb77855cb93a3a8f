"""A real Grid Engine on this machine, on free ports. Hosts other than this one are refused.

Sources: the manual pages sge_bootstrap(5), sge_conf(5), queue_conf(5), sched_conf(5), and Debian's
/usr/share/gridengine/scripts/init_cluster.
"""

import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import debian
from faults import wait_until
from servers import free_port
from slurms import PATH, PAUSE, Batch

PROGRAMS = Path("/usr/lib/gridengine")
SHARE = Path("/usr/share/gridengine")

BOOTSTRAP = """\
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {folder}/default/common;{folder}/spool
binary_path {folder}/bin
qmaster_spool_dir {folder}/default/spool
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
jvm_threads 0
"""

CONFIGURATION = {
    "execd_spool_dir": "{folder}/execd",
    "min_uid": "0",
    "min_gid": "0",
    "load_report_time": "00:00:01",
    "max_aj_tasks": "{largest_array}",
}

SCHEDULER = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    "load_formula": "slots",
    "job_load_adjustments": "NONE",
}

QUEUE = {
    "qname": "main.q",
    "hostlist": "{host}",
    "slots": "{slots}",
    "load_thresholds": "NONE",
    "notify": "00:00:20",
    "shell": "/bin/sh",
    "pe_list": "NONE",
    "tmpdir": "{folder}",
}


class GridEngine(Batch):
    """A Grid Engine with one queue that has this many slots."""

    def __init__(self, folder: Path, slots: int, largest_array: int) -> None:
        env = {"SGE_ROOT": str(folder), "SGE_CELL": "default", "SGE_ND": "1"}
        env |= {f"SGE_{name}_PORT": str(free_port()) for name in ("QMASTER", "EXECD")}
        super().__init__(folder, env)
        self._host = platform.node().split(".")[0]
        self._values = {
            "folder": folder,
            "host": self._host,
            "slots": slots,
            "largest_array": largest_array,
        }

    def start(self) -> None:
        """Start its processes; returns once a job can run."""
        for name in ("default/common", "default/spool/job_scripts", "spool", "execd"):
            (self._folder / name).mkdir(parents=True)
        for name in ("bin", "utilbin", "lib"):
            (self._folder / name).mkdir()
            (self._folder / name / "lx-amd64").symlink_to(PROGRAMS)
        (self._folder / "util").symlink_to(SHARE / "util")
        common = self._folder / "default/common"
        (common / "bootstrap").write_text(BOOTSTRAP.format(**self._values))
        (common / "act_qmaster").write_text(f"{self._host}\n")
        (common / "host_aliases").write_text(f"{self._host} localhost\n")
        usual = (SHARE / "default-configuration").read_text()
        (self._folder / "configuration").write_text(self._changed(usual, CONFIGURATION))
        places = f"{common};{self._folder}/spool"
        self.ask(str(PROGRAMS / "spoolinit"), "classic", "libspoolc", places, "init")
        resources = SHARE / "util/resources"
        for kind, what in (
            ("configuration", str(self._folder / "configuration")),
            ("complexes", str(resources / "centry")),
            ("usersets", str(resources / "usersets")),
            ("managers", self.ask("id", "-un").strip()),
        ):
            self.ask(str(PROGRAMS / "spooldefaults"), kind, what)
        self._start([str(PROGRAMS / "sge_qmaster")], lambda: self._try("qconf", "-sh").stdout != "")
        self.ask("qconf", "-as", self._host)
        self._start([str(PROGRAMS / "sge_execd")], lambda: "lx-" in self._try("qhost").stdout)
        self._change("-Msconf", "-ssconf", SCHEDULER)
        self._change("-Aq", "-sq", QUEUE)
        gpu = "gpu gpu INT <= YES YES 0 0\n"
        (self._folder / "resources").write_text(self.ask("qconf", "-sc") + gpu)
        self.ask("qconf", "-Mc", str(self._folder / "resources"))
        self.ask(
            "qconf",
            "-aattr",
            "exechost",
            "complex_values",
            f"gpu={self._values['slots']}",
            self._host,
        )

    def states(self) -> list[str]:
        """The letters for the state of each task in its queue."""
        found = ElementTree.fromstring(self.ask("qstat", "-xml", "-g", "d", "-u", "*"))
        return [job.findtext("state", "") for job in found.iter("job_list")]

    def running(self) -> list[str]:
        """Its tasks that run, such as 17.3."""
        lines = self.ask("qstat", "-g", "d", "-s", "r", "-u", "*").splitlines()[2:]
        return [f"{line.split()[0]}.{line.split()[-1]}" for line in lines]

    def wait_until_empty(self) -> None:
        """Return once nothing is left in its queue."""
        wait_until(lambda: not self.states(), 600, PAUSE)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Within, no job starts."""
        self.ask("qmod", "-d", "main.q")
        try:
            yield
        finally:
            self.ask("qmod", "-e", "main.q")

    def stop(self) -> None:
        try:
            if len(self._processes) == 2 and self.states():
                self.ask("qdel", "-f", "-u", "*")
                wait_until(lambda: not self.states(), 60, PAUSE)
        finally:
            self.end()

    def _change(self, write: str, read: str, values: dict[str, str]) -> None:
        """Change some of a configuration that qconf reads and writes."""
        path = self._folder / read
        path.write_text(self._changed(self.ask("qconf", read), values))
        self.ask("qconf", write, str(path))

    def _changed(self, text: str, values: dict[str, str]) -> str:
        for name, value in values.items():
            line = f"{name} {value.format(**self._values)}"
            text, count = re.subn(rf"^{name}\b.*", line, text, flags=re.M)
            assert count == 1, name
        return text


@contextmanager
def grid_engine(slots: int, largest_array: int) -> Iterator[GridEngine]:
    if not shutil.which("sge_qmaster", path=PATH):
        # msmtp-mta: they need some mailer, and that one has no daemon.
        names = ("gridengine-master", "gridengine-exec", "gridengine-client", "msmtp-mta")
        debian.install(*names)
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        engine = GridEngine(Path(folder), slots, largest_array)
        try:
            engine.start()
            yield engine
        finally:
            engine.stop()
