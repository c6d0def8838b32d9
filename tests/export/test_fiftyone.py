"""``mmload export --to fiftyone``: what FiftyOne shows; needs FiftyOne and its database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import complaint, mmload
from loading_stores import build_store
from PIL import Image

from mmload.export import Choice, to_fiftyone
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore")  # FiftyOne and its client warn of themselves

NAMES = ("mmload-test-classes", "mmload-test-boxes")


@pytest.fixture(scope="module")
def fiftyone() -> Iterator[Any]:
    """FiftyOne with a database that answers."""
    fiftyone = pytest.importorskip("fiftyone", reason="FiftyOne is not installed: pip install .[fiftyone]")
    try:
        names = fiftyone.list_datasets()
    except Exception as error:  # its database may raise nearly anything
        pytest.skip(f"FiftyOne's database does not start ({error})")
    for name in set(NAMES) & set(names):
        fiftyone.delete_dataset(name)
    yield fiftyone
    for name in set(NAMES) & set(fiftyone.list_datasets()):
        fiftyone.delete_dataset(name)


def test_classes_and_files(fiftyone: Any, dataset: Dataset, tmp_path: Path) -> None:
    done = mmload("export", dataset.path, tmp_path / "out", "--to", "fiftyone", "--name", NAMES[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'out'}: 18 rows as fiftyone\nnext:\n  fiftyone app launch {NAMES[0]}\n"
    made, split = fiftyone.load_dataset(NAMES[0]), dataset["train"]
    assert made.persistent
    assert made.default_classes == list(split.classes)
    assert len(made) == 18
    for sample in made:
        row = split[sample["row"]]
        assert sample.tags == ["train"]
        assert sample["source"] == split.source(sample["row"]).id
        assert sample["label"].label == split.classes[int(row.targets)]
        with Image.open(sample.filepath) as image:
            assert np.array_equal(np.asarray(image).transpose(2, 0, 1), row.images)
    said = complaint(mmload("export", dataset.path, tmp_path / "two", "--to", "fiftyone", "--name", NAMES[0]), 2)
    assert "has a dataset 'mmload-test-classes' already" in said
    assert not (tmp_path / "two").exists()


def test_boxes_and_masks(fiftyone: Any, tmp_path: Path) -> None:
    stored = open_dataset(build_store("detection", tmp_path / "built"))
    made = to_fiftyone(stored, tmp_path / "out", Choice(limit=5), name=NAMES[1], threads=1)
    assert made.rows == 5
    split = next(iter(stored.values()))
    _, height, width = split.fields["images"].shape
    for sample in fiftyone.load_dataset(NAMES[1]):
        row = split[sample["row"]]
        count = int(row.counts)
        found = sample["boxes"].detections
        assert [int(one.label) for one in found] == row.labels[:count].tolist()
        for one, box in zip(found, row.boxes[:count].tolist(), strict=True):
            left, top, wide, high = one.bounding_box
            sides = [left * width, top * height, (left + wide) * width, (top + high) * height]
            assert np.allclose(sides, box)
        with Image.open(sample["mask"].mask_path) as mask:
            assert np.array_equal(np.asarray(mask), row.masks)


def test_a_failure_leaves_no_dataset(fiftyone: Any, dataset: Dataset, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_fiftyone(dataset, tmp_path / "out", name=NAMES[1] + "-failed", progress=stop)
    assert not fiftyone.dataset_exists(NAMES[1] + "-failed")
    assert [*tmp_path.iterdir()] == []
