"""Jobs on a real GPU, by their commands: `bash test.sh --gpu`."""

from itertools import product

import pytest
import torch
from faults import Project, one_line, same, succeeded
from planted import MISTAKES
from sweeps import write_grid
from test_examples import EXAMPLES
from test_recipes import blocks, indented

pytestmark = pytest.mark.gpu

SHORT = ("--epochs", "3")
EXACT = ("--deterministic", "--schedule", "constant")  # its last.pt stays, to be compared
TINTED = """

def _tinted(_root: Path, _size: int | None) -> Source:
    labels = torch.arange(2000) % 10
    images = torch.randint(200, (2000, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    images[:, 0] += 5 * labels[:, None, None]
    return Source(TensorDataset(images.byte(), labels), [str(label) for label in range(10)])


DATASETS["tinted"] = _tinted
"""
"""Images of CIFAR's size, whose classes differ in how red they are."""

EVERYTHING = "--augment crop-flip --ema 0.9 --clip-norm 1"
CONVNET = f"--model convnet --epochs 3 {EVERYTHING}"
RESNET = "--model resnet18 --dataset tinted --image-size 224 --steps 60 --eval-every 20"
NETWORKS = {
    "convnet": ("classification", CONVNET),
    "convnet, compiled": ("classification", f"{CONVNET} --compile on"),
    "convnet, CUDA graphs": ("classification", f"{CONVNET} --compile reduce-overhead"),
    "convnet, fp16 in parts": ("classification", f"{CONVNET} --precision fp16 --accumulate 3"),
    "resnet18": ("classification", RESNET),
    "GPT": ("language", "--model gpt-small --context 64 --steps 60 --eval-every 20"),
}
"""Examples and flags of jobs that have to end with the same bits."""

LOADED = [
    f"--loader {loader} --precision {precision}"
    for loader, precision in product(("resident", "workers"), ("fp32", "bf16", "fp16", "tf32"))
]
COLOURS = f"--dataset tinted --model resnet18 --lr 1e-2 {EVERYTHING}"
LEARNING = [
    *LOADED,
    *(f"{loaded} --optimizer {other} {COLOURS}" for loaded in LOADED for other in ("adamw", "sgd")),
    *(f"--compile on --model {model} {EVERYTHING}" for model in ("convnet", "resnet18")),
]


@pytest.fixture(scope="module")
def project(make):
    return tinted(Project(make()))


def tinted(project: Project) -> Project:
    with (project.root / "data.py").open("a") as file:
        file.write(TINTED)
    return project


@pytest.mark.parametrize("device", [(), ("--device", "cuda"), ("--device", "cuda:0")])
def test_a_job_starts_on_the_gpu(project, device):
    job = project.finish(*SHORT, *device, "--note", " ".join(device))
    journal = (project.folder(job) / "metrics.jsonl").read_text()
    assert f'"device": "{torch.cuda.get_device_name(0)}"' in journal


@pytest.mark.parametrize("flags", LEARNING)
def test_a_job_learns(project, flags):
    job = project.finish(*SHORT, *flags.split())
    (_, first), *_, (_, last) = project.stored(job)["val_loss"]
    assert last < first


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_learns(make, example):
    about, made = EXAMPLES[example], Project(make(example=example))
    job = made.finish(*about.short.split())
    curve = [value for _, value in made.stored(job)[f"val_{about.metric}"]]
    assert (max(curve) > curve[0]) if about.rises else (min(curve) < curve[0])


ERRORS = """
import sys
import torch
from labjobs import devices
device = devices.choose("cuda")
devices.use(device, deterministic=False)
devices.set_tf32(sys.argv[1] == "tf32")
image, kernel = torch.randn(8, 64, 32, 32, device=device), torch.randn(64, 64, 3, 3, device=device)
matrix = image.view(512, 1024)
for result, exact in (
    (matrix @ matrix.T, matrix.double() @ matrix.double().T),
    (torch.conv2d(image, kernel), torch.conv2d(image.double(), kernel.double())),
):
    print(float((result - exact).norm() / exact.norm()))
"""


@pytest.mark.parametrize(("precision", "least", "most"), [("fp32", 0, 1e-5), ("tf32", 1e-5, 1e-2)])
def test_formats_are_as_exact_as_they_say(project, precision, least, most):
    """The relative error of a product of matrices, and of a convolution."""
    for error in project.printed(ERRORS, precision):
        assert least < float(error) < most


@pytest.mark.parametrize("network", NETWORKS)
def test_equal_bits_again_and_after_interruptions(make, tmp_path, network):
    example, flags = NETWORKS[network]
    words = (*flags.split(), *EXACT)
    made = Project(make(example=example))
    whole = tinted(made) if example == "classification" else made
    again, paused, killed = (whole.copy(tmp_path / name) for name in ("again", "paused", "killed"))
    job = whole.finish(*words)
    again.finish(*words)
    assert paused.run(*words, "--pause-after", "41").returncode == 0  # before a smaller batch
    paused.finish(*words)
    killed.killed(*words)
    killed.finish(*words)
    for other in (again, paused, killed):
        assert same(other.tensors(job), whole.tensors(job))
        assert other.stored(job) == whole.stored(job)


def in_background(project: Project) -> Project:
    """Have a project evaluate in the background, as the recipe says."""
    path = project.root / "run.py"
    before, marked, rest = path.read_text().partition(
        "        metrics = evaluate(job, forward, ema"
    )
    _, _, after = rest.partition("        if stopping.due:\n            break\n")
    recipe = indented(indented(blocks("Evaluation in the background")[0]))
    path.write_text(before + recipe + after)
    assert marked
    return project


@pytest.mark.parametrize("seed", range(10))
def test_evaluation_in_the_background_while_compiled(project, tmp_path, seed):
    flags = f"--epochs 6 --model convnet --compile on --deterministic --seed {seed}".split()
    other = in_background(project.copy(tmp_path / "background"))
    expected = project.stored(project.finish(*flags))
    assert other.stored(other.finish(*flags)) == expected


def test_a_batch_that_does_not_fit(project):
    flags = ("--model", "resnet18", "--image-size", "1024", "--batch-size", "1024")
    said = one_line(project.run(*SHORT, *flags, "--precision", "fp32"), 1)
    assert "out of memory" in said and "--batch-size" in said


def test_the_largest_batch_is_found(project):
    words = ("find", "batch-size", "--", "--model", "convnet", "--image-size", "64")
    assert "suggestion: --batch-size " in succeeded(project.do("python", "jobs.py", *words)).stdout


def test_a_step_that_waits_is_found_and_no_other(project, fresh):
    checked = project.run("--check")
    assert "waits for the device: fine" in checked.stdout, checked
    mistake = next(each for each in MISTAKES.values() if each.guarantee == "waits for the device")
    mistake.make(fresh)
    line = f"waits for the device: {mistake.file}:{mistake.line(fresh.root)}: "
    assert line in fresh.run("--check").stdout


def test_the_profile_says_what_the_gpu_did(project):
    succeeded(project.run(*SHORT, "--profile", "10", "--note", "profiled"))
    (report,) = project.root.glob("runs/*/*/profile.txt")
    assert "the GPU is busy" in report.read_text()
    assert report.with_name("memory.pickle").exists()


def test_two_jobs_share_the_gpu(fresh):
    write_grid(fresh.root, *(f"{' '.join(SHORT)} --seed {seed}" for seed in range(2)))
    done = succeeded(fresh.do("bash", "run.sh", "--gpus", "0", "--per-gpu", "2"))
    assert done.stdout.splitlines()[-1] == "2 of 2 jobs finished, 2 of them now"
