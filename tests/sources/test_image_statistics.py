"""Mean and deviation count the pixels of images, not the borders that a transform adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.builder.transforms import TransformChain
from mmload.records import Sample

LETTERBOX = {"step": "Letterbox", "size": 24}
PAD = {"step": "Pad", "padding": [1, 2, 3, 4], "fill": 9}


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """An ImageFolder of 9 noisy PNGs, wide and tall."""
    random = np.random.default_rng(3)
    for number in range(9):
        folder = tmp_path / "photos" / f"c{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        height, width = random.integers(8, 40, 2)
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


def plain(root: Path, steps: Any) -> tuple[list[float], list[float]]:
    """A loop over the images, each with a gray twin to tell what is image after the steps."""
    bare = TransformChain(
        [{**step, "fill": 0} if "fill" in step or step["step"] == "Letterbox" else step for step in steps]
    )
    kept = []
    real = TransformChain(steps)
    for path in sorted(root.rglob("*.png")):
        image = np.array(Image.open(path)).transpose(2, 0, 1)
        there = bare(Sample("", {"images": np.full_like(image, 200)})).fields["images"][0] > 0
        kept.append(real(Sample("", {"images": image})).fields["images"][:, there])
    pixels = np.concatenate(kept, 1) / 255
    return pixels.mean(1).tolist(), pixels.std(1).tolist()


@pytest.mark.parametrize(
    "steps",
    [
        [LETTERBOX],
        [{"step": "CenterCrop", "size": 30}],
        [{"step": "Resize", "size": [20, 20]}, PAD],
        [{"step": "Resize", "size": [20, 20]}, PAD, {"step": "CenterCrop", "size": 22}],
        [{"step": "Resize", "size": [20, 20]}, PAD, {"step": "Grayscale", "num_output_channels": 3}],
        [LETTERBOX, {"step": "CenterCrop", "size": 20}],
        [{"step": "Resize", "size": [12, 10]}],
    ],
)
def test_borders_do_not_count(shapes: Path, tmp_path: Path, steps: list[dict]) -> None:
    expected = plain(shapes, steps)
    for number, how in enumerate(({"threads": 1}, {"threads": 3})):
        out = tmp_path / f"out{number}"
        recipe = BuildRecipe(kind="imagefolder", root=shapes, out=out, transforms=tuple(steps), shard_bytes=4000)
        split = build(recipe, **how).manifest.splits["train"]
        assert split.mean == pytest.approx(expected[0], abs=1e-12)
        assert split.std == pytest.approx(expected[1], abs=1e-9)


def test_a_border_that_is_resized_counts_where_it_is_mixed_with_nothing() -> None:
    chain = TransformChain([{"step": "Pad", "padding": [4, 0, 4, 0]}, {"step": "Resize", "size": [8, 8]}])
    sample = chain(Sample("", {"images": np.zeros((3, 8, 8), np.uint8)}))
    assert sample.inside == (0, 2, 8, 4)


def test_a_window_beside_the_image_has_no_pixel_of_it() -> None:
    chain = TransformChain([{"step": "Pad", "padding": [40, 0, 0, 0]}, {"step": "CenterCrop", "size": 4}])
    sample = chain(Sample("", {"images": np.zeros((3, 4, 4), np.uint8)}))
    assert sample.inside is not None
    assert 0 in sample.inside[2:]
