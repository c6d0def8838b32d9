"""Parity of variable-size images: right stores pass, wrong ones fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import changed_manifest
from parity_stores import check, failed, passes
from PIL import Image

from mmload import parity
from mmload.augment import MixUp, RandomHorizontalFlip, RandomResizedCrop, Views
from mmload.augment.collate import Collate
from mmload.builder import shard_job
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout

SHORT = 32
COLLATE = Collate(RandomResizedCrop(16), RandomHorizontalFlip())


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten photographs, most of them twice as wide as high, JPEG and PNG; one is smaller than rows are."""
    root, rng = tmp_path_factory.mktemp("wide") / "photos", np.random.default_rng(3)
    for number, size in enumerate([(100, 50)] * 8 + [(48, 96), (40, 20)]):
        folder = root / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        few = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize(size)
        grain = np.asarray(few).astype(np.int64) + rng.integers(-12, 13, (size[1], size[0], 3))
        picture = Image.fromarray(grain.clip(0, 255).astype(np.uint8))
        picture.save(folder / f"{number}.{('jpg', 'png')[number == 3]}", quality=92)
    return root


def built(source: Path, out: Path, size: int | None = SHORT, **options: Any) -> Path:
    steps = () if size is None else ({"step": "Shrink", "size": size},)
    layout = VariableLayout(**options)
    recipe = BuildRecipe(kind="imagefolder", root=source, out=out, transforms=steps, variable_layout=layout)
    return build(recipe, threads=1).out


def found(out: Path, source: Path, **options: Any) -> dict[str, parity.Verdict]:
    """The verdicts by name, which all hold."""
    return {verdict.name: verdict for verdict in passes(out, source, **{"collate": COLLATE, **options}).verdicts}


def test_rows_of_pixels_equal_the_resized_photograph_and_crops_are_torchvisions_of_it(
    wide: Path, tmp_path: Path
) -> None:
    lines = found(built(wide, tmp_path / "out"), wide, collate=None)
    assert lines["pixels of jpeg"].numbers["greatest"] == lines["pixels of png"].numbers["greatest"] == 0
    for name in ("resized crop", "evaluation"):
        assert lines[f"{name}, equal draws"].numbers["wrong"] == 0


@pytest.mark.parametrize(
    ("size", "options"), [(SHORT, {"encode": "mixed", "raw_share": 0.5}), (None, {"encode": "source"})]
)
def test_rows_that_are_jpegs_are_exact(
    wide: Path, tmp_path: Path, size: int | None, options: dict[str, object]
) -> None:
    lines = found(built(wide, tmp_path / "out", size, **options), wide)
    assert lines["pixels of jpeg, stored as JPEG"].numbers["greatest"] == 0


def test_a_collate_that_makes_no_batch_of_them_is_refused(wide: Path, tmp_path: Path) -> None:
    out = built(wide, tmp_path / "out")
    for collate in (Collate(), Views(COLLATE, Collate(RandomHorizontalFlip()))):
        with pytest.raises(ValueError, match="the images are variable-size"):
            check(out, wide, collate=collate)


def test_jpegs_of_another_subsampling_fail(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_job, "_SUBSAMPLING_420", 0)
    wrong = failed(check(built(wide, tmp_path / "out", encode="jpeg"), wide, collate=COLLATE))
    assert {name for name in wrong if "pixels" in name} == {
        f"pixels of {kind}, stored as JPEG" for kind in ("jpeg", "png")
    }


def test_rows_that_miss_the_ends_of_photographs_fail(wide: Path, tmp_path: Path) -> None:
    """Squares of the middle, as other builds store them, under a recipe that keeps the variable-size image."""
    steps, layout = ({"step": "Shrink", "size": SHORT}, {"step": "CenterCrop", "size": [16, 24]}), VariableLayout()
    recipe = BuildRecipe(kind="imagefolder", root=wide, out=tmp_path / "out", transforms=steps, variable_layout=layout)
    out = build(recipe, threads=1).out
    changed_manifest(out, lambda body: body["recipe"].update(transforms=[steps[0]]))
    assert (
        "has [3, 16, 24], the recipe gives [3, 32, 64]" in failed(check(out, wide, collate=COLLATE))["pixels of jpeg"]
    )


def test_mixed_samples_are_compared_up_to_the_step_that_mixes(wide: Path, tmp_path: Path) -> None:
    collate = Collate(RandomResizedCrop(16), MixUp(num_classes=2))
    verdicts = found(built(wide, tmp_path / "out"), wide, collate=collate).values()
    assert any("compared up to MixUp" in verdict.text for verdict in verdicts if verdict.state == "note")
