"""Images in folders, of every kind that files hold, and what is said of the others."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from labjobs.data import batches
from labjobs.data.order import examples_at
from labjobs.data.vision import ImageFolder, channel_statistics
from labjobs.errors import JobError, SettingsError, cause
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


def write_png_16(path, channels):
    """A PNG of 16 bits a channel: grey, grey and alpha, colour, colour and alpha."""
    rows = RANDOM.integers(0, 2**16, (8, 8 * channels)).astype(">u2")
    packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    header = struct.pack(">IIBBBBB", 8, 8, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", packed), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks:
        content += struct.pack(">I", len(data)) + kind + data
        content += struct.pack(">I", zlib.crc32(kind + data))
    path.write_bytes(content)


def write_tiff_16(path, channels):
    """An uncompressed TIFF of 16 bits a channel, low byte first."""
    data = RANDOM.integers(0, 2**16, (8, 8, channels)).astype("<u2").tobytes()
    bits = 8 + 2 + 9 * 12 + 4
    tags = [(256, 3, 1, 8), (257, 3, 1, 8), (258, 3, channels, bits if channels > 2 else 16)]
    tags += [(259, 3, 1, 1), (262, 3, 1, 2 if channels == 3 else 1), (273, 4, 1, bits + 8)]
    tags += [(277, 3, 1, channels), (278, 3, 1, 8), (279, 4, 1, len(data))]
    folder = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    start = b"II*\0" + struct.pack("<IH", 8, len(tags))
    path.write_bytes(start + folder + bytes(4) + struct.pack("<4H", 16, 16, 16, 16) + data)


def write_ppm_16(path, channels):
    kind = {1: "P5", 3: "P6"}[channels]
    data = RANDOM.integers(0, 2**16, 8 * 8 * channels).astype(">u2").tobytes()
    path.write_bytes(f"{kind} 8 8 65535\n".encode() + data)


@pytest.mark.parametrize(
    ("name", "write", "channels"),
    [("0.png", write_png_16, n) for n in (1, 2, 3, 4)]
    + [("0.tif", write_tiff_16, 1), ("0.tif", write_tiff_16, 3)]
    + [("0.pgm", write_ppm_16, 1), ("0.ppm", write_ppm_16, 3)],
)
def test_image_of_more_than_8_bits_is_refused(tmp_path, name, write, channels):
    write_folder(tmp_path)
    write(tmp_path / "cat" / name, channels)
    with pytest.raises(JobError, match=rf"{name} .*: it has more than 8 bits a channel, which"):
        everything(ImageFolder(tmp_path, 8))


def one_class(root):
    write_folder(root, classes=["cat"])


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
        (Path.mkdir, "any class folder"),
        (one_class, "has only one class, cat"),
        (no_image, "no valid file for the classes dog"),
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
