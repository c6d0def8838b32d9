"""Variable-size images read from object storage through a cache: chunks of whole rows, and the same batches."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from s3_server import Bucket
from torch.utils.data import ConcatDataset
from variable_datasets import some_images, variable_dataset

import mmload
from mmload.augment import RandomHorizontalFlip, RandomResizedCrop
from mmload.errors import DamagedError, RemoteError
from mmload.loader.orders import by_aspect
from mmload.remote.copies import push
from mmload.store.dataset import Dataset
from mmload.store.row_reader import read_rows

pytestmark = pytest.mark.usefixtures("fresh_caches")

SIZES = [(150 + 31 * k % 90, 150 + 47 * k % 80) if k % 4 > 1 else (20 + k // 2, 60) for k in range(40)]
"""Every other two take 67 to 165 kB as pixels; those between are small."""


@pytest.fixture(scope="session", params=["raw", "mixed"])
def photographs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Forty photographs with masks, in four shards."""
    images = some_images(SIZES)
    path = tmp_path_factory.mktemp(f"photographs-{request.param}") / "data"
    masks = [image[0] for image in images]
    return mmload.open(variable_dataset(path, images, encoding=request.param, shard_rows=11, masks=masks))


@pytest.fixture
def url(bucket: Bucket, photographs: Dataset) -> str:
    push(photographs.path, bucket.url)
    bucket.faults()
    return bucket.url


def batches(rows: Any, **options: Any) -> list[torch.Tensor]:
    steps = [RandomResizedCrop(24), RandomHorizontalFlip()]
    with mmload.Loader(rows, **{"batch_size": 4, "threads": 2, "tier": "disk", "collate": steps, **options}) as loader:
        return [
            torch.cat([batch.ids.float(), batch.images.flatten(), batch.masks.flatten().float()]) for batch in loader
        ]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def test_rows_come_as_locally_whatever_reads_them(photographs: Dataset, url: str, tmp_path: Path) -> None:
    remote, local = mmload.open(url, cache=tmp_path / "cache", cache_limit=2_000_000)["train"], photographs["train"]
    assert torch.equal(remote[5].images, local[5].images)
    again = pickle.loads(pickle.dumps(remote))
    assert torch.equal(again[7].masks, local[7].masks)
    rows = np.array([38, 0, 1, 1, 12])
    ours, theirs = (read_rows(split.reader.field("images"), rows).bytes for split in (again, local))
    assert np.array_equal(ours, theirs)
    for options in ({"tier": "memory", "shuffle": True}, {"order": by_aspect()}):
        assert same(batches(remote, **options), batches(local, **options))
    expected = batches(ConcatDataset([local, local]), shuffle=True)
    assert same(batches(ConcatDataset([remote, local]), shuffle=True), expected)


def test_a_corrupt_object_is_one_error_that_names_its_url(
    photographs: Dataset, url: str, bucket: Bucket, tmp_path: Path
) -> None:
    split = mmload.open(url, cache=tmp_path / "cache")["train"]
    assert split[12].images.shape[1:] == SIZES[12]
    bucket.faults(corrupt="train/000000/images.bytes.memmap")
    message = rf"^{url}/train/000000/images.bytes.memmap is damaged after byte \d"
    with pytest.raises(DamagedError, match=message):
        _ = split[5]
    both = ConcatDataset([photographs["train"], split])
    for rows, first in ((split, 0), (both, len(split))):
        for tier in ("disk", "memory"):
            with pytest.raises(DamagedError, match=message):
                batches(rows, order=[first + 5, first + 12], tier=tier)
    bucket.faults()
    assert torch.equal(split[5].images, photographs["train"][5].images)


@pytest.mark.parametrize("part", ["offsets", "sizes"])
def test_damage_to_where_rows_are_is_one_error(url: str, bucket: Bucket, tmp_path: Path, part: str) -> None:
    file = bucket.folder / "train" / "000002" / f"images.{part}.memmap"
    content = file.read_bytes()
    file.write_bytes(content[:-3] + b"\1" + content[-2:])
    split = mmload.open(url, cache=tmp_path / "cache")["train"]
    for _ in range(2):
        with pytest.raises(DamagedError, match=rf"^{url}/train/000002/images.{part}.memmap is not the file that"):
            batches(split)
    file.unlink()
    with pytest.raises(RemoteError, match=rf"{url}/train/000002/images.{part}.memmap"):
        batches(split)
    file.write_bytes(content)
    assert len(batches(split)) == 10


def test_checksums_of_other_chunks_are_written_anew(
    photographs: Dataset, url: str, bucket: Bucket, tmp_path: Path
) -> None:
    lists = sorted(bucket.folder.glob("train/*/images.bytes.memmap.crc32"))
    for file in lists:
        file.write_bytes(file.read_bytes()[:4] + bytes(40))
    remote = mmload.open(url, cache=tmp_path / "cache")["train"]
    with pytest.raises(DamagedError, match=r"bytes.memmap.crc32 is not the file that the manifest names; push it"):
        _ = remote[0]
    assert push(photographs.path, url).files == len(lists)
    assert torch.equal(remote[0].images, photographs["train"][0].images)
