"""Variable-size images of every kind of source, with boxes and masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from devkit import Devkit, thing
from PIL import Image
from torchvision.transforms.v2 import functional

import mmload
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout
from mmload.builder.verify import compare
from mmload.errors import SampleError
from mmload.store.dataset import Split


def built(kind: str, root: Path, out: Path, size: int, encode: str = "raw", **options: object) -> Split:
    recipe = BuildRecipe(
        kind=kind,
        root=root,
        out=out,
        options=options,
        transforms=({"step": "Shrink", "size": size},),
        variable_layout=VariableLayout(encode=encode),
    )
    build(recipe, threads=2)
    assert compare(out, root, trust=True) == []
    return mmload.open(out)["train"]


def replace_image(devkit: Devkit, name: str, height: int, width: int) -> None:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(devkit.home / "JPEGImages" / f"{name}.jpg", quality=95)


def test_boxes_follow_their_photograph(devkit: Devkit, tmp_path: Path) -> None:
    for name, height, width, box in (("a", 40, 80, (1, 11, 40, 30)), ("bb", 6, 8, (1, 2, 8, 6))):
        devkit.add(name, thing("cat", box))
        replace_image(devkit, name, height, width)
    devkit.list("train", "a", "bb")
    split = built("voc", devkit.root, tmp_path / "out", 20, encode="jpeg")
    assert [tuple(split[row].images.shape) for row in range(2)] == [(3, 20, 40), (3, 6, 8)]
    assert split[0].boxes[0].tolist() == [0, 5, 20, 15]
    assert split[1].boxes[0].tolist() == [0, 1, 8, 6]
    assert split[[0, 1]].counts.tolist() == [1, 1]


@pytest.mark.parametrize("encode", ["raw", "jpeg", "mixed", "source"])
def test_masks_have_the_size_of_their_photograph_and_lose_nothing(devkit: Devkit, tmp_path: Path, encode: str) -> None:
    masks = {}
    for name, height, width in (("a", 40, 80), ("bb", 6, 8), ("ccc", 31, 9)):
        masks[name] = np.random.default_rng(width).choice(np.array([0, 1, 2, 20, 255], np.uint8), (height, width))
        devkit.add(name, mask=masks[name])
        replace_image(devkit, name, height, width)
    devkit.list("train", *masks, kind="Segmentation")
    split = built("voc", devkit.root, tmp_path / "out", 20, encode, task="segmentation")
    assert str(split.fields["masks"]) == "uint8[*, *] raw"
    for row, (name, mask) in enumerate(masks.items()):
        one = split[row]
        assert one.masks.shape == one.images.shape[1:]
        expected = torch.from_numpy(mask)
        if name == "a":
            expected = functional.resize_mask(expected, [20, 40])
        assert torch.equal(one.masks, expected)


def test_a_mask_of_another_size_is_left_to_its_owner(devkit: Devkit, tmp_path: Path) -> None:
    devkit.add("a", mask=np.zeros((6, 8), np.uint8))
    replace_image(devkit, "a", 12, 16)
    devkit.list("train", "a", kind="Segmentation")
    with pytest.raises(SampleError, match="mask"):
        built("voc", devkit.root, tmp_path / "out", 4, task="segmentation")
