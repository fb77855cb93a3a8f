"""Making a project: its files, what they hold, and which answers are refused."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from zipfile import ZipFile

import labjobs
import pytest
import yaml
from faults import succeeded
from repository import REPOSITORY, commit

QUESTIONS = json.loads((REPOSITORY / "cookiecutter.json").read_text())
RENDERED = {".python-version", "CITATION.cff", "README.md", "pyproject.toml"}
RENDERED |= {"Containerfile", "labjobs.def", ".devcontainer/devcontainer.json"}
LICENSES = {
    "Apache-2.0": "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
    "GPL-3.0-or-later": "3972dc9744f6499f0f9b2dbf76696f2ae7ad8af9b23dde66d6af86c9dfb36986",
    "MIT": ("MIT License\n\nCopyright (c) Ada & Grace\n", "\nSOFTWARE.\n"),
    "BSD-3-Clause": (
        "BSD 3-Clause License\n\nCopyright (c) Ada & Grace\n",
        "POSSIBILITY OF SUCH DAMAGE.\n",
    ),
}
"""The SHA-256 of a published text, or how one that names the author begins and ends."""


@pytest.fixture(scope="module")
def inner(template):
    return template / "{{cookiecutter.project_slug}}"


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("license", QUESTIONS["license"])
def test_files(make, inner, license):
    project = make(license=license, author="Ada & Grace")
    copied = {name for name in files(inner) if not name.startswith("{%")} - RENDERED
    legal = set() if license == "none" else {"LICENSE"}
    assert files(project) == RENDERED | copied | legal | {"labjobs/commit.txt"}
    assert {"run.py", "run.sh", "labjobs/training/loop.py", ".github/workflows/tests.yml"} < copied
    for name in copied:
        assert (project / name).read_bytes() == (inner / name).read_bytes()
    for name in RENDERED | legal:
        assert not re.search("[{][{%#]|[%#}][}]", (project / name).read_text()), name
    editors = json.loads((project / ".devcontainer" / "devcontainer.json").read_text())
    built = project / ".devcontainer" / editors["build"]["dockerfile"]
    assert built.resolve() == project / "Containerfile"
    assert yaml.safe_load((project / "CITATION.cff").read_text()).get("license", "none") == license
    if legal:
        text, wanted = (project / "LICENSE").read_bytes(), LICENSES[license]
        if isinstance(wanted, str):
            assert hashlib.sha256(text).hexdigest() == wanted
        else:
            assert text.decode().startswith(wanted[0]) and text.decode().endswith(wanted[1])


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Grokking, Slowly", "grokking_slowly"),
        ("Ünï/../cödé", "uni_code"),
        ("x" * 100, "x" * 64),
    ],
)
def test_slug_comes_from_the_name(make, name, slug):
    assert make(project_name=name).name == slug


def test_hostile_words_are_carried_as_they_are(make):
    words = "key: x # no comment, O'Neil's \"quote\" \\n, 100 % of {0}, $HOME, $(id), `id`, <b>%s "
    words += "Zoë 北京 🙂 \N{ZERO WIDTH JOINER} עברי \\"
    project = make(project_name=words, project_slug="hostile", description=words, author=words)
    citation = yaml.safe_load((project / "CITATION.cff").read_text())
    readme = (project / "README.md").read_text()
    assert citation["title"] == citation["abstract"] == citation["authors"][0]["name"] == words
    assert readme.startswith(f"# {words}\n\n{words}\n")
    assert f"\n{words}, you@example.org." in readme
    assert f"\nCopyright (c) {words}\n" in (project / "LICENSE").read_text()
    assert tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"] == "hostile"


def cookiecutter(template, folder, *arguments, typed=None):
    """Run cookiecutter as a user does, with an output folder and a home of its own."""
    (folder / "out").mkdir()
    words = [sys.executable, "-m", "cookiecutter", template, "--output-dir", folder / "out"]
    env = os.environ | {"HOME": str(folder)}
    return subprocess.run(
        [*words, *arguments], input=typed, capture_output=True, text=True, env=env
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"project_slug": ("class", "choose another, such as my_class")},
        {
            "project_name": ("  ", "is empty"),
            "project_slug": ("{{ 7*7 }}", "a letter first"),
            "author": ("\x1b[31mred", "control character"),
            "email": ("nobody", "is not an e-mail address"),
        },
        {
            "project_name": ("a\nb", "line break"),
            "project_slug": ("../escape", "a-z"),
            "author": ("{{ '{{ 7*7 }}' }}", "template expression"),
        },
    ],
)
def test_each_bad_answer_is_refused_in_one_line(template, tmp_path, wrong):
    answers = (f"{question}={answer}" for question, (answer, _) in wrong.items())
    done = cookiecutter(template, tmp_path, "--no-input", *answers)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    for line, (question, (_, reason)) in zip(lines, wrong.items(), strict=True):
        assert line.startswith(f"{question} ")
        assert reason in line
    assert not files(tmp_path / "out")


def test_every_package_of_the_project_is_refused_as_its_slug(make, template):
    pyproject = tomllib.loads((make() / "pyproject.toml").read_text())
    packages = sum(pyproject["dependency-groups"].values(), pyproject["project"]["dependencies"])
    hook = (template / "hooks" / "pre_gen_project.py").read_text()
    for package in packages:
        slug = re.split("[>=]", package)[0].replace("-", "_")
        assert f'    "{slug}",\n' in hook


def test_questions_answered_at_the_keyboard(template, tmp_path):
    typed = "Deep Sea\n\nWhat fish hear\nAda\nada@example.org\n5\n2\n\n\n"
    done = cookiecutter(template, tmp_path, typed=typed)
    project = tmp_path / "out" / "deep_sea"
    assert (project / ".python-version").read_text() == "3.12\n"
    assert "LICENSE" not in files(project)
    for text in QUESTIONS["__prompts__"].values():
        assert (text if isinstance(text, str) else text["__prompt__"]) in done.stdout
    next_steps = done.stdout[done.stdout.index("deep_sea is ready. Type next:") :]
    assert f"    cd {project}\n" in next_steps
    assert next_steps.splitlines()[-1].startswith("    python plot.py")


def cruft(*words):
    command = [sys.executable, "-m", "cruft", *map(str, words)]
    succeeded(subprocess.run(command, capture_output=True, text=True))


def wheel(project):
    (found,) = (project / "vendor").iterdir()
    return found


def test_the_version_stands_in_four_places():
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert version == labjobs.__version__ == QUESTIONS["_labjobs"]
    newest = re.search(r"^## (\d\S+)", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == version


@pytest.mark.parametrize("command", ["pack-refs --all", "checkout --quiet --detach"])
def test_a_project_notes_the_commit_that_made_it(template, tmp_path, command):
    source = shutil.copytree(template, tmp_path / "template", symlinks=True)
    made_by = commit(source)
    subprocess.run(["git", "-C", source, *command.split()], check=True)
    succeeded(cookiecutter(source, tmp_path, "--no-input", "--default-config"))
    with ZipFile(wheel(tmp_path / "out" / "my_project")) as packed:
        assert packed.read("labjobs/commit.txt").decode().strip() == made_by


def test_cruft_makes_a_project_of_the_chosen_example_and_updates_it(template, make, tmp_path):
    source = shutil.copytree(template, tmp_path / "template", symlinks=True)
    commit(source)
    answers = json.dumps({"example": "regression", "engine": "source"})
    cruft("create", source, "--no-input", "--output-dir", tmp_path, "--extra-context", answers)
    project, same = tmp_path / "my_project", make(example="regression")
    assert files(project) == files(same) | {".cruft.json"}
    assert (project / "run.py").read_bytes() == (same / "run.py").read_bytes()
    commit(project)
    inner = source / "{{cookiecutter.project_slug}}"
    for file in (source / "examples/regression/run.py", inner / "labjobs/files.py"):
        file.write_text(file.read_text() + "# a change\n")
    newest = commit(source)
    cruft("update", "--project-dir", project, "--skip-apply-ask")
    for name, change in {"run.py": "", "labjobs/files.py": "# a change\n"}.items():
        assert (project / name).read_text() == (same / name).read_text() + change
    assert (project / "labjobs" / "commit.txt").read_text().strip() == newest
    assert files(project) - {".cruft.json"} >= files(same)
    assert not (project / ".examples").exists()


def bump(source, version):
    """Make a version of the template, with changes in its engine."""
    inner = source / "{{cookiecutter.project_slug}}"
    for module in ("files.py", "job/journal.py", "training/loop.py"):
        with (inner / "labjobs" / module).open("a") as file:
            file.write(f"# {version}\n")
    for file in (inner / "labjobs" / "__init__.py", source / "cookiecutter.json"):
        text = file.read_text()
        file.write_text(re.sub(r'((?:__version__ =|"_labjobs":) )"\S+"', rf'\1"{version}"', text))
    commit(source)


@pytest.mark.full
def test_updates_over_two_versions_touch_three_files_and_leave_a_student_s_alone(
    template, tmp_path
):
    source = shutil.copytree(template, tmp_path / "template", symlinks=True)
    commit(source)
    cruft("create", source, "--no-input", "--output-dir", tmp_path)
    project = tmp_path / "my_project"
    for file, old, new in (
        ("pyproject.toml", '  "torch>=2.8",', '  "einops",\n  "torch>=2.8",'),
        ("run.py", "losses.mean()", "losses.mean() * 2"),
        ("settings.py", "setting(1e-3, above=0)", "setting(2e-3, above=0)"),
    ):
        text = (project / file).read_text()
        assert text.count(old) == 1
        (project / file).write_text(text.replace(old, new))
    mine = {file: (project / file).read_text() for file in ("run.py", "settings.py")}
    before = commit(project)
    for version in ("1.1.0", "2.0.0"):
        bump(source, version)
        cruft("update", "--project-dir", project, "--skip-apply-ask")
        commit(project)
    command = ["git", "-C", project, "diff", before, "--find-renames", "--name-only"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == [
        ".cruft.json",
        "pyproject.toml",
        "vendor/labjobs-2.0.0-py3-none-any.whl",
    ]
    assert mine == {file: (project / file).read_text() for file in mine}
    declared = (project / "pyproject.toml").read_text()
    assert '"einops"' in declared and wheel(project).name in declared
    with ZipFile(wheel(project)) as packed:
        assert packed.testzip() is None
        assert packed.read("labjobs/files.py").decode().endswith("# 1.1.0\n# 2.0.0\n")


def test_a_copy_that_lost_its_links_is_refused_in_one_line(template, tmp_path):
    """As an archive made by GitHub, which cookiecutter takes too."""
    source = shutil.copytree(template, tmp_path / "template", symlinks=True)
    link = source / "{{cookiecutter.project_slug}}" / ".examples"
    link.unlink()
    link.write_text("../examples")
    done = cookiecutter(source, tmp_path, "--no-input", "--default-config")
    assert done.returncode == 1
    assert done.stderr.startswith("This copy of the template has lost its links")
    assert not files(tmp_path / "out")
