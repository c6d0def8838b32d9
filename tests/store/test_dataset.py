"""The opened dataset against the bytes in its files."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import crop_collate
from loaded import rows_of
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from torchvision.datasets import ImageFolder
from written_datasets import of_tensors

import mmload
from mmload.errors import DamagedError, StoreError, UsageError, VersionError
from mmload.store.dataset import Dataset, Split

MASK = torch.arange(18) % 3 == 1


def test_rows_are_the_stored_bytes(rows: Split, images: torch.Tensor) -> None:
    assert len(rows) == 18
    for index in (0, 4, 5, 17, -1):
        row = rows[index]
        assert torch.equal(row.images, images[index])
        assert (row.targets, row.ids) == (index % 18 // 6, index % 18)
    assert rows[np.int64(3)].ids == rows[torch.tensor(3)].ids == 3


@pytest.mark.parametrize(
    "given",
    [slice(3, 12, 2), [17, 0, 5], torch.tensor([2, 2]), np.array([1, -1]), MASK, MASK.numpy(), MASK.tolist()],
    ids=repr,
)
def test_every_index_selects_the_rows_that_torchs_does(rows: Split, images: torch.Tensor, given: Any) -> None:
    ids = torch.arange(18)[given if isinstance(given, slice) else torch.as_tensor(given)].tolist()
    for found in (rows[given], rows.rows(given)):
        assert found.ids.tolist() == ids
        assert torch.equal(found.images, images[ids])
    if not isinstance(given, slice):
        assert [int(row.ids) for row in rows.subset(given)] == ids
        assert rows_of(mmload.Loader(rows, order=given, batch_size=4)) == ids


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (18, IndexError, "has 18 rows"),
        (-19, IndexError, "has 18 rows"),
        *(
            (mask, IndexError, "a mask has 17 values, but split 'train' has 18 rows")
            for mask in (MASK[:-1], MASK.numpy()[:-1], MASK.tolist()[:-1])
        ),
        *((one, TypeError, "'train'") for one in (True, 1.0, "1", MASK[0])),
    ],
)
def test_what_is_no_index_is_refused(rows: Split, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rows[given]


def test_a_name_that_a_dataset_or_split_does_not_have_is_an_error_that_says_what_there_is(dataset: Dataset) -> None:
    split: Any = dataset["train"]
    for name, field in (("labels", "targets"), ("images", "images")):
        with pytest.raises(AttributeError, match=rf"has no {name}; read that field as split\[:\]\.{field}$"):
            getattr(split, name)
    assert not hasattr(split, "nothing")
    with pytest.raises(UsageError, match="no split 'test'; it has train"):
        dataset["test"]
    assert dataset.get("train") is dataset.get("val", split) is split
    assert dataset.get("val") is None


def test_a_split_answers_as_an_image_folder(rows: Split, folder: Path, tmp_path: Path) -> None:
    theirs = ImageFolder(str(folder))
    assert list(rows.classes) == theirs.classes
    assert rows.class_to_idx == theirs.class_to_idx
    assert rows.targets == theirs.targets
    assert rows.targets is rows.targets  # a loop over it reads the files once
    assert "targets" not in vars(pickle.loads(pickle.dumps(rows)))
    images = {"images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)}
    assert not hasattr(mmload.open(of_tensors(tmp_path, {"train": images}))["train"], "targets")


def test_it_pickles_small_and_reads_the_same(rows: Split, images: torch.Tensor) -> None:
    rows.rows(torch.arange(3))
    state = pickle.dumps(rows)
    assert len(state) < 10_000
    assert torch.equal(pickle.loads(state)[7].images, images[7])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_ordinary_dataloader_gives_finished_batches(rows: Split, workers: int) -> None:
    batches = list(DataLoader(rows, batch_size=4, shuffle=True, collate_fn=crop_collate(), num_workers=workers))
    assert sorted(rows_of(batches)) == list(range(18))
    for batch in batches:
        assert (batch.images.shape[1:], batch.images.dtype) == ((3, 24, 24), torch.float32)
        assert torch.equal(batch.targets, batch.ids // 6)


def test_torch_utils_data_works_on_it(rows: Split, images: torch.Tensor) -> None:
    assert torch.equal(Subset(rows, [5, 3]).__getitems__([1, 0]).images, images[[3, 5]])
    both = ConcatDataset([rows, rows])
    assert torch.equal(both[20].images, images[2])
    parts = random_split(rows, [10, 8], generator=torch.Generator().manual_seed(0))
    assert sorted(int(row.ids) for part in parts for row in part) == list(range(18))
    (batch,) = DataLoader(both, batch_size=36, collate_fn=mmload.Collate(dtype=torch.uint8))
    assert torch.equal(batch.images, images.repeat(2, 1, 1, 1))


OTHER = json.dumps({"format": "mmload dataset", "version": 99, "splits": "of another shape"})


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            lambda copy: copy.rename(copy.parent / "away"),
            StoreError,
            "no such dataset: .*; build it with: mmload",
        ),
        (lambda copy: (copy / "dataset.json").unlink(), StoreError, r"not a finished dataset: it has no dataset\.json"),
        (
            lambda copy: (copy / "dataset.json").write_text(OTHER),
            VersionError,
            "format version 99, this mmload reads version 2; upgrade mmload",
        ),
        (
            lambda copy: (copy / "train" / "000002" / "targets.memmap").unlink(),
            DamagedError,
            r"000002/targets\.memmap is missing",
        ),
        (
            lambda copy: os.truncate(copy / "train" / "000001" / "images.memmap", 15_361),
            DamagedError,
            r"000001/images\.memmap has 15,361 bytes, the manifest says 15,360",
        ),
    ],
    ids=["nothing there", "unfinished", "another version", "a missing file", "another size"],
)
def test_what_cannot_be_opened_says_why(
    copy: Path, damage: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    damage(copy)
    with pytest.raises(error, match=message):
        mmload.open(copy)


def test_a_file_truncated_while_in_use_is_an_error_and_no_signal(copy: Path) -> None:
    split = mmload.open(copy)["train"]
    os.truncate(copy / "train" / "000000" / "images.memmap", 5000)
    message = r"000000/images\.memmap is damaged: it ends at byte 5000, the manifest says 15360"
    with pytest.raises(DamagedError, match=message):
        split[1]
