"""Images with a mask each, as files hold them, and what is said of files that do not."""

import numpy as np
import pytest
import torch
from labjobs.data.vision import IGNORED, MaskedImages, read_masked_images
from labjobs.errors import JobError, SettingsError
from PIL import Image

RANDOM = np.random.default_rng(0)


def write(path, array, mode=None, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array)
    if mode == "P":  # a palette, as in Pascal VOC
        image.putpalette(RANDOM.integers(0, 256, 768, dtype=np.uint8).tobytes())
    image.save(path, **how)


def pair(root, name="0", height=8, width=8, classes=3, mode=None):
    """Write an image and its mask; return them as arrays."""
    image = RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)
    mask = RANDOM.choice([*range(classes), IGNORED], (height, width)).astype(np.uint8)
    write(root / "images" / f"{name}.png", image)
    write(root / "masks" / f"{name}.png", mask, mode)
    return image, mask


def both(root, classes=range(3), size=8, name="0"):
    """The image and the mask that are read, as arrays."""
    files = [root / "images" / f"{name}.png"], [root / "masks" / f"{name}.png"]
    image, mask = MaskedImages(*files, classes, size)[0]
    assert {type(image), type(mask)} == {torch.Tensor}
    return image.numpy(), mask.numpy()


def test_a_mask_of_two_levels_is_read(tmp_path):
    pair(tmp_path)
    write(tmp_path / "masks" / "0.png", np.eye(8, dtype=bool))
    assert np.array_equal(both(tmp_path)[1], np.eye(8, dtype=np.uint8))


@pytest.mark.parametrize(("height", "width"), [(40, 80), (80, 40), (8, 8)])
def test_both_are_scaled_alike_and_no_class_is_made_up(tmp_path, height, width):
    """The mask is a black and white image itself: its half is bright in the image too."""
    mask = np.zeros((height, width), dtype=np.uint8)
    mask[:, width // 2 :] = 7
    write(tmp_path / "images" / "0.png", np.repeat(mask[..., None] // 7 * 255, 3, 2))
    write(tmp_path / "masks" / "0.png", mask)
    image, found = both(tmp_path, range(8), 20)
    assert (image.shape, found.shape) == ((3, 20, 20), (20, 20))
    assert set(np.unique(found)) == {0, 7}
    assert np.array_equal(image[0] > 127, found == 7)


def test_a_pair_is_not_turned_as_the_camera_says(tmp_path):
    image, _ = pair(tmp_path)
    turned = Image.Exif()
    turned[0x0112] = 3  # orientation: upside down
    write(tmp_path / "images" / "0.png", image, exif=turned)
    assert np.array_equal(both(tmp_path)[0], image.transpose(2, 0, 1))


def colours(root):
    write(root / "masks" / "0.png", RANDOM.integers(0, 3, (8, 8, 3), dtype=np.uint8))


def smaller(root):
    write(root / "masks" / "0.png", np.zeros((8, 4), dtype=np.uint8))


def unknown(root):
    write(root / "masks" / "0.png", np.full((8, 8), 3, dtype=np.uint8))


def damaged(root):
    (root / "masks" / "0.png").write_bytes(b"no image")


def deep(root):
    write(root / "images" / "0.png", np.zeros((8, 8), dtype=np.uint16))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (colours, r"the mask has colours \(RGB\), not a class in each pixel"),
        (smaller, "they do not have the same size"),
        (unknown, "the mask has a number that is not the number of a class"),
        (damaged, "cannot identify image file"),
        (deep, "it has more than 8 bits a channel"),
    ],
)
def test_what_is_wrong_with_a_pair_is_said_in_one_line(tmp_path, change, words):
    pair(tmp_path)
    change(tmp_path)
    with pytest.raises(JobError, match=f"its mask .*0.png cannot be read: .*{words}") as caught:
        both(tmp_path)
    assert "\n" not in str(caught.value)


def folder(root, classes="sky\nroad\ncar\n"):
    """Write a folder of two pairs; return their masks."""
    masks = [pair(root, name)[1] for name in ("b", "a")]
    (root / "classes.txt").write_text(classes)
    return masks


def no_mask(root):
    (root / "masks" / "b.png").unlink()


def no_image(root):
    (root / "images" / "a.png").unlink()


def empty(root):
    for file in [*root.glob("*/*.png")]:
        file.unlink()


def no_names(root):
    (root / "classes.txt").unlink()


def two_words(root):
    (root / "classes.txt").write_text("sky\nasphalt road\n")


def too_many(root):
    (root / "classes.txt").write_text("\n".join(map(str, range(256))))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (no_mask, "there is no mask b in"),
        (no_image, "there is no image a in"),
        (empty, "there are no images in"),
        (no_names, "classes.txt not found; write a class's name in each line"),
        (two_words, "a class's name is letters, .*, not 'asphalt road'"),
        (too_many, "has more than 255 classes"),
    ],
)
def test_what_is_missing_in_a_folder_is_said_in_one_line(tmp_path, change, words):
    folder(tmp_path)
    change(tmp_path)
    with pytest.raises(SettingsError, match=f"^--data-root: .*{words}") as caught:
        read_masked_images(tmp_path)
    assert "\n" not in str(caught.value)
