"""Parity of variable-size images: right stores pass and say what their JPEGs lose, wrong ones fail."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from building import resealed
from parity_stores import failed
from PIL import Image

from mmload import parity
from mmload.augment import CenterCrop, MixUp, RandomHorizontalFlip, RandomResizedCrop, Resize, TwoViews
from mmload.augment.collate import Collate
from mmload.builder import chunk_assembly
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout
from mmload.errors import UsageError
from mmload.loader import jpeg_strips

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


def built(source: Path, out: Path, size: int | None = SHORT, **options: object) -> Path:
    transforms = () if size is None else ({"step": "Shrink", "size": size},)
    layout = VariableLayout(**options)  # type: ignore[arg-type]  # its own fields
    build(
        BuildRecipe(kind="imagefolder", root=source, out=out, transforms=transforms, variable_layout=layout), threads=1
    )
    return out


def check(out: Path, source: Path, collate: Collate | TwoViews | None = COLLATE) -> parity.ParityReport:
    return parity.run(out, source, threads=2, collate=collate)


def found(report: parity.ParityReport) -> dict[str, parity.Verdict]:
    return {verdict.name: verdict for verdict in report.verdicts}


def test_rows_of_pixels_equal_the_resized_photograph_and_crops_are_torchvisions_of_it(
    wide: Path, tmp_path: Path
) -> None:
    report = check(built(wide, tmp_path / "out"), wide, collate=None)
    assert report.passed, parity.table(report)
    lines = found(report)
    assert (
        lines["pixels of jpeg, tensor"].numbers["greatest"] == lines["pixels of png, tensor"].numbers["greatest"] == 0
    )
    assert not [name for name in lines if "loss" in name]
    assert lines["proportions"].state == "pass"
    assert lines["proportions"].numbers == {"rows": 10, "wrong": 0}
    for name in ("resized crop", "evaluation"):
        assert lines[f"{name}, equal draws"].numbers["far"] == 0


def test_parity_of_jpeg_rows_is_exact_and_reports_their_loss(wide: Path, tmp_path: Path) -> None:
    report = check(built(wide, tmp_path / "out", encode="mixed", raw_share=0.5), wide)
    assert report.passed, parity.table(report)
    lines = found(report)
    assert lines["pixels of jpeg, as JPEGs"].numbers["greatest"] == 0
    assert lines["pixels of jpeg, tensor"].numbers["greatest"] == 0
    numbers = lines["loss of jpeg"].numbers
    assert 20 < float(numbers["psnr_least"]) < float(numbers["psnr_mean"]) < 60


def test_a_sources_own_jpegs_lose_nothing(wide: Path, tmp_path: Path) -> None:
    report = check(built(wide, tmp_path / "out", None, encode="source"), wide)
    assert report.passed, parity.table(report)
    assert found(report)["loss of jpeg"].text == "all 9 rows are the source's own JPEGs"
    assert "psnr_mean" in found(report)["loss of png"].numbers


def test_a_collate_that_makes_no_batch_of_them_is_refused(wide: Path, tmp_path: Path) -> None:
    out = built(wide, tmp_path / "out")
    for collate in (Collate(), TwoViews(COLLATE, Collate(RandomHorizontalFlip()))):
        with pytest.raises(UsageError, match="cannot be applied to split 'train': the images are variable-size"):
            check(out, wide, collate)


def test_parity_rows_that_torch_cannot_resize_are_noted_and_not_compared(tmp_path: Path) -> None:
    """A line of 200 pixels, resized to 1,000 lines, would be 200,000 pixels wide."""
    root = tmp_path / "photos/a"
    root.mkdir(parents=True)
    noise = np.random.default_rng(2).integers(0, 256, (20, 200, 3), dtype=np.uint8)
    for number, image in enumerate((noise[:1], noise[:, :30])):
        Image.fromarray(image).save(root / f"{number}.png")
    report = check(built(root.parent, tmp_path / "out", None), root.parent, Collate(Resize(1000), CenterCrop(16)))
    assert report.passed, parity.table(report)
    notes = [verdict.text for verdict in report.verdicts if verdict.state == "note"]
    left = "rows not compared: torch cannot resize an image to more than 178,956,970 pixels or a width of 1"
    assert any(note.endswith(left) for note in notes), notes


def test_jpegs_of_another_subsampling_fail(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_assembly, "_SUBSAMPLING_420", 0)
    wrong = failed(check(built(wide, tmp_path / "out", encode="jpeg"), wide))
    assert {name for name in wrong if "pixels" in name} == {"pixels of jpeg, as JPEGs", "pixels of png, as JPEGs"}


def test_rows_that_miss_the_ends_of_photographs_fail(wide: Path, tmp_path: Path) -> None:
    """Squares of the middle, as other builds store them, under a recipe that keeps the variable-size image."""
    out = tmp_path / "out"
    steps = ({"step": "Shrink", "size": SHORT}, {"step": "CenterCrop", "size": [16, 24]})
    build(
        BuildRecipe(kind="imagefolder", root=wide, out=out, transforms=steps, variable_layout=VariableLayout()),
        threads=1,
    )
    body = json.loads((out / "dataset.json").read_text())
    body["recipe"]["transforms"] = [steps[0]]
    (out / "dataset.json").write_text(resealed(body))
    wrong = failed(check(out, wide))
    assert wrong["proportions"].startswith("10 of 10 rows are cut or distorted; the first: row 0 has 16 x 24 pixels")
    assert "shapes" in wrong


def test_rows_that_a_recipe_cuts_are_not_held_to_the_photographs(wide: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    steps = ({"step": "Shrink", "size": SHORT}, {"step": "CenterCrop", "size": [16, 24]})
    build(
        BuildRecipe(kind="imagefolder", root=wide, out=out, transforms=steps, variable_layout=VariableLayout()),
        threads=1,
    )
    report = check(out, wide)
    assert report.passed, parity.table(report)
    assert "proportions" not in found(report)


def test_mixed_samples_are_compared_up_to_the_step_that_mixes(wide: Path, tmp_path: Path) -> None:
    report = check(built(wide, tmp_path / "out"), wide, Collate(RandomResizedCrop(16), MixUp(num_classes=2)))
    assert report.passed, parity.table(report)
    notes = [verdict.text for verdict in report.verdicts if verdict.state == "note"]
    assert any("compared up to MixUp" in note for note in notes)


def test_jpegs_that_are_decoded_smaller_are_measured(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = built(wide, tmp_path / "out", 64, encode="mixed", raw_share=0.5)
    report = check(out, wide)
    assert report.passed, parity.table(report)
    lines = found(report)
    for shrink in (2, 4):
        numbers = lines[f"JPEGs decoded to 1/{shrink}"].numbers
        assert 0 < float(numbers["mean"]) <= float(numbers["most"])
        assert 0 < float(numbers["rows"]) < 10
        assert lines[f"JPEGs decoded to 1/{shrink}"].state == ("pass" if float(numbers["mean"]) <= 2 else "note")
    assert lines["JPEGs decoded to 1/2"].numbers["mean"] < 3
    decode = jpeg_strips.decode_jpeg

    def upside_down(data: np.ndarray, color: str, buffer: np.ndarray, **smaller: int) -> np.ndarray:
        pixels = decode(data, color, buffer=buffer, **smaller)
        if smaller:
            pixels[:] = pixels[::-1].copy()
        return pixels

    monkeypatch.setattr(jpeg_strips, "decode_jpeg", upside_down)
    wrong = check(out, wide)
    assert wrong.passed
    told = found(wrong)["JPEGs decoded to 1/2"]
    assert told.state == "note"
    assert told.text.endswith('limit: mean 2: leave out decode="scaled" where it matters')
    assert not [name for name in found(check(built(wide, tmp_path / "raw"), wide)) if "decoded to" in name]
