"""Networks by name, and how they are fitted to the data."""

import os
from urllib.error import URLError

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import models
from engine.cli.settings import JobSettings
from engine.data.splits import Source, split
from engine.errors import JobError, SettingsError
from engine.training import classifiers
from engine.training.classifiers import Classifier

CLASSES = 5


def data(*shape, count=40):
    """A dataset of random images, and its parts."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(180, (count, *shape), dtype=torch.uint8, generator=random)
    labels = torch.arange(count) % CLASSES
    source = Source(TensorDataset(images, labels), None, [str(label) for label in range(CLASSES)])
    return source, split(source, 0.1, seed=0)


def make(name, *shape, **settings) -> Classifier:
    return classifiers.make(models.MODELS, JobSettings(model=name, **settings), *data(*shape))


def check(name, *shape, **settings):
    classifiers.check(models.MODELS, JobSettings(model=name, **settings), data(*shape)[0])


def said(name, *shape, **options):
    """What is wrong with a model, in one line."""
    with pytest.raises(SettingsError) as caught:
        check(name, *shape, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", [*models.MODELS, "resnet18"])
def test_network_gives_logits_and_finite_gradients(name, shape):
    model, (source, _) = make(name, *shape), data(*shape)
    images, labels = source.train[:6]
    logits = model(images)
    assert logits.shape == (6, CLASSES)
    cross_entropy(logits, labels).backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
    assert any(parameter.grad.any() for parameter in model.parameters())


def test_resnet18_keeps_small_images_their_size_and_large_ones_as_published():
    small, large = make("resnet18", 3, 32, 32).network, make("resnet18", 3, 224, 224).network
    stem = (small.conv1.kernel_size, small.conv1.stride, small.conv1.padding)
    assert stem == ((3, 3), (1, 1), (1, 1))
    assert isinstance(small.maxpool, nn.Identity)
    published = torchvision.models.resnet18(num_classes=CLASSES)
    assert str(large) == str(published)
    assert shapes(large) == shapes(published)


def shapes(network):
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def test_first_and_last_layers_are_fitted():
    network = make("resnet18", 1, 224, 224).network
    assert network.conv1.weight.shape == (64, 1, 7, 7)
    assert network.fc.weight.shape == (CLASSES, 512)


@pytest.mark.parametrize(
    "name",
    [
        "mobilenet_v2",
        "densenet121",
        "convnext_tiny",
        "squeezenet1_1",
        "regnet_y_400mf",
        "shufflenet_v2_x0_5",
    ],
)
def test_torchvision_families_take_small_images(name):
    check(name, 3, 32, 32)
    check(name, 1, 32, 32)


def test_images_that_are_too_small_are_said_in_one_line():
    line = said("vit_b_16", 3, 8, 8)
    assert line.startswith("--model vit_b_16: cannot take 8×8 images (")
    assert line.endswith("; try another --image-size")


def test_unknown_model_is_said_with_the_nearest():
    assert said("resnet81", 3, 8, 8) == "--model resnet81: no such model; did you mean resnet18?"
    known = ", ".join(models.MODELS)
    assert said("?", 3, 8, 8) == f"--model ?: no such model; known: {known} and torchvision's"


def test_own_network_has_no_published_weights():
    for name in models.MODELS:
        assert said(name, 3, 8, 8, pretrained=True).startswith("--pretrained: no weights are publ")


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
    assert line.startswith("--pretrained: no weights of resnet18 can be had (")
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


def test_other_numbers_of_channels_can_be_pretrained(cache):
    torch.save(torchvision.models.squeezenet1_1().state_dict(), cache("squeezenet1_1"))
    for channels in (1, 2, 4):
        images = torch.zeros(2, channels, 64, 64, dtype=torch.uint8)
        model = make("squeezenet1_1", channels, 64, 64, pretrained=True)
        assert model(images).shape == (2, CLASSES)


class Code:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("content", ["code", "rubbish", "another network"])
def test_file_that_does_not_hold_the_published_weights_is_refused_in_one_line(
    cache, tmp_path, content
):
    file = cache("squeezenet1_1")
    if content == "code":
        torch.save({"weight": Code(f"touch '{tmp_path}/ran'")}, file)
    elif content == "rubbish":
        file.write_bytes(b"rubbish")
    else:
        torch.save(torchvision.models.squeezenet1_0().state_dict(), file)
    with pytest.raises(JobError) as caught:
        make("squeezenet1_1", 3, 64, 64, pretrained=True)
    assert file.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_pixels_reach_the_network_with_zero_mean_and_unit_deviation():
    source, parts = data(3, 32, 32)
    source.train.tensors[0][parts.test.indices] = 255  # what is held out has no say
    images, _ = source.train[parts.train.indices]
    pixels = Classifier(nn.Identity(), images.shape[2:], parts.mean, parts.std)(images)
    assert (pixels.dtype, pixels.shape) == (torch.float32, images.shape)
    assert torch.allclose(pixels.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(pixels.std((0, 2, 3)), torch.ones(3), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "channels_last"), [("mlp", False), ("convnet", True), ("resnet18", True)]
)
def test_images_are_channels_last_for_networks_that_convolve(name, channels_last):
    model, seen = make(name, 3, 32, 32), []
    model.network.register_forward_pre_hook(lambda _network, inputs: seen.extend(inputs))
    model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    kernels = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    for tensor in [*seen, *kernels]:
        assert tensor.is_contiguous(memory_format=torch.channels_last) is channels_last
    assert seen


def test_saved_weights_hold_the_normalisation():
    saved, (source, parts) = make("mlp", 3, 8, 8), data(3, 8, 8)
    fresh = Classifier(make("mlp", 3, 8, 8).network, (8, 8), torch.zeros(3), torch.ones(3))
    fresh.load_state_dict(saved.state_dict())
    assert torch.equal(fresh.mean.flatten(), parts.mean)
    assert torch.equal(fresh.std.flatten(), parts.std)
    images, _ = source.train[:6]
    assert torch.equal(fresh.eval()(images), saved.eval()(images))


def test_images_are_scaled_to_the_size_asked_for():
    model, (source, _) = make("mlp", 1, 8, 8, image_size=16), data(1, 8, 8)
    assert model.network.layers[1].in_features == 16 * 16
    assert model(source.train[:3][0]).shape == (3, CLASSES)
    plain = Classifier(nn.Identity(), (16, 16), torch.zeros(1), torch.ones(1))
    grey = torch.full((1, 1, 8, 8), 51, dtype=torch.uint8)
    assert torch.allclose(plain(grey), torch.full((1, 1, 16, 16), 0.2))


def test_settings_reach_the_network():
    class Wide(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.seed = seed

    own = {"wide": lambda shape, classes, settings: Wide(settings.seed)}
    settings = JobSettings(model="wide", seed=7)
    assert classifiers.make(own, settings, *data(1, 8, 8)).network.seed == 7
