"""What must not be written down: secrets, and the passwords of stores."""

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import one_line, silent, succeeded
from repository import commit
from sweeps import write_grid

QUICK = ("--epochs", "1", "--batch-size", "256")
SECRET = "hunter2-Tr0ub4dor"


READS_ENV = f"""
import os as _os
from pathlib import Path as _Path
_HERE = _Path(__file__).parent
assert "PASSWORD" in (_HERE / ".env").read_text()
if ".sweeps" in __file__:
    _found = [oct(_HERE.stat().st_mode)]
    for _path in _HERE.rglob("*"):
        _secret = bytes(reversed(b"{SECRET[::-1]}"))  # so as not to be found itself
        if _path.is_file() and not _path.is_symlink() and _secret in _path.read_bytes():
            _found.append(f"{{_path.name}} {{oct(_path.stat().st_mode)}}")
    _Path(_os.environ["FOUND"]).write_text("\\n".join(_found))
"""
"""Code that needs `.env` beside it; it notes which files with a secret its own copy has."""

SECRET_FILES = {
    ".env": 0o600,
    ".env.local": 0o644,
    "production.env": 0o644,
    "id_rsa": 0o600,
    "server.pem": 0o644,
    "credentials.json": 0o644,
    "secrets/words.txt": 0o644,
    "notes.txt": 0o600,
}


@pytest.fixture
def with_secrets(project, tmp_path):
    """A project in git with secrets, in new files and in changes of files that git tracks."""
    copy = project.copy(tmp_path / "with secrets")
    root = copy.root
    (root / "tracked.env").write_text("PASSWORD=change-me\n")
    (root / "sealed.dat").write_text("nothing\n")
    (root / ".gitattributes").write_text("*.dat diff=sealed\n")
    (root / "address.py").write_text("ADDRESS = ''\n")
    commit(root)
    (tmp_path / "open").write_text(f"#!/bin/sh\necho {SECRET}; cat $1\n")
    (tmp_path / "open").chmod(0o700)
    config = ["git", "config", "diff.sealed.textconv", str(tmp_path / "open")]
    subprocess.run(config, cwd=root, check=True)
    (root / "secrets").mkdir()
    for name, mode in SECRET_FILES.items():
        (root / name).write_text(f"PASSWORD={SECRET}\n")
        (root / name).chmod(mode)
    (root / "tracked.env").write_text(f"PASSWORD={SECRET}\n")
    (root / "sealed.dat").write_text("another thing\n")
    (root / "address.py").write_text(f'ADDRESS = "postgresql://ada:{SECRET}@db.example.org/x"\n')
    noted = f"        # as in postgresql://ada:{SECRET}@db.example.org/x\n"
    models = (root / "models.py").read_text().replace("        super()", f"{noted}        super()")
    (root / "models.py").write_text(models + READS_ENV)
    (root / "new.py").write_text("NEW = 1\n")
    (root / ":(glob)*").write_text("a name that git could take for a pattern\n")
    Path(os.fsdecode(bytes(root) + b"/caf\xe9.txt")).write_text("Latin-1\n")
    return copy


@pytest.mark.full
def test_secret_files_are_neither_noted_nor_copied(with_secrets, tmp_path):
    root, found = with_secrets.root, tmp_path / "found"
    write_grid(root, shlex.join(QUICK))
    silent(with_secrets.do("bash", "run.sh", FOUND=str(found)))
    (job,) = (root / "runs").glob("*/*/")
    diff = (job / "changes.diff").read_text()
    head = diff.splitlines()[0]
    assert head.startswith("# left out (may hold secrets): ")
    for name in (*SECRET_FILES, "tracked.env"):
        assert f'"{name}"' in head
    for shown in (
        "+NEW = 1",
        "+another thing",
        "caf\\351.txt",
        "+a name that git",
        "://ada:***@db",
    ):
        assert shown in diff
    applied = ["git", "apply", "--numstat", str(job / "changes.diff")]
    assert subprocess.run(applied, cwd=root, capture_output=True).returncode == 0
    written = {*files_with(SECRET, root)} - {root / name for name in SECRET_FILES}
    assert written == {root / "tracked.env", root / "address.py", root / "models.py"}
    (definitions,) = (root / "runs").glob(".code/*.json")
    assert "postgresql://ada:***@db.example.org/x" in definitions.read_text()
    for kept in (root / "runs").glob(".code/*.tar.gz"):
        with tarfile.open(kept) as archive:
            archive.extractall(tmp_path / "kept", filter="data")
    assert not [*files_with(SECRET, tmp_path / "kept")]
    mode, *copies = found.read_text().splitlines()
    assert mode == "0o40700"
    assert sorted(copies) == ["address.py 0o100644", "models.py 0o100644", "notes.txt 0o100600"]


def files_with(text: str, root: Path) -> Iterator[Path]:
    """The files below a folder that hold a text or have it in their names."""
    for path in root.rglob("*"):
        if text in path.name or (path.is_file() and text.encode() in path.read_bytes()):
            yield path


ADDRESS = f"postgresql://ada:{SECRET}%40%2F@127.0.0.1:1/x?sslpassword={SECRET}&sslmode=disable"


CONFIGURATION = """
[diff]
noprefix = true
context = 0
interHunkContext = 5
mnemonicPrefix = true
submodule = log
renames = copies
[color]
ui = always
"""


