"""Many shards: the manifest lists them, and what cannot be is an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from building import resealed

from mmload.errors import DamagedError
from mmload.records import VARIABLE, FieldSpec
from mmload.store.manifest import FileRecord, Manifest, ShardRecord, SplitRecord, loads

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
    shards = tuple(
        ShardRecord(
            rows=number,
            files={name: FileRecord(bytes=int(each[number]), crc32=f"{number:08x}") for name, each in sizes.items()},
        )
        for number in range(count)
    )
    split = SplitRecord(
        rows=int(rows.sum()),
        fields=fields,
        samples=FileRecord(bytes=1, crc32="00000000"),
        shard_samples=count,
        shards=shards,
    )
    return Manifest(recipe={}, fingerprint="", splits={"train": split})


@pytest.mark.parametrize("own", [False, True])
def test_many_shards_are_listed_and_come_back(own: bool) -> None:
    written = many(own=own)
    text = written.dumps()
    listed = json.loads(text)["splits"]["train"]["shards"]
    assert [shard["rows"] for shard in listed] == list(range(COUNT))
    again = loads(text, "here")
    assert again == written
    assert (again.dumps(), again.contents) == (text, written.contents)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda shards: shards[3].update(rows="3"), r"Expected `int`, got `str` - at `.*shards\[3\].rows`"),
        (lambda shards: shards[3].update(rows=-1), "Expected `int` >= 0"),
        (lambda shards: shards[3].update(rows=2**61), "bytes of images are not rows x row size"),
        (lambda shards: shards[3].update(rows=4), "bytes of images are not rows x row size"),
        (lambda shards: shards.pop(), "rows is 500500, expected 499500, the sum"),
        (lambda shards: shards.clear(), "rows is 500500, expected 0, the sum"),
        (lambda shards: shards[3]["files"].clear(), "a shard has the files , expected images"),
        (lambda shards: [shard["files"].update(masks=shard["files"].pop("images")) for shard in shards], "expected im"),
        (lambda shards: shards[3]["files"]["images"].update(crc32=7), r"Expected `str`, got `int` - at .*.crc32`"),
        (lambda shards: [shard.update(folder=1) for shard in shards], "two shards have the same folder"),
        (lambda shards: shards[3].clear(), "missing required field `rows`"),
    ],
)
def test_damaged_shards_are_refused(change: Callable[[list[Any]], object], message: str) -> None:
    body = json.loads(many().dumps())
    change(body["splits"]["train"]["shards"])
    with pytest.raises(DamagedError, match=message):
        loads(resealed(body), "here")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "bytes of images.bytes are fewer than rows"),
        (2**61, r"bytes of images.bytes are 2.31e\+21 together, expected less than"),
    ],
)
def test_sizes_that_cannot_be_are_refused(size: int, message: str) -> None:
    body = json.loads(many(own=True).dumps())
    for shard in body["splits"]["train"]["shards"]:
        shard["files"]["images.bytes"]["bytes"] = size
    with pytest.raises(DamagedError, match=message):
        loads(resealed(body), "here")
