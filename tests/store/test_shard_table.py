"""Many shards: the manifest has columns of them, which are checked as a list is, and a dataset is used as any other."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from building import base64_of, resealed

from mmload.errors import DamagedError
from mmload.records import VARIABLE, FieldSpec
from mmload.store.manifest import Manifest, SplitRecord, loads
from mmload.store.shard_table import FileRecord, ShardRecord, ShardTable

COUNT = 1001


def many(count: int = COUNT, *, own: bool = False) -> Manifest:
    """A manifest of shards of 0, 1, 2, ... rows."""
    shape = (3, VARIABLE, VARIABLE) if own else (3, 4, 4)
    fields = {"images": FieldSpec(dtype="uint8", shape=shape, encoding="raw" if own else None)}
    rows = np.arange(count)
    sizes = (
        {"images.bytes": rows * 7 + 1, "images.offsets": (rows + 1) * 8, "images.sizes": rows * 8}
        if own
        else {"images": rows * 48}
    )
    sums = {name: np.random.default_rng(1).integers(0, 2**32, count, dtype=np.uint32) for name in sizes}
    split = SplitRecord(
        rows=int(rows.sum()),
        fields=fields,
        samples=FileRecord(bytes=1, crc32="00000000"),
        shard_samples=count,
        shards=ShardTable(rows, sizes, sums),
    )
    return Manifest(recipe={}, fingerprint="", splits={"train": split})


@pytest.mark.parametrize("own", [False, True])
def test_many_shards_are_columns_and_come_back(own: bool) -> None:
    written = many(own=own)
    text = written.dumps()
    body = json.loads(text)
    table = body["splits"]["train"]["shards"]
    assert np.frombuffer(base64.b64decode(table["rows"]), "<i8").tolist() == list(range(COUNT))
    assert [sorted(column) for column in table["files"].values()] == (
        [["bytes", "crc32"], ["crc32"], ["crc32"]] if own else [["crc32"]]
    )
    again = loads(text, "here")
    assert again == written
    assert again.dumps() == text
    assert again.contents == written.contents
    shard = again.splits["train"].shards[7]
    assert shard.rows == 7
    assert shard == list(written.splits["train"].shards)[7]


def test_records_of_other_files_are_no_table() -> None:
    file = FileRecord(bytes=1, crc32="0123abcd")
    records = [ShardRecord(rows=1, files={"images": file}), ShardRecord(rows=1, files={"masks": file})]
    assert list(ShardTable.from_records(records[:1])) == records[:1]
    with pytest.raises(ValueError, match="the same files"):
        ShardTable.from_records(records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.update(rows="no base64"), "Invalid base64.* - at `.*.rows`"),
        (lambda table: table.update(rows=base64_of([1] * COUNT, "<i4")), "rows is no column of 8 bytes per shard"),
        (lambda table: table.update(rows=base64_of([-1] * COUNT)), "rows has numbers below 0"),
        (lambda table: table.update(rows=base64_of([2**61] * COUNT)), "or too large"),
        (lambda table: table.update(rows=base64_of([2**57] + [0] * (COUNT - 1))), "or too large"),
        (lambda table: table.update(rows=base64_of([1] * COUNT)), "rows is 500500, expected 1001, the sum"),
        (lambda table: table.update(rows=base64_of([500500])), r"images.crc32 has 1,001 values for 1 shards"),
        (lambda table: table.update(rows=3), "Expected `bytes`, got `int` - at `.*.rows`"),
        (lambda table: table.update(files={}), "shards.files is of nothing, expected images"),
        (lambda table: table["files"]["images"].update(bytes=""), "images.bytes has 0 values for 1,001 shards"),
        (lambda table: table["files"]["images"].update(bytes=base64_of([5] * COUNT)), "images.bytes is not rows x row"),
        (lambda table: table["files"]["images"].update(crc32=base64_of([1] * 7, "<u4")), "7 values for 1,001 shards"),
        (
            lambda table: table["files"]["images"].update(crc32=7),
            r"Expected `bytes`, got `int` - at `.*.files\[...\].crc32`",
        ),
        (lambda table: table.clear(), "missing required field `rows`"),
    ],
)
def test_a_damaged_table_is_refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
    body = json.loads(many().dumps())
    change(body["splits"]["train"]["shards"])
    with pytest.raises(DamagedError, match=message):
        loads(resealed(body), "here")


def test_sizes_that_cannot_be_are_refused() -> None:
    body = json.loads(many(own=True).dumps())
    body["splits"]["train"]["shards"]["files"]["images.bytes"]["bytes"] = base64_of([-1] * COUNT)
    with pytest.raises(DamagedError, match="images.bytes.bytes has numbers below those of rows"):
        loads(resealed(body), "here")
    body["splits"]["train"]["shards"]["files"]["images.bytes"]["bytes"] = base64_of([2**61] * COUNT)
    with pytest.raises(
        DamagedError, match=r"shards.files.images.bytes.bytes are 2.31e\+21 together, expected less than"
    ):
        loads(resealed(body), "here")