def test_the_commit_is_the_projects_own_within_a_hook_of_another_repository(fresh, tmp_path):
    """Git tells its hooks which repository it works on."""
    made = {"cwd": tmp_path, "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["git", "init", "-q", "other"], **made)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, "-C", "other", "commit", "--allow-empty", "-m", "x"], **made)
    fresh.env["GIT_DIR"] = str(tmp_path / "other" / ".git")
    code = "from labjobs.job import provenance; print(provenance.version())"
    assert fresh.printed(code) == [str({"commit": "", "branch": "", "changes": ""})]


def test_the_recorded_changes_apply_whatever_git_is_configured_to_show(fresh, tmp_path):
    """Also those of a binary file and of a text of other letters; large ones are named."""
    root = fresh.root
    files = {"weights.bin": bytes(range(256)), "latin.txt": "é\n".encode("latin-1") * 9}
    files |= {"text.txt": b"".join(b"%d\n" % n for n in range(40)), "large.bin": b"\0"}
    for name, content in files.items():
        (root / name).write_bytes(content)
    commit(root)
    clean = shutil.copytree(root, tmp_path / "clean")
    changed = {name: content * 2 + content[:7] for name, content in files.items()}
    changed["text.txt"] = files["text.txt"].replace(b"20\n", b"changed\n")
    for name, content in changed.items():
        (root / name).write_bytes(content)
    (root / "large.bin").write_bytes(os.urandom(1_200_000))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text(CONFIGURATION)
    code = "import sys; from pathlib import Path; from labjobs import files\n"
    code += "from labjobs.job.provenance import version\n"
    code += "files.write_text(Path(sys.argv[1]), version()['changes'])"
    diff = tmp_path / "changes.diff"
    (root / ".git" / "index").write_bytes(b"")  # as a power cut may leave it
    succeeded(fresh.do("python", "-c", code, str(diff), HOME=str(tmp_path / "home")))
    subprocess.run(["git", "apply", str(diff)], cwd=clean, check=True)
    assert b'# left out (above 1000000 bytes): "large.bin"' in diff.read_bytes()
    for name in ("weights.bin", "latin.txt", "text.txt"):
        assert (clean / name).read_bytes() == changed[name]


@pytest.mark.full
def test_a_job_tells_nobody_the_password_of_a_store_that_is_away(project):
    env = {"MLFLOW_TRACKING_URI": ADDRESS, "WANDB_API_KEY": f"env-{SECRET}"}
    flags = (*QUICK, "--seed", "7")
    done = project.run(*flags, **env)
    assert "not everything has been uploaded (" in one_line(done, 3)
    assert "127.0.0.1" in done.stderr
    write_grid(project.root, shlex.join(flags))
    listed = succeeded(project.do("bash", "run.sh", "--list", **env))
    assert "127.0.0.1" in listed.stderr
    for said in (done.stdout, done.stderr, listed.stdout, listed.stderr):
        assert SECRET not in said
    assert not [*files_with(SECRET, project.root)]


FORMS = [
    "http://ada:{}@127.0.0.1:1",
    "http://ada:x@{}@127.0.0.1:1",
    "http://{}@127.0.0.1:1",
    "http://127.0.0.1:1?token={}",
    "http://127.0.0.1:1/?a={}&b=1;c={}",
    "http://ada:{}%40%2F%3A@127.0.0.1:1/x",
    "http://ada:x/{}@127.0.0.1:1",
    "http://127.0.0.1:{}",
    "http:/ada:{}@127.0.0.1:1",
    "ada:{}@127.0.0.1:1",
    "postgresql://ada:x@{}@127.0.0.1:1/x",
    "postgresql://ada:x?{}@127.0.0.1:1/x",
    "postgresql://127.0.0.1:{}/x",
    "postgresql://127.0.0.1:1/x?user=ada&nosuch={}",
    "mysql+pymysql://ada:{}@127.0.0.1:1/x?ssl_key={}",
    "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Dada%3BPWD%3D{}",
    "sqlite:////nowhere/x.db?password={}",
    "sqlite+pysqlcipher://:{}@/x.db",
]

ASKS = """
import os, sys
from labjobs.errors import SettingsError
from labjobs.tracking import mlflow_store as store, stored_jobs
for line in sys.stdin:
    os.environ["MLFLOW_TRACKING_URI"] = line.rstrip("\\n")
    print(store.shown(), store.fingerprint())
    for ask in (store.check, store.prepare, *[stored_jobs.experiments] * bool(store.sqlite_path())):
        try:
            ask()
        except (SettingsError, ConnectionError) as error:
            print(error)
        except Exception as error:
            print(store.reason(error), store.last_line(f"{error!r}"))
print("end")
"""
"""Has each store asked for in all the ways that the engine knows, and prints what it would say."""


def test_no_form_of_an_address_tells_its_password(project):
    asked = subprocess.run(
        [sys.executable, "-c", ASKS],
        cwd=project.root,
        env=project.env,
        input="".join(f"{form.replace('{}', SECRET)}\n" for form in FORMS),
        capture_output=True,
        text=True,
    )
    assert asked.returncode == 0 and asked.stdout.endswith("end\n"), asked.stderr
    assert not [line for line in (asked.stdout + asked.stderr).splitlines() if SECRET in line]
    assert not [*files_with(SECRET, project.root)]
