"""What models.py makes of its settings: initializations, frozen and recomputed layers."""

import math
from copy import deepcopy
from dataclasses import replace

import data
import models
import pytest
import run
import torch
from labjobs.errors import SettingsError
from labjobs.settings import Weights
from labjobs.training.compilation import recompute_blocks
from settings import Settings
from torch import Tensor, nn

WEIGHTS = Weights("0123456789ab")
SPEC = models.Spec((1, 8, 8), tuple("abcd"), (0.5,), (0.25,), (50, 30, 15, 5))


def made(**settings: object) -> nn.Module:
    torch.manual_seed(0)
    return models.make(Settings(**settings), SPEC)  # type: ignore[arg-type]


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(256, (16, 1, 8, 8), dtype=torch.uint8), torch.randint(4, (16,))


def loss(model: nn.Module, settings: Settings | None = None) -> Tensor:
    return run.forward(model, batch(), settings or Settings())[0]


def test_kaiming_keeps_the_variance_of_relus() -> None:
    for layer in models.layers(made(init="kaiming", model="mlp")):
        fan_in = layer.weight[0].numel()
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_in), rel=0.1)


def test_orthogonal_weights() -> None:
    for layer in models.layers(made(init="orthogonal", model="convnet")):
        matrix = layer.weight.flatten(1)
        gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
        assert torch.allclose(gram, 2 * torch.eye(len(gram)), atol=1e-5)


def test_dirac_filters_pass_on_their_inputs() -> None:
    images = torch.randn(2, 32, 8, 8)
    for layer in models.layers(made(init="dirac", model="convnet")):
        if isinstance(layer, nn.Conv2d) and layer.in_channels == 32:
            assert torch.allclose(layer(images)[:, :32], images, atol=1e-6)


def test_the_first_predictions_are_the_class_frequencies() -> None:
    model = made(init="class-prior", model="convnet").eval()
    nn.init.zeros_(models.layers(model)[-1].weight)
    predicted = model(batch()[0]).softmax(1)
    assert torch.allclose(predicted, torch.tensor([0.5, 0.3, 0.15, 0.05]).expand(16, 4))


def test_class_counts_are_of_the_training_examples(tmp_path) -> None:
    splits = data.load(Settings(), tmp_path)
    labels = torch.tensor([int(splits.train[index][1]) for index in range(len(splits.train))])
    assert splits.spec.counts == tuple(torch.bincount(labels).tolist())


@pytest.mark.parametrize("model", ["convnet", "resnet18", "vit_b_16"])
def test_a_frozen_backbone_stays_as_it_is(model: str) -> None:
    settings = Settings(model=model, freeze="backbone", init_from=WEIGHTS, image_size=32)
    torch.manual_seed(0)
    network = models.make(settings, SPEC)
    before = deepcopy(network.state_dict())
    optimizer = torch.optim.SGD([w for w in network.parameters() if w.requires_grad], lr=0.1)
    for _ in range(2):
        network.train()
        loss(network).backward()
        optimizer.step()
    changed = {name for name, now in network.state_dict().items() if not now.equal(before[name])}
    last = [name for name, _ in network.named_parameters()][-2:]
    assert changed == {*last}
    assert deepcopy(network).train().frozen  # as the EMA's copy


@pytest.mark.parametrize("model", ["convnet", "convnet-se", "resnet18"])
def test_recomputed_blocks_give_the_same_with_less_memory(model: str) -> None:
    plain, other = made(model=model).train(), made(model=model, recompute=True).train()
    kept = []
    for network in (plain, other):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.append(tensor.numel()) or tensor,
            lambda tensor: tensor,
        ):
            result = loss(network)
        kept.append(sum(sizes))
        result.backward()
    assert kept[1] < 0.7 * kept[0]
    for one, two in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)
    assert plain.state_dict().keys() == other.state_dict().keys()
    assert all(map(torch.equal, plain.buffers(), other.buffers()))


def test_recomputed_blocks_draw_the_same_random_numbers() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    plain = nn.Sequential(block, deepcopy(block))
    other = deepcopy(plain)
    assert recompute_blocks(other) == 2
    for network in (plain, other):
        torch.manual_seed(0)
        network(torch.ones(3, 4)).sum().backward()
    for one, two in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


@pytest.mark.parametrize(
    ("settings", "spec", "said"),
    [
        ({"recompute": True}, SPEC, "--recompute: mlp has no blocks"),
        ({"init": "class-prior"}, replace(SPEC, counts=()), "--init class-prior: "),
        ({"test_time_flip": True}, models.Spec((4,), ("a", "b"), (), ()), "--test-time-flip: "),
        (
            {"freeze": "backbone", "init_from": WEIGHTS},
            models.Spec((4,), ("a", "b"), (), ()),
            "--freeze backbone: ",
        ),
    ],
)
def test_what_a_network_cannot_do_is_refused(settings, spec, said) -> None:
    with pytest.raises(SettingsError, match=said):
        models.make(Settings(**settings), spec)


def test_options_of_the_small_network_have_fewer_and_more_weights() -> None:
    plain, separable, squeezed = (
        sum(weight.numel() for weight in made(model=name).parameters())
        for name in ("convnet", "convnet-separable", "convnet-se")
    )
    assert separable < plain / 5 < plain < squeezed < 1.1 * plain


def test_an_image_and_its_mirror_image_are_evaluated_alike() -> None:
    settings = Settings(test_time_flip=True, model="convnet")
    network = made(model="convnet").eval()
    images, labels = batch()
    one, other = (
        run.forward(network, (each, labels), settings)[0] for each in (images, images.flip(3))
    )
    assert torch.allclose(one, other) and not torch.allclose(one, loss(network))


def test_two_passes_show_both_sides_of_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "random_shift", lambda images: images)
    images, labels = batch()
    passes = [data.alternating_flip((images, labels), epoch)[0] for epoch in range(3)]
    assert torch.equal(passes[0], passes[1].flip(3)) and torch.equal(passes[0], passes[2])
    mirrored = (passes[0] == images.flip(3)).flatten(1).all(1)
    assert torch.equal(mirrored, images.flatten(1).sum(1) % 2 == 1)
    assert 0 < mirrored.sum() < len(images)
