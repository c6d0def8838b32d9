"""Datasets read from object storage through a cache: the same batches, within the limit, checked, by all processes."""

from __future__ import annotations

import gc
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cached_datasets import end_all, map_of, stored_bytes, used_bytes
from conftest import crop_collate
from loading_orders import order_options
from s3_server import Bucket
from waiting import until
from written_datasets import of_tensors

import mmload
from mmload.errors import DamagedError, RemoteError, StoreError, UsageError
from mmload.remote import cache_folder, chunk_map
from mmload.remote.copies import push
from mmload.runtime.files import lock, open_lock
from mmload.store.dataset import Dataset

pytestmark = pytest.mark.usefixtures("fresh_caches")

ROWS, ROW_BYTES = 96, 76800


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset whose rows have 76,800 bytes, so that two are a chunk."""
    images = torch.randint(0, 256, (ROWS, 3, 160, 160), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    path = tmp_path_factory.mktemp("large") / "rows"
    tensors = {"images": images, "targets": torch.arange(ROWS)}
    return mmload.open(of_tensors(path, {"train": tensors, "val": {n: t[:8] for n, t in tensors.items()}}))


@pytest.fixture
def url(bucket: Bucket, large: Dataset) -> str:
    push(large.path, bucket.url)
    bucket.faults()
    return bucket.url


def batches(dataset: Dataset | str, **options: object) -> list[torch.Tensor]:
    opened = mmload.open(dataset) if isinstance(dataset, str) else dataset
    with mmload.Loader(opened["train"], batch_size=8, threads=2, **options) as loader:  # type: ignore[arg-type]
        return [torch.cat([batch.ids.float(), batch.images.flatten().float()]) for batch in loader]


@pytest.mark.parametrize(
    ("order", "limit", "tier"),
    [
        *((order, limit, "disk") for order in ("sequential", "shuffled", "block") for limit in (None, 30 * ROW_BYTES)),
        ("sequential", 24 * ROW_BYTES, "memory"),
    ],
)
def test_cached_datasets_batches_are_those_of_the_local_dataset(
    large: Dataset, url: str, tmp_path: Path, order: str, limit: int | None, tier: str
) -> None:
    remote = mmload.open(url, cache=tmp_path / "cache", cache_limit=limit)
    for seed in range(2):
        options = {**order_options(order), "seed": seed, "collate": crop_collate()}
        expected, got = batches(large, tier="disk", **options), batches(remote, tier=tier, **options)
        assert len(got) == len(expected)
        assert all(map(torch.equal, got, expected))


def test_rows_targets_and_sources_also_of_a_pickled_split(large: Dataset, url: str, tmp_path: Path) -> None:
    remote, local = mmload.open(url, cache=tmp_path / "cache")["train"], large["train"]
    again = pickle.loads(pickle.dumps(remote))
    assert again.digest == remote.digest
    for split in (remote, again):
        assert torch.equal(split[5].images, local[5].images)
        assert (split.targets, split.source(7)) == (local.targets, local.source(7))
        assert torch.equal(split.rows([3, 3, 1]).images, local.rows([3, 3, 1]).images)


def test_a_dataset_that_nobody_refers_to_gives_its_cache_free(url: str, tmp_path: Path) -> None:
    remote = mmload.open(url, cache=tmp_path / "cache")
    batches(remote, shuffle=True, tier="disk")
    (mark,) = (tmp_path / "cache").glob("*/open")
    with open_lock(mark) as file:
        assert not lock(file)
        del remote
        gc.collect()
        assert lock(file)


def test_a_row_costs_its_chunk(url: str, bucket: Bucket, tmp_path: Path) -> None:
    remote = mmload.open(url, cache=tmp_path / "cache")
    before = bucket.counts["bytes"]
    remote["train"].reader.array("images", np.array([5, 30]))
    lists = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*images*.crc32"))
    assert bucket.counts["bytes"] - before - 4 * ROW_BYTES in (lists, 2 * lists)  # two threads may both ask for them


def test_cached_datasets_what_was_read_is_not_fetched_again(
    large: Dataset, url: str, bucket: Bucket, tmp_path: Path
) -> None:
    for _ in range(2):
        remote = mmload.open(url, cache=tmp_path / "cache")
        batches(remote, shuffle=True, tier="disk")
        count = map_of(remote).files.fetched_bytes
        end_all()
    assert count == 0
    remote = mmload.open(url, cache=tmp_path / "cache")
    bucket.faults(fail_every=1)  # nothing is needed of the store any more
    assert len(batches(remote, shuffle=True, tier="disk")) == 12


@pytest.mark.parametrize("order", ["shuffled", "block", "full"])
def test_cached_datasets_half_of_the_data_in_cache(
    url: str, tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first epoch fetches each chunk once, later ones half of them, and never is more kept than the limit."""
    monkeypatch.setattr(chunk_map, "CHUNKS_OF_WINDOW", 6)
    monkeypatch.setattr(chunk_map, "MOST_IDLE", 8)
    limit = ROWS // 2 * ROW_BYTES + 1000  # for the targets
    remote = mmload.open(url, cache=tmp_path / "cache", cache_limit=limit)
    fetched, most = [0], 0
    options: dict[str, Any] = {"order": "full"} if order == "full" else order_options(order)
    with mmload.Loader(remote["train"], batch_size=2, threads=1, prefetch=0, **options, tier="disk") as loader:
        for _ in range(4):
            for _ in loader:
                most = max(most, used_bytes(tmp_path / "cache"))
            fetched.append(map_of(remote).files.fetched_bytes)
    assert most <= limit
    shares = np.diff(fetched) / (ROWS * ROW_BYTES)
    if order == "full":  # a chunk that is not kept is fetched for each of its rows
        assert 1 <= shares[0] < 2
        return
    assert shares[0] == 1
    assert shares[1:].mean() <= 0.55, shares
    assert used_bytes(tmp_path / "cache") == stored_bytes(tmp_path / "cache")
    assert len(list((tmp_path / "cache").rglob("*.passing"))) <= 8


