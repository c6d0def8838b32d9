"""Many shards: the manifest has columns of them, which are checked as a list is, and a dataset is used as any other."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from building import recipe, resealed
from conftest import make_folder, mmload

import mmload as package
from mmload.builder.pipeline import build
from mmload.errors import DamagedError
from mmload.records import OWN, FieldSpec
from mmload.store import manifest as manifests
from mmload.store.manifest import Manifest, SplitRecord, loads
from mmload.store.shard_table import MOST_LISTED, FileRecord, ShardRecord, ShardTable

COUNT = MOST_LISTED + 1


def many(count: int = COUNT, *, own: bool = False) -> Manifest:
    """A manifest of shards of 0, 1, 2, ... rows."""
    shape = (3, OWN, OWN) if own else (3, 4, 4)
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
        shards=ShardTable(rows, sizes, sums),
    )
    return Manifest(recipe={}, fingerprint="", splits={"train": split})


@pytest.mark.parametrize("own", [False, True])
def test_many_shards_are_columns_and_come_back(own: bool) -> None:
    written = many(own=own)
    text = written.dumps()
    body = json.loads(text)
    assert body["version"] == 4
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
    assert json.loads(many(MOST_LISTED, own=own).dumps())["version"] == (3 if own else 2)


def test_records_of_other_files_are_no_table() -> None:
    file = FileRecord(bytes=1, crc32="0123abcd")
    records = [ShardRecord(rows=1, files={"images": file}), ShardRecord(rows=1, files={"masks": file})]
    assert list(ShardTable.of(records[:1])) == records[:1]
    with pytest.raises(ValueError, match="the same files"):
        ShardTable.of(records)


def test_a_sum_of_sizes_that_would_wrap_is_refused_in_a_list_too() -> None:
    body = json.loads(many(5, own=True).dumps())
    for shard in body["splits"]["train"]["shards"]:
        shard["files"]["images.bytes"]["bytes"] = 2**62 - 1
    with pytest.raises(DamagedError, match=r"shards: images.bytes.bytes are 2.31e\+19 together, expected less than"):
        loads(resealed(body), "here")


def columns(values: list[int], dtype: str = "<i8") -> str:
    return base64.b64encode(np.array(values, dtype).tobytes()).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.update(rows="no base64"), "rows is no column of 8 bytes a shard in base64"),
        (lambda table: table.update(rows=columns([1] * COUNT)[:-4]), "rows is no column of 8 bytes"),
        (lambda table: table.update(rows=columns([-1] * COUNT)), "rows has numbers below 0"),
        (lambda table: table.update(rows=columns([2**61] * COUNT)), "or too large"),
        (lambda table: table.update(rows=columns([2**57] + [0] * (COUNT - 1))), "or too large"),
        (lambda table: table.update(rows=columns([1] * COUNT)), "rows is 500500, expected 1001, the sum"),
        (lambda table: table.update(rows=columns([500500])), r"images.crc32 has 1,001 values for 1 shards"),
        (lambda table: table.update(rows=3), "shards.rows is 3, expected text"),
        (lambda table: table.update(files={}), r"shards.files is \[\], expected an object of images"),
        (lambda table: table["files"]["images"].update(bytes=""), "expected an object of crc32"),
        (lambda table: table["files"]["images"].update(crc32=columns([1] * 7, "<u4")), "has 7 values for 1,001 shards"),
        (lambda table: table.clear(), "expected an object of files, rows"),
    ],
)
def test_a_damaged_table_is_refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
    body = json.loads(many().dumps())
    change(body["splits"]["train"]["shards"])
    with pytest.raises(DamagedError, match=message):
        loads(resealed(body), "here")


def test_sizes_below_nothing_and_tables_where_none_may_be_are_refused() -> None:
    body = json.loads(many(own=True).dumps())
    body["splits"]["train"]["shards"]["files"]["images.bytes"]["bytes"] = columns([-1] * COUNT)
    with pytest.raises(DamagedError, match="images.bytes.bytes has numbers below those of rows"):
        loads(resealed(body), "here")
    body["splits"]["train"]["shards"]["files"]["images.bytes"]["bytes"] = columns([2**61] * COUNT)
    with pytest.raises(DamagedError, match=r"shards: images.bytes.bytes are 2.31e\+21 together, expected less than"):
        loads(resealed(body), "here")
    with pytest.raises(DamagedError, match="shards is .*, expected a list"):
        loads(resealed(json.loads(many().dumps()) | {"version": 2}), "here")
    with pytest.raises(DamagedError, match="version is 4, expected 2 or 3, as no split has more than 1000 shards"):
        loads(resealed(json.loads(many(3).dumps()) | {"version": 4}), "here")


def test_a_dataset_of_many_shards_is_used_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_folder(tmp_path / "photos", per_class=4)
    plain = build(recipe(source, tmp_path / "plain", shard_bytes=2000)).out
    monkeypatch.setattr(manifests, "MOST_LISTED", 2)
    out = build(recipe(source, tmp_path / "out", shard_bytes=2000)).out
    assert json.loads((out / "dataset.json").read_text())["version"] == 4
    for command in (["verify", out, "--source", source, "--record"], ["repair", out, "--source", source]):
        done = mmload(*command)
        assert done.returncode == 0, done.stderr
    assert mmload("info", out).stdout.split("\n")[3:6] == mmload("info", plain).stdout.split("\n")[3:6]
    url = f"file://{tmp_path / 'bucket'}"
    (tmp_path / "bucket").mkdir()
    assert mmload("push", out, url).returncode == 0
    assert mmload("pull", url, tmp_path / "pulled").returncode == 0
    expected = package.open(plain)["train"]
    for opened in (package.open(out), package.open(tmp_path / "pulled"), package.open(url, cache=tmp_path / "cache")):
        split = opened["train"]
        assert len(split.record.shards) > 2
        assert torch.equal(split[range(len(split))].images, expected[range(len(expected))].images)
