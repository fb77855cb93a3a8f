"""The example for kernels: its own tests, a changed source, and no compiler."""

import shutil

import pytest
from faults import Project, one_line, succeeded

pytestmark = pytest.mark.full  # needs a C++ compiler

EXAMPLE = "kernels"
SHORT = ("--epochs", "2", "--quiet")


def trained(project: Project, *flags: str, **env: str) -> str:
    done = succeeded(project.run(*SHORT, *flags, **env))
    return done.stdout.split()[1]  # torch's compiler says things on stderr


@pytest.mark.long
def test_its_own_tests_pass(project):
    """Triton's kernel in the interpreter, the C++ one on the CPU, both against plain torch."""
    succeeded(project.do("python", "-m", "pytest", "-q", "-n", "0", "tests/test_kernels.py"))


def states(project: Project) -> dict[str, str]:
    lines = project.do("python", "jobs.py", "list").stdout.splitlines()[:-1]
    return {line.split()[0]: line for line in lines}


@pytest.mark.long
def test_a_changed_kernel_makes_its_jobs_stale(fresh):
    with_kernel, without = trained(fresh), trained(fresh, "--model", "mlp")
    fresh.edit("kernels.cpp", "kept * kept", "kept * kept / 2")
    found = states(fresh)
    assert found[with_kernel].endswith("[kernels.cpp changed]")
    assert found[without].split()[1] == "finished"
    assert "kernels.cpp changed" in one_line(fresh.run(*SHORT), 5)
    trained(fresh, "--force")  # compiled anew, beside the old one
    assert len([*(fresh.root / ".cache" / "kernels").iterdir()]) == 2
    fresh.edit("kernels.cpp", "kept * kept / 2", "kept * kept")
    assert states(fresh)[with_kernel].split()[1] == "finished"
    fresh.edit("kernels_triton.py", "1 / tl.sqrt", "2 / tl.sqrt")
    assert "kernels_triton._forward" in states(fresh)[with_kernel]


def test_without_a_compiler_one_line_says_what_to_do(fresh, tmp_path):
    shutil.rmtree(fresh.root / ".cache", ignore_errors=True)
    (tmp_path / "bin").mkdir()
    for name in ("env", "nice", "git", "ninja", "sh", "uname"):
        if found := shutil.which(name):
            (tmp_path / "bin" / name).symlink_to(found)
    path = str(tmp_path / "bin")
    line = one_line(fresh.run(*SHORT, PATH=path), 2)
    assert line.startswith("run.py: kernels.cpp cannot be compiled: ")
    assert line.endswith(" such as g++, and ninja; KERNELS=plain works without them)")
    assert trained(fresh, PATH=path, KERNELS="plain")
    assert not [*(fresh.root / ".cache" / "kernels").iterdir()]
