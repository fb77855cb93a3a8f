"""Images in folders, of every kind that files hold, and what is said of the others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from labjobs.data import batches
from labjobs.data.order import examples_at
from labjobs.errors import JobError, SettingsError, cause
from labjobs.vision import ImageFolder, channel_statistics
from PIL import Image
from torch.utils.data import Subset, TensorDataset

RANDOM = np.random.default_rng(0)


def pixels(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def everything(dataset):
    """All images (N, C, H, W) and labels (N,) of a dataset."""
    images, labels = examples_at(dataset, torch.arange(len(dataset)))
    return images.numpy(), labels.tolist()


def write_image(path, array, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **how)


def write_folder(root, classes=("cat", "dog"), size=16):
    """Three PNG images a class; returns them as (N, 3, size, size)."""
    images = pixels(3 * len(classes), size, size, 3)
    for n, image in enumerate(images):
        write_image(root / classes[n // 3] / f"{n % 3}.png", image)
    return images.transpose(0, 3, 1, 2)


def test_png_of_any_mode_is_read_exactly(tmp_path):
    grey, colour, alpha, index = pixels(8, 8), pixels(8, 8, 3), pixels(8, 8, 1), pixels(8, 8) % 4
    palette = pixels(4, 3)
    write_image(tmp_path / "cat" / "l.png", grey)
    write_image(tmp_path / "cat" / "rgb.png", colour)
    write_image(tmp_path / "dog" / "rgba.png", np.concatenate([colour, alpha], axis=2))
    with_palette = Image.fromarray(index)
    with_palette.putpalette(palette.tobytes())
    with_palette.save(tmp_path / "dog" / "p.png")
    images, labels = everything(ImageFolder(tmp_path, 8))
    expected = [np.repeat(grey[..., None], 3, 2), colour, palette[index], colour]
    assert np.array_equal(images, np.stack(expected).transpose(0, 3, 1, 2))
    assert labels == [0, 0, 1, 1]


def test_jpeg_of_any_size_has_its_middle_square_taken(tmp_path):
    write_image(tmp_path / "cat" / "wide.jpg", pixels(8, 20, 3))
    write_image(tmp_path / "dog" / "tall.jpeg", pixels(24, 8))
    dataset = ImageFolder(tmp_path, 8)
    wide = np.asarray(Image.open(tmp_path / "cat" / "wide.jpg"))[:, 6:14]
    tall = np.asarray(Image.open(tmp_path / "dog" / "tall.jpeg").convert("RGB"))[8:16]
    images, _ = everything(dataset)
    assert np.array_equal(images, np.stack([wide, tall]).transpose(0, 3, 1, 2))
    assert dataset.classes == ["cat", "dog"]


def test_image_is_turned_as_its_camera_says(tmp_path):
    picture, turned = pixels(8, 8, 3), Image.Exif()
    turned[0x0112] = 3  # orientation: upside down
    write_image(tmp_path / "cat" / "0.png", picture)
    write_image(tmp_path / "dog" / "0.png", picture, exif=turned)
    (straight, upside_down), _ = everything(ImageFolder(tmp_path, 8))
    assert np.array_equal(upside_down, straight[:, ::-1, ::-1])


def test_grey_image_of_more_than_8_bits_is_refused(tmp_path):
    write_folder(tmp_path)
    write_image(tmp_path / "cat" / "0.png", RANDOM.integers(0, 2**16, (8, 8), dtype=np.uint16))
    with pytest.raises(JobError, match=r"0.png .*: it has more than 8 bits a channel, which"):
        everything(ImageFolder(tmp_path, 8))


def one_class(root):
    write_folder(root, classes=["cat"])


def test_hidden_files_and_folders_are_neither_classes_nor_images(tmp_path):
    """Those of notebooks, of archives made on a Mac, and of its file system."""
    write_folder(tmp_path)
    expected = everything(ImageFolder(tmp_path, 16))
    image = (tmp_path / "cat" / "1.png").read_bytes()
    for name in (
        *(".ipynb_checkpoints/1.png", "__MACOSX/._1.png", "__MACOSX/cat/1.png", "dog/._1.png"),
        "cat/.ipynb_checkpoints/1-checkpoint.png",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(image)
    (tmp_path / ".empty").mkdir()
    found = ImageFolder(tmp_path, 16, ("cat", "dog"))
    assert found.classes == ["cat", "dog"] and len(found) == 6
    assert everything(found)[1] == expected[1] and (everything(found)[0] == expected[0]).all()


def only_hidden(root):
    write_image(root / ".cat" / "1.png", pixels(1, 16, 16, 3)[0])


def no_image(root):
    write_folder(root)
    for image in (root / "dog").iterdir():
        image.unlink()


def other_classes(root):
    write_folder(root, classes=["cat", "cow"])


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (str, "there is no folder"),
        (Path.mkdir, "needs a folder of images per class, has none"),
        (only_hidden, "needs a folder of images per class, has none"),
        (one_class, "needs a folder of images per class, has cat"),
        (no_image, "no image in .*/dog"),
        (other_classes, "does not have the same classes as train"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(tmp_path, prepare, words):
    prepare(tmp_path / "data")
    with pytest.raises(SettingsError, match=f"^--data-root: .*{words}") as caught:
        ImageFolder(tmp_path / "data", 8, ["cat", "dog"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("loader", ["resident", "workers"])
def test_corrupt_image_is_named_in_one_line(tmp_path, loader):
    write_folder(tmp_path)
    broken = tmp_path / "dog" / "1.png"
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(JobError) as caught:
        list(batches.make(ImageFolder(tmp_path, 16), torch.device("cpu"), 4, loader, 1))
    assert cause(caught.value) == f"{broken} cannot be read as an image: image file is truncated"


def test_statistics_are_those_of_the_examples_in_the_part():
    images = torch.randint(200, (100, 3, 4, 4), dtype=torch.uint8)
    images[::2] = 255
    part = Subset(TensorDataset(images, torch.arange(100)), range(1, 100, 2))
    mean, std = map(torch.tensor, channel_statistics(part, 0))
    assert torch.allclose(mean, (images[1::2] / 255).mean((0, 2, 3)), rtol=1e-4)
    assert torch.allclose(std, (images[1::2] / 255).std((0, 2, 3)), rtol=1e-4)
