"""The size of rows without --size: that of the images where they have one, else the default of the source's kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coco_sets import CocoSet, noise
from PIL import Image
from python_datasets import MADE

import mmload
from mmload.records import FieldSpec
from mmload.sources import make_source
from mmload.sources.decode import Decoder

Sizes = list[tuple[int, int]]


def folder(root: Path, sizes: Sizes) -> Path:
    (root / "ant").mkdir(parents=True)
    for number, size in enumerate(sizes):
        Image.fromarray(noise(*size, number)).save(root / "ant" / f"{number:03d}.png")
    return root


def image_list(root: Path, sizes: Sizes) -> Path:
    folder(root, sizes)
    lines = [f"ant/{number:03d}.png,ant" for number in range(len(sizes))]
    (root / "list.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    return root / "list.csv"


def python(root: Path, sizes: Sizes) -> Path:
    MADE["it"] = [(Image.fromarray(noise(*size, number)), 0) for number, size in enumerate(sizes)]
    return Path(__file__).parent


def coco(root: Path, sizes: Sizes) -> Path:
    made = CocoSet(root)
    for number, size in enumerate(sizes, 1):
        made.image(number, *size)
    return made.write()


KINDS: dict[str, tuple[Callable[[Path, Sizes], Path], dict[str, Any], int]] = {
    "imagefolder": (folder, {}, 256),
    "list": (image_list, {}, 256),
    "python": (python, {"dataset": "python_datasets:made", "arguments": {"name": "it"}}, 256),
    "coco": (coco, {}, 640),
}


def built(tmp_path: Path, kind: str, sizes: Sizes, **options: Any) -> Any:
    write, setting, _ = KINDS[kind]
    root = write(tmp_path / "root", sizes)
    mmload.build(root, tmp_path / "out", kind=kind, setting=setting, processes=1, **options)
    assert mmload.build(root, tmp_path / "out", kind=kind, setting=setting, processes=1, **options).built == 0
    return mmload.open(tmp_path / "out")["train"]


@pytest.mark.parametrize("size", [(24, 24), (20, 30), (30, 20)])
@pytest.mark.parametrize("kind", KINDS)
def test_build_without_a_size_stores_images_of_one_size_as_they_are(
    tmp_path: Path, kind: str, size: tuple[int, int]
) -> None:
    split = built(tmp_path, kind, [size] * 3)
    assert split.fields["images"].shape == (3, *size)
    for row in range(3):
        seed = row + (kind == "coco")
        assert np.array_equal(split[row].images.numpy(), noise(*size, seed).transpose(2, 0, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_build_without_a_size_resizes_images_of_several_sizes_to_the_default(tmp_path: Path, kind: str) -> None:
    assert built(tmp_path, kind, [(24, 24), (20, 30)]).fields["images"].shape == (3, *[KINDS[kind][2]] * 2)


@pytest.mark.parametrize(
    ("sizes", "options", "side"),
    [
        ([(24, 24), (50, 30), *[(24, 24)] * 58], {}, 24),  # not every image is tried
        ([(1025, 1024)], {}, 256),
        ([(24, 24)] * 2, {"size": 32}, 32),
    ],
    ids=["an image that was not tried", "large images", "a size that is given"],
)
def test_build_makes_squares_of(tmp_path: Path, sizes: Sizes, options: dict[str, int], side: int) -> None:
    split = built(tmp_path, "imagefolder", sizes, **options)
    assert split.fields["images"].shape == (3, side, side)
    assert len(split) == len(sizes)


def test_build_without_images_resizes_nothing(tmp_path: Path) -> None:
    torch.save(torch.arange(6.0), tmp_path / "a.pt")
    (tmp_path / "list.csv").write_text("path,label\na.pt,1.5\n")
    mmload.build(tmp_path / "list.csv", tmp_path / "out", kind="list", processes=1)
    assert mmload.open(tmp_path / "out")["train"].fields["features"] == FieldSpec(dtype="float32", shape=(6,))


@pytest.mark.parametrize("orient", [False, True])
def test_image_size_is_that_of_the_pixels(tmp_path: Path, orient: bool) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "ant").mkdir()
    Image.fromarray(noise(20, 30, 0)).save(tmp_path / "ant" / "a.jpg", exif=exif)
    split = make_source("imagefolder", tmp_path, Decoder(exif_orient=orient), {}).splits()["train"]
    assert split.image_size(0) == split.read(0).size == ((30, 20) if orient else (20, 30))
