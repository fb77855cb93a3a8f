"""The example for segmentation: what it measures, its augmentations, and its datasets in files."""

from pathlib import Path

import numpy as np
import pytest
from faults import job_of, one_line, succeeded
from PIL import Image

EXAMPLE = "segmentation"
RANDOM = np.random.default_rng(0)
NONE = 255  # the class of pixels that do not count
SHORT = ("--epochs", "1", "--image-size", "32", "--batch-size", "64", "--val-fraction", "0.25")


# What is measured


@pytest.mark.full
def test_metrics_are_those_of_the_pixels_that_have_a_class(project):
    """All test images are in one batch, so all are kept and everything can be computed again."""
    job = project.finish("--epochs", "3", "--batch-size", "200")
    outputs, tested = project.outputs(job), project.tested(job)
    mask, predicted = outputs["mask"], outputs["predicted"]
    assert (mask.shape, outputs["image"].shape) == ((120, 24, 24), (120, 1, 24, 24))
    counts = mask != NONE
    assert not counts.all()
    ious = {}
    for number, name in enumerate(["background", *map(str, range(10))]):
        true, found = mask == number, (predicted == number) & counts
        ious[name] = (true & found).sum() / (true | found).sum()
    correct = (mask == predicted)[counts].mean()
    wanted = {f"iou_{name}": value for name, value in ious.items()}
    wanted |= {"iou": np.mean([*ious.values()]), "pixel_accuracy": correct}
    assert tested == pytest.approx(wanted | {"loss": tested["loss"]}, abs=1e-6)
    assert sum(iou > 0 for iou in ious.values()) > 2


AUGMENTED = """
import torch
import data
from settings import Settings

images = torch.randint(256, (200, 1, 24, 24), dtype=torch.uint8)
for name in data.AUGMENTATIONS:
    augment = data.augmentation(Settings(augment=name))
    changed, masks = augment((images, images[:, 0]))
    print(name, torch.equal(changed[:, 0], masks), torch.equal(changed, images))
"""


def test_augmentations_move_masks_with_their_images(project):
    """Each mask is its image, before and after."""
    found = project.printed(AUGMENTED)
    assert found == ["none True True", "crop True False", "crop-flip True False"]


# Datasets in files


def write(photograph: Path, file: Path, mask: np.ndarray, *, palette: bool = False) -> None:
    """Write a mask, and a photograph in which its classes differ in brightness."""
    for path in (photograph, file):
        path.parent.mkdir(parents=True, exist_ok=True)
    grey = (40 * (mask % 7) + RANDOM.integers(0, 16, mask.shape)).astype(np.uint8)
    Image.fromarray(np.stack([grey] * 3, 2)).save(photograph)
    image = Image.fromarray(mask)
    if palette:
        image.putpalette(RANDOM.integers(0, 256, 768, dtype=np.uint8).tobytes())
    image.save(file)


def halves(left: int, right: int, edge: int) -> np.ndarray:
    """A mask of two classes, left and right, with an edge between."""
    mask = np.full((32, 32), left, dtype=np.uint8)
    mask[:, RANDOM.integers(8, 24) :] = right
    where = int(np.argmax(mask[0] == right))
    mask[:, where - 1 : where + 1] = edge
    return mask


def voc(root: Path) -> np.ndarray:
    """Pascal VOC's files: masks with a palette and edges of 255. Returns those to test on."""
    folder = root / "VOCdevkit" / "VOC2012"
    for part, count in (("train", 8), ("val", 4)):
        masks = {f"2007_{part}_{number}": halves(0, 8, NONE) for number in range(count)}
        listed = folder / "ImageSets" / "Segmentation" / f"{part}.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("".join(f"{name}\n" for name in masks))
        for name, mask in masks.items():
            file = folder / "SegmentationClass" / f"{name}.png"
            write(folder / "JPEGImages" / f"{name}.jpg", file, mask, palette=True)
    return np.stack([*masks.values()])


def pets(root: Path) -> np.ndarray:
    """Oxford-IIIT Pet's files: trimaps of 1, 2 and 3. Returns the classes to test on."""
    folder = root / "oxford-iiit-pet"
    (folder / "annotations").mkdir(parents=True)
    for part, count in (("trainval", 8), ("test", 4)):
        trimaps = {f"Abyssinian_{part}{number}": halves(1, 2, 3) for number in range(count)}
        listed = "".join(f"{name} 1 1 1\n" for name in trimaps)
        (folder / "annotations" / f"{part}.txt").write_text(listed)
        for name, trimap in trimaps.items():
            file = folder / "annotations" / "trimaps" / f"{name}.png"
            write(folder / "images" / f"{name}.jpg", file, trimap)
    return np.stack([np.choose(trimap - 1, [1, 0, NONE]) for trimap in trimaps.values()])


def mask_folder(root: Path) -> np.ndarray:
    """Images, masks and the names of classes; no part is set aside to test on."""
    masks = [halves(0, 1, NONE) for _ in range(12)]
    for number, mask in enumerate(masks):
        write(root / "images" / f"{number:02}.jpg", root / "masks" / f"{number:02}.png", mask)
    (root / "classes.txt").write_text("ground\nsky\n")
    return np.stack(masks)


FILES = {"voc": voc, "pets": pets, "mask-folder": mask_folder}


@pytest.mark.parametrize("dataset", FILES)
def test_a_dataset_in_files_is_read_in_its_format(project, dataset, tmp_path):
    masks = FILES[dataset](tmp_path)
    done = succeeded(project.run("--dataset", dataset, "--data-root", str(tmp_path), *SHORT))
    tested = project.outputs(job_of(done))["mask"]
    assert tested.shape[1:] == (32, 32) and len(tested)
    known = {mask.tobytes() for mask in masks.astype(np.uint8)}
    assert {mask.tobytes() for mask in tested} <= known
    if dataset != "mask-folder":  # which is split at random
        assert np.array_equal(tested, masks)


@pytest.mark.full
def test_what_is_wrong_with_files_is_said_in_one_line(project, tmp_path):
    mask_folder(tmp_path)
    flags = ("--dataset", "mask-folder", "--data-root", str(tmp_path), "--note", "wrong", *SHORT)
    (tmp_path / "masks" / "03.png").unlink()
    assert "there is no mask 03 in" in one_line(project.run(*flags), 2)
    (tmp_path / "images" / "03.jpg").unlink()
    for pixels, said in (
        (np.full((32, 32), 2), "the mask has a number that is not the number of a class"),
        (np.zeros((32, 31)), "they do not have the same size"),
        (np.zeros((32, 32, 3)), "the mask has colours (RGB), not a class in each pixel"),
    ):
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "masks" / "05.png")
        assert f"05.png cannot be read: {said}" in one_line(project.run(*flags), 1)


def test_scenes_have_one_size(project):
    done = project.run("--image-size", "32")
    assert one_line(done, 2).startswith("run.py: --image-size 32: the scenes are 24")