def test_cached_datasets_chunks_that_an_epoch_did_not_use_make_room(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a curriculum: the half that is read since three epochs is cached, and is not fetched again."""
    monkeypatch.setattr(chunk_map, "CHUNKS_OF_WINDOW", 3)
    monkeypatch.setattr(chunk_map, "MOST_IDLE", 5)
    monkeypatch.setattr(cache_folder, "_SURVEY_S", 0.0)
    monkeypatch.setattr(cache_folder, "_CLOCK_S", 0.01)
    limit = ROWS // 2 * (ROW_BYTES + 2048)  # half of a page of padding
    split = mmload.open(url, cache=tmp_path / "cache", cache_limit=limit)["train"]
    fetched = []
    for rows in (slice(0, ROWS // 2), slice(ROWS // 2, None)):
        with mmload.Loader(split.subset(rows), batch_size=4, threads=1, fields=["images"], shuffle=True) as loader:
            for _ in range(5):
                before = map_of({"train": split}).files.fetched_bytes  # type: ignore[arg-type]  # it is only asked for
                assert sum(len(batch) for batch in loader) == ROWS // 2
                after = map_of({"train": split}).files.fetched_bytes  # type: ignore[arg-type]  # it is only asked for
                fetched.append((after - before) / (ROWS // 2 * ROW_BYTES))
    assert fetched[:6] == [1, 0, 0, 0, 0, 1]
    assert fetched[9] < 0.5, fetched  # of chunks that were mapped
    assert used_bytes(tmp_path / "cache") == stored_bytes(tmp_path / "cache") <= limit


def test_chunks_of_a_subset_stay_while_epochs_of_two_alternate(
    bucket: Bucket, large: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder, "_SURVEY_S", 0.0)
    monkeypatch.setattr(cache_folder, "_CLOCK_S", 0.01)
    monkeypatch.setattr(chunk_map, "CHUNKS_OF_WINDOW", 3)
    monkeypatch.setattr(chunk_map, "MOST_IDLE", 5)
    shutil.copytree(large.path, tmp_path / "rows")
    halves = {"first": slice(0, ROWS // 2), "second": slice(ROWS // 2, None)}
    for name, rows in halves.items():
        mmload.save_subset(tmp_path / "rows", name, rows, split="train")
    push(tmp_path / "rows", bucket.url)
    bucket.faults()
    limit = ROWS * 3 // 4 * (ROW_BYTES + 2048)
    remote = mmload.open(bucket.url, cache=tmp_path / "cache", cache_limit=limit)
    for name in ("first", "second", "first", "second", "first"):
        with mmload.Loader(remote[name], batch_size=4, threads=1, fields=["images"]) as loader:
            assert sum(len(batch) for batch in loader) == ROWS // 2
    assert map_of({"train": remote["first"]}).files.fetched_bytes == ROWS // 2 * ROW_BYTES  # type: ignore[arg-type]


def test_cached_dataset_corrupt_chunk_is_named_and_not_cached(url: str, bucket: Bucket, tmp_path: Path) -> None:
    remote = mmload.open(url, cache=tmp_path / "cache")
    bucket.faults(corrupt="train/000000/images.memmap")
    with pytest.raises(DamagedError, match=rf"{url}/train/000000/images.memmap is damaged after byte 307,200"):
        remote["train"].rows([5])
    bucket.faults()
    assert remote["train"].rows([5]).images.shape == (1, 3, 160, 160)


def test_a_store_that_fails_is_an_error_of_the_batch(url: str, bucket: Bucket, tmp_path: Path) -> None:
    remote = mmload.open(url, cache=tmp_path / "cache", parallel=1)
    bucket.faults(fail_every=1)
    with pytest.raises(RemoteError, match=rf"cannot read {url}/train/000000/"):
        batches(remote, shuffle=True, tier="disk")
    until(lambda: not map_of(remote)._arriving)  # what was requested before still fails
    bucket.faults(fail_every=3)
    assert len(batches(remote, shuffle=True, tier="disk")) == 12


def test_cached_datasets_what_is_asked_wrongly(url: str, large: Dataset, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    opened = mmload.open(url, cache=cache, cache_limit="1GiB")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").touch()
    wrong: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (url, {}, UsageError, "give cache="),
        (large.path, {"cache": tmp_path}, UsageError, "needs no cache"),
        (url, {"cache": tmp_path / "mine"}, UsageError, "is not empty and not a cache"),
        (url, {"cache": cache, "cache_limit": "lots"}, UsageError, "write bytes, or a number with"),
        (f"{url}/nothing", {"cache": tmp_path / "other"}, StoreError, "there is no dataset at"),
    ]
    for place, options, error, message in wrong:
        with pytest.raises(error, match=message):
            mmload.open(place, **options)
    assert len(opened["train"]) == ROWS


def test_a_copy_without_checksums_of_chunks(url: str, bucket: Bucket, tmp_path: Path) -> None:
    (bucket.folder / "train" / "000000" / "images.memmap.crc32").unlink()
    with pytest.raises(StoreError, match="so a part of a file cannot be checked"):
        mmload.open(url, cache=tmp_path / "cache")["train"].rows([1])
