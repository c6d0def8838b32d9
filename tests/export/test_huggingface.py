"""``mmload export --to huggingface``: what Hugging Face's ``datasets`` reads, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coco_sets import coco_dataset
from conftest import complaint, mmload
from loading_stores import build_store

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.export import Choice, save_huggingface, to_huggingface
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Dataset, Split

datasets = pytest.importorskip("datasets", reason="datasets is not installed: .[huggingface]")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def check_images(column: Any, split: Split, field: str = "images") -> None:
    for image, row in zip(column, range(len(split)), strict=True):
        pixels = getattr(split[row], field).numpy()
        assert np.array_equal(np.asarray(image), pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels)


def test_a_folder_that_load_from_disk_reads(dataset: Dataset, tmp_path: Path) -> None:
    done = mmload("export", dataset.path, tmp_path / "out", "--to", "huggingface")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{tmp_path / 'out'}: 18 rows as huggingface"
    read = datasets.load_from_disk(str(tmp_path / "out"))
    train, split = read["train"], dataset["train"]
    assert list(train.features) == ["id", "row", "image", "label"]
    assert train.features["label"].names == list(split.classes)
    assert train["label"][:] == split.rows(slice(None)).targets.tolist()
    assert train["id"][:] == [one.id for one in split.source(range(18))]
    check_images(train["image"], split)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_boxes_masks_and_other_fields(tmp_path: Path) -> None:
    stored = open_dataset(build_store("detection", tmp_path / "built"))
    made = to_huggingface(stored, cache_dir=tmp_path / "cache", threads=2)
    name, split = next(iter(stored.items()))
    rows, read = split.rows(slice(None)), made[name]
    for row, count in enumerate(rows.counts.tolist()):
        assert read[row]["boxes"] == rows.boxes[row, :count].tolist()
        assert read[row]["labels"] == rows.labels[row, :count].tolist()
    assert read.features["label"].names == list(split.classes)
    check_images(read["mask"], split, "masks")
    bare = open_dataset(build_store("bare", tmp_path / "bare"))
    (one,) = to_huggingface(bare, Choice(limit=3), cache_dir=tmp_path / "cache").values()
    rows = next(iter(bare.values())).rows(range(3))
    assert one["weight"][:] == rows.extra["weight"].float().tolist()
    assert one["angle"][:] == rows.extra["angle"].tolist()
    assert one["features"][:] == rows.features.tolist()


def test_huggingface_gets_lists_without_padding(tmp_path: Path) -> None:
    stored = open_dataset(coco_dataset(tmp_path, "instances"))
    made = to_huggingface(stored, cache_dir=tmp_path / "cache")
    for name, split in stored.items():
        assert len(set(split.rows(slice(None)).counts.tolist())) > 1
        for row, read in enumerate(made[name]):
            for field in ("boxes", "labels", "area", "iscrowd", "rings", "polygons", "run_boxes", "runs"):
                count = int(split.reader.lists(field).counts(np.array([row]))[0])
                expected = split.reader.rows(field, np.array([row]))[0][:count]
                assert len(read[field]) == count
                assert np.array_equal(np.array(read[field]).reshape(expected.shape), expected), field


def test_mmload_builds_it_again(dataset: Dataset, tmp_path: Path) -> None:
    save_huggingface(dataset, tmp_path / "out", Choice(split="train"))
    options = {
        "dataset": "datasets:load_from_disk",
        "arguments": {"dataset_path": str(tmp_path / "out")},
        "fields": {"images": "image", "targets": "label"},
    }
    build(BuildRecipe(kind="python", root=tmp_path, out=tmp_path / "again", options=options), threads=1)
    again = open_dataset(tmp_path / "again")["train"]
    mine, theirs = dataset["train"].rows(slice(None)), again.rows(slice(None))
    assert torch.equal(mine.images, theirs.images)
    assert torch.equal(mine.targets, theirs.targets)
    assert again.classes == dataset["train"].classes


def test_the_cache_follows_the_rows(dataset: Dataset, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = to_huggingface(dataset, Choice(limit=3), cache_dir=cache)["train"]
    again = to_huggingface(dataset, Choice(limit=3), cache_dir=cache, threads=1)["train"]
    other = to_huggingface(dataset, Choice(limit=4), cache_dir=cache)["train"]
    assert first.cache_files == again.cache_files != other.cache_files
    assert (len(again), len(other)) == (3, 4)


@pytest.mark.parametrize("kind", ["huggingface", "fiftyone"])
def test_a_missing_extra_is_one_line(
    kind: str, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmload.export.png_export.find_spec", lambda name: None)
    said = complaint(mmload("export", dataset.path, tmp_path / "out", "--to", kind), 2)
    assert said.endswith(f"is not installed; in a clone of mmload run: pip install '.[{kind}]'")
    assert [*tmp_path.iterdir()] == []
