"""The opened dataset against the bytes in its files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import mmload
from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip
from mmload.errors import DamagedError, StoreError, UsageError, VersionError
from mmload.store.dataset import Dataset


def test_rows_are_the_stored_bytes(dataset: Dataset, images: torch.Tensor) -> None:
    split = dataset["train"]
    assert len(split) == 18
    for index in (0, 4, 5, 17, -1):
        row = split[index]
        assert torch.equal(row.images, images[index])
        assert row.targets == index % 18 // 6
        assert row.ids == index % 18
    assert torch.equal(split[3:12:2].images, images[3:12:2])
    assert torch.equal(split[[17, 0, 5]].images, images[[17, 0, 5]])
    assert torch.equal(split[torch.tensor([2, 2])].images, images[[2, 2]])


def test_masks_select_rows(dataset: Dataset, images: torch.Tensor) -> None:
    split = dataset["train"]
    mask = torch.arange(18) % 3 == 1
    for given in (mask, mask.numpy(), mask.tolist()):
        assert split[given].ids.tolist() == [1, 4, 7, 10, 13, 16]
        assert torch.equal(split[given].images, images[mask])
        assert split.rows(given).ids.tolist() == [1, 4, 7, 10, 13, 16]
        assert [int(row.ids) for row in split.subset(given)] == [1, 4, 7, 10, 13, 16]
        loader = mmload.Loader(split, order=given, batch_size=4)
        assert len(loader) == 2
        assert [batch.ids.tolist() for batch in loader] == [[1, 4, 7, 10], [13, 16]]
    assert split[np.array([1, -1])].ids.tolist() == [1, 17]
    assert split[np.int64(3)].ids == split[torch.tensor(3)].ids == 3
    for wrong in (mask[:-1], mask.numpy()[:-1], mask.tolist()[:-1]):
        with pytest.raises(IndexError, match="a mask has 17 values, but split 'train' has 18 rows"):
            split[wrong]
    for one in (True, 1.0, "1", mask[0]):
        with pytest.raises(TypeError, match="'train'"):
            split[one]  # type: ignore[index]


@pytest.mark.parametrize("index", [18, -19])
def test_an_index_out_of_range_is_an_index_error(dataset: Dataset, index: int) -> None:
    with pytest.raises(IndexError, match="has 18 rows"):
        dataset["train"][index]


def test_split_labels_attribute_names_targets(dataset: Dataset) -> None:
    with pytest.raises(AttributeError, match=r"has no labels; read that field as split\[:\]\.targets$"):
        _ = dataset["train"].labels  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no images; read that field as split\[:\]\.images$"):
        _ = dataset["train"].images  # type: ignore[attr-defined]
    assert not hasattr(dataset["train"], "nothing")


def test_an_unknown_split_is_named_with_the_known(dataset: Dataset) -> None:
    with pytest.raises(UsageError, match="no split 'test'; it has train"):
        dataset["test"]


def test_it_pickles_small_and_reads_the_same(dataset: Dataset, images: torch.Tensor) -> None:
    split = dataset["train"]
    split.rows(torch.arange(3))
    state = pickle.dumps(split)
    assert len(state) < 10_000
    assert torch.equal(pickle.loads(state)[7].images, images[7])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_ordinary_dataloader_gives_finished_batches(dataset: Dataset, images: torch.Tensor, workers: int) -> None:
    collate = mmload.Collate(RandomCrop(24), RandomHorizontalFlip(), Normalize.imagenet())
    loader = DataLoader(dataset["train"], batch_size=4, shuffle=True, collate_fn=collate, num_workers=workers)
    seen = []
    for batch in loader:
        assert batch.images.shape[1:] == (3, 24, 24)
        assert batch.images.dtype == torch.float32
        assert torch.equal(batch.targets, batch.ids // 6)
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(18))


def test_torch_utils_data_works_on_it(dataset: Dataset, images: torch.Tensor) -> None:
    split = dataset["train"]
    assert torch.equal(Subset(split, [5, 3]).__getitems__([1, 0]).images, images[[3, 5]])
    both = ConcatDataset([split, split])
    assert torch.equal(both[20].images, images[2])
    first, second = random_split(split, [10, 8], generator=torch.Generator().manual_seed(0))
    assert sorted([row.ids.item() for row in first] + [row.ids.item() for row in second]) == list(range(18))
    batches = list(DataLoader(both, batch_size=36, collate_fn=mmload.Collate(dtype=torch.uint8)))
    assert torch.equal(batches[0].images, images.repeat(2, 1, 1, 1))


def test_nothing_there_says_how_to_build(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such dataset: .*nowhere; build it with: mmload build"):
        mmload.open(tmp_path / "nowhere")


def test_an_unfinished_folder_is_no_dataset(copy: Path) -> None:
    (copy / "dataset.json").unlink()
    with pytest.raises(StoreError, match=r"not a finished dataset: it has no dataset\.json"):
        mmload.open(copy)


def test_another_version_is_refused_first(copy: Path) -> None:
    body = {"format": "mmload dataset", "version": 99, "splits": "of another shape"}
    (copy / "dataset.json").write_text(json.dumps(body))
    with pytest.raises(VersionError, match="format version 99, this mmload reads version 2; upgrade mmload"):
        mmload.open(copy)


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / "train" / "000002" / "targets.memmap").unlink()
    with pytest.raises(DamagedError, match=r"000002/targets\.memmap is missing"):
        mmload.open(copy)


def test_a_file_of_another_size_is_named(copy: Path) -> None:
    with open(copy / "train" / "000001" / "images.memmap", "ab") as file:
        file.write(b"x")
    with pytest.raises(DamagedError, match=r"000001/images\.memmap has 15,361 bytes, the manifest says 15,360"):
        mmload.open(copy)


def test_a_file_truncated_while_in_use_is_an_error_and_no_signal(copy: Path) -> None:
    split = mmload.open(copy)["train"]
    with open(copy / "train" / "000000" / "images.memmap", "r+b") as file:
        file.truncate(5000)
    with pytest.raises(
        DamagedError, match=r"000000/images\.memmap is damaged: it ends at byte 5000, the manifest says 15360"
    ):
        split[1]


def test_get_gives_a_split_or_the_default(dataset: Dataset) -> None:
    assert dataset.get("train") is dataset["train"]
    assert dataset.get("val") is None
    assert dataset.get("val", dataset["train"]) is dataset["train"]
