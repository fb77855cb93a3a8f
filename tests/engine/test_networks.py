"""What models.py makes of its settings: initializations, frozen and recomputed layers."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial

import models
import pytest
import run
import torch
from labjobs.errors import SettingsError
from labjobs.settings import Weights
from labjobs.training import compilation
from settings import Settings
from torch import Tensor, nn

WEIGHTS = Weights("0123456789ab")
SPEC = models.Spec((1, 8, 8), tuple("abcd"), (0.5,), (0.25,), (50, 30, 15, 5))
NO_IMAGES = models.Spec((4,), ("a", "b"), (), ())


def made(**settings: object) -> nn.Module:
    torch.manual_seed(0)
    return models.make(Settings(**settings), SPEC)


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(256, (16, 1, 8, 8), dtype=torch.uint8), torch.randint(4, (16,))


def loss(model: nn.Module, settings: Settings | None = None) -> Tensor:
    return run.forward(model, batch(), settings or Settings())[0]


def test_orthogonal_weights():
    for layer in models.layers(made(init="orthogonal", model="convnet")):
        matrix = layer.weight.flatten(1)
        gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
        assert torch.allclose(gram, 2 * torch.eye(len(gram)), atol=1e-5)


@pytest.mark.parametrize("model", ["convnet", "resnet18"])
def test_a_frozen_backbone_stays_as_it_is(model):
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
def test_recomputed_blocks_give_the_same_with_less_memory(model):
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


class Centered(nn.Module):
    """Subtracts a mean of its own, which it replaces in each step."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(channels, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        self.center = 0.5 * self.center + 0.5 * images.detach().mean((0, 2, 3), keepdim=True)[0]
        return images - self.center


def with_norms(model: nn.Module, kind: Callable[[int], nn.Module]) -> nn.Module:
    for part in [*model.modules()]:
        for name, layer in part.named_children():
            if isinstance(layer, nn.BatchNorm2d):
                setattr(part, name, kind(layer.num_features))
    return model


@pytest.mark.parametrize(
    "convert",
    [
        nn.SyncBatchNorm.convert_sync_batchnorm,
        partial(with_norms, kind=partial(nn.InstanceNorm2d, track_running_stats=True)),
        partial(with_norms, kind=Centered),
    ],
)
def test_recomputed_blocks_update_other_norms_once(convert):
    """Which run.py puts in the place of others, such as those of several processes."""
    plain, other = map(convert, (made(model="convnet"), made(model="convnet", recompute=True)))
    for network in (plain.train(), other.train()):
        loss(network).backward()
    assert all(map(torch.equal, plain.buffers(), other.buffers()))
    gradients = ([each.grad for each in network.parameters()] for network in (plain, other))
    assert all(map(torch.equal, *gradients))


class Counting(nn.Module):
    """Two layers, the first of which counts in a tensor that the second one scales by."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.first.register_buffer("count", torch.zeros(()))
        self.second.register_buffer("count", self.first.count)

    def forward(self, x: Tensor) -> Tensor:
        self.first.count.add_(1)
        return torch.tanh(self.second(torch.tanh(self.first(x)))) * self.second.count


def test_recomputed_blocks_may_be_differentiated_twice():
    torch.manual_seed(0)
    plain = nn.Sequential(Counting())
    other = deepcopy(plain)
    assert compilation.recompute_blocks(other) == 1
    found = []
    for network in (plain, other):
        x = torch.linspace(-1, 1, 3).requires_grad_()
        (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        loss = (slope**2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([*(each.grad for each in network.parameters()), *network.buffers()])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(
    ("settings", "spec", "said"),
    [
        ({"recompute": True}, SPEC, "--recompute: mlp has no blocks"),
        ({"init": "class-prior"}, replace(SPEC, counts=()), "--init class-prior: "),
        ({"test_time_flip": True}, NO_IMAGES, "--test-time-flip: "),
        ({"freeze": "backbone", "init_from": WEIGHTS}, NO_IMAGES, "--freeze backbone: "),
    ],
)
def test_what_a_network_cannot_do_is_refused(settings, spec, said):
    with pytest.raises(SettingsError, match=said):
        models.make(Settings(**settings), spec)


def test_an_image_and_its_mirror_image_are_evaluated_alike():
    settings = Settings(test_time_flip=True, model="convnet")
    network = made(model="convnet").eval()
    images, labels = batch()
    one, other = (
        run.forward(network, (each, labels), settings)[0] for each in (images, images.flip(3))
    )
    assert torch.allclose(one, other) and not torch.allclose(one, loss(network))
