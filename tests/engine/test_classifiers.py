"""torchvision's classifiers, fitted to the data; networks that take images as they are stored."""

from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torchvision
from labjobs.errors import JobError, SettingsError
from labjobs.vision import Normalized, torchvision_classifier
from torch import nn

CLASSES = 5
MEAN, STD = 0.25, 0.5


@dataclass
class Spec:
    """What a project's models.py knows of its data; lists, as when it has been read from JSON."""

    shape: list[int]
    classes: list[str]
    mean: list[float]
    std: list[float]


def spec(*shape):
    return Spec(list(shape), list("abcde"), [MEAN] * shape[0], [STD] * shape[0])


def make(name, *shape, pretrained=False) -> Normalized:
    return torchvision_classifier(name, spec(*shape), pretrained, ["mlp", "convnet"])


def said(name, *shape, **options):
    with pytest.raises(SettingsError) as caught:
        make(name, *shape, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["mobilenet_v2", "convnext_tiny", "squeezenet1_1"])
def test_torchvision_families_take_small_images_also_without_weights(name):
    for channels in (1, 3):
        with torch.device("meta"):
            model = make(name, channels, 32, 32).eval()
            logits = model(torch.zeros(2, channels, 32, 32, dtype=torch.uint8))
        assert (logits.shape, logits.device.type) == ((2, CLASSES), "meta")


def test_images_that_are_too_small_are_said_in_one_line():
    line = said("vit_b_16", 3, 8, 8)
    assert line.startswith("--model vit_b_16: cannot take 8")
    assert line.endswith("; try another --image-size")


def test_unknown_model_is_said_with_the_nearest():
    assert said("resnet81", 3, 8, 8) == "--model resnet81: no such model; did you mean resnet18?"
    assert said("mpl", 3, 8, 8) == "--model mpl: no such model; did you mean mlp?"
    known = "mlp, convnet and torchvision's"
    assert said("?", 3, 8, 8) == f"--model ?: no such model; known: {known}"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The file where torch looks for the published weights of a model; none can be fetched."""

    def refuse(*_args, **_kwargs):
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "urlopen", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)

    def file(name):
        url = torchvision.models.get_model_weights(name).DEFAULT.url
        return folder / url.split("/")[-1]

    return file


def test_published_weights_that_cannot_be_had_are_said_in_one_line(cache):
    with pytest.raises(JobError) as caught:
        make("resnet18", 3, 64, 64, pretrained=True)
    line = str(caught.value)
    assert line.startswith("--pretrained: the weights of resnet18 cannot be fetched or read (")
    assert cache("resnet18").name in line
    assert str(cache("resnet18").parent) in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("squeezenet1_1", "features.0.weight", "classifier.1"),
        ("shufflenet_v2_x0_5", "conv1.0.weight", "fc"),
    ],
)
def test_published_weights_are_taken_over(cache, name, first, last):
    published = torchvision.models.get_model(name).state_dict()
    torch.save(published, cache(name))
    colour, grey = (make(name, channels, 64, 64, pretrained=True) for channels in (3, 1))
    expected = {**published, first: published[first].sum(1, keepdim=True)}
    for model, weights in ((colour, published), (grey, expected)):
        found = model.network.state_dict()
        assert found.keys() == weights.keys()
        for key in found:
            if not key.startswith(last):
                assert torch.allclose(found[key], weights[key], atol=1e-6)
        assert found[f"{last}.weight"].shape[0] == CLASSES
    assert colour.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert colour(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape == (2, CLASSES)


@pytest.mark.parametrize("content", ["code", "rubbish", "another network"])
def test_file_that_does_not_hold_the_published_weights_is_refused_in_one_line(
    cache, tmp_path, content
):
    file = cache("squeezenet1_1")
    if content == "code":
        torch.save({"weight": Path(tmp_path)}, file)  # an object, as code would be
    elif content == "rubbish":
        file.write_bytes(b"rubbish")
    else:
        torch.save(torchvision.models.squeezenet1_0().state_dict(), file)
    with pytest.raises(JobError) as caught:
        make("squeezenet1_1", 3, 64, 64, pretrained=True)
    assert file.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pixels_reach_the_network_scaled_and_normalised():
    pixels = torch.arange(768).view(6, 2, 8, 8).byte()
    found = Normalized(nn.Identity(), (2, 8, 8), [0.1, 0.2], [0.5, 0.25])(pixels)
    assert (found.dtype, found.shape) == (torch.float32, pixels.shape)
    assert torch.allclose(found[:, 0], (pixels[:, 0] / 255 - 0.1) / 0.5)
    assert torch.allclose(found[:, 1], (pixels[:, 1] / 255 - 0.2) / 0.25)


def test_images_of_another_size_are_resized():
    plain = Normalized(nn.Identity(), (1, 16, 16), [0.0], [1.0])
    grey = torch.full((1, 1, 8, 8), 51, dtype=torch.uint8)
    assert torch.allclose(plain(grey), torch.full((1, 1, 16, 16), 0.2))
