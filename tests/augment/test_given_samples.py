"""A collate takes what people have: arrays, images, pairs and dicts, of equal and of other sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader

from mmload.augment import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop, Views
from mmload.augment.collate import Collate
from mmload.batch import Batch

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 20, 24, 3), np.uint8)  # [B, H, W, C]
IMAGES = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).contiguous()


def collate() -> Collate:
    return Collate([RandomResizedCrop(12), RandomHorizontalFlip()], Normalize.imagenet())


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(4)


def expected() -> torch.Tensor:
    return collate()(IMAGES, seeded())


FORMS: dict[str, Any] = {
    "a tensor": IMAGES,
    "an array of pixels": PIXELS,
    "an array of planes": IMAGES.numpy(),
    "tensors": list(IMAGES),
    "arrays of pixels": list(PIXELS),
    "pictures of PIL": [Image.fromarray(one) for one in PIXELS],
    "pairs": [(one, number) for number, one in enumerate(IMAGES)],
    "pairs of arrays": [(one, np.int64(number)) for number, one in enumerate(PIXELS)],
    "dicts": [{"image": one, "label": torch.tensor(number)} for number, one in enumerate(PIXELS)],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_images_gives_the_same_pixels(form: str) -> None:
    made = collate()(FORMS[form], seeded())
    images = made if isinstance(made, torch.Tensor) else made.images
    assert torch.equal(images, expected())
    assert isinstance(made, Batch) is isinstance(FORMS[form], list)
    if "pairs" in form or form == "dicts":
        assert made.targets.tolist() == [0, 1, 2, 3, 4]


def test_pairs_of_images_of_other_sizes_are_each_as_it_is_alone() -> None:
    pairs = [(np.ascontiguousarray(one[: 12 + 2 * number]), number) for number, one in enumerate(PIXELS)]
    made = Collate(CenterCrop(12))(pairs)
    for number, (pixels, _) in enumerate(pairs):
        alone = Collate(CenterCrop(12))(pixels[None])
        assert torch.equal(made.images[number], alone[0])
    assert made.targets.tolist() == [0, 1, 2, 3, 4]


def test_boxes_of_dicts_are_padded_and_follow_the_image() -> None:
    first = {"boxes": [[0.0, 0.0, 4.0, 5.0], [1.0, 2.0, 8.0, 9.0]], "labels": [3, 1]}
    second = {"boxes": np.zeros((0, 4), np.float32), "labels": []}
    for samples in (
        [(PIXELS[0], first), (PIXELS[1], second)],
        [{"image": PIXELS[0], **first}, {"image": PIXELS[1], **second}],
    ):
        made = Collate(RandomHorizontalFlip(1.0))(samples)
        assert made.counts.tolist() == [2, 0]
        assert made.labels.tolist() == [[3, 1], [-1, -1]]
        assert made.boxes[0].tolist() == [[20.0, 0.0, 24.0, 5.0], [16.0, 2.0, 23.0, 9.0]]


def test_gray_pictures_have_one_channel() -> None:
    made = Collate()([Image.fromarray(one[..., 0]) for one in PIXELS])
    assert made.images.shape == (5, 1, 20, 24)


def test_masks_of_images_of_other_sizes_follow() -> None:
    samples = [{"image": each, "masks": each[..., 0]} for each in (PIXELS[0], PIXELS[1][:12, :14])]
    made = Collate(CenterCrop(10), dtype=torch.uint8)(samples)
    assert torch.equal(made.masks, made.images[:, 0])
    for wrong in (samples[1]["masks"][1:], samples[1]["masks"].astype(np.int64)):
        with pytest.raises(ValueError, match="a mask is .*, expected torch.uint8 of the size of its image"):
            Collate(CenterCrop(10))([samples[0], samples[1] | {"masks": wrong}])


def test_views_take_pairs() -> None:
    first, second = Views(collate(), collate())(FORMS["pairs"])
    assert first.targets.tolist() == second.targets.tolist() == [0, 1, 2, 3, 4]


def test_an_image_folder_is_augmented_by_a_dataloader(tmp_path: Path) -> None:
    for number, pixels in enumerate(PIXELS):
        folder = tmp_path / ("cat" if number % 2 else "dog")
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels[: 12 + number]).save(folder / f"{number}.png")
    folder_of = ImageFolder(str(tmp_path), loader=lambda path: np.asarray(pil_loader(path)))
    for dataset in (folder_of, ImageFolder(str(tmp_path))):
        [batch] = DataLoader(dataset, batch_size=5, collate_fn=Collate([CenterCrop(12)]))  # type: ignore[var-annotated]
        images, targets = batch
        assert images.shape == (5, 3, 12, 12)
        assert targets.tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([(PIXELS[0], 1, 2)], "3 parts"),
        ([(PIXELS[0], 1), PIXELS[1]], "give all the same"),
        ([{"image": PIXELS[0], "weight": 1.0}], "'weight', which is no field"),
        ([(PIXELS[0], {"boxes": [[0, 0, 1, 1]], "labels": []})], "1 boxes and 0 labels"),
        ([(PIXELS[0], {"boxes": [[0, 0, 1, 1]]})], "a sample has no labels, but 'boxes', 'image': give 'image', and"),
        ([{"label": 1}], "a sample has no images, but 'label': give 'image'"),
        (["cat"], "an image is 'cat'"),
        ("cat", "got 'cat'"),
        ([], "an empty list, expected a Batch, a list of its rows"),
        ([(1, 2)], "an image is 1"),
        ([PIXELS[0][0, 0]], "shape"),
        ([Image.fromarray(PIXELS[0]).convert("P")], "mode P"),
    ],
)
def test_what_is_no_sample_is_refused(samples: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Collate()(samples)
