"""Where rows came from and the way back, against samples.jsonl read plainly."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import mmload
from mmload.errors import DamagedError, UsageError
from mmload.records import FieldSpec
from mmload.store import row_sources as samples
from mmload.store.dataset import Dataset, Split
from mmload.store.manifest import FileRecord, Manifest, ShardRecord, SplitRecord


def split_of(path: Path, ids: Sequence[str], separators: tuple[str, str] = (", ", ": ")) -> Split:
    """A split whose rows came from these."""
    folder = path / "train" / "000000"
    folder.mkdir(parents=True)
    fields = {"targets": FieldSpec(dtype="int64", shape=())}
    torch.arange(len(ids)).numpy().tofile(folder / "targets.memmap")
    lines = "".join(
        json.dumps({"id": name, "size": None if i % 3 else [i, 7]}, separators=separators) + "\n"
        for i, name in enumerate(ids)
    )
    (path / "train" / "samples.jsonl").write_bytes(lines.encode())
    record = FileRecord(bytes=len(lines), crc32=f"{zlib.crc32(lines.encode()):08x}")
    shard = ShardRecord(rows=len(ids), files={"targets": FileRecord(bytes=8 * len(ids), crc32="00000000")})
    split = SplitRecord(rows=len(ids), fields=fields, samples=record, shard_samples=9, shards=(shard,))
    (path / "dataset.json").write_text(Manifest(recipe={}, fingerprint="", splits={"train": split}).dumps())
    return mmload.open(path)["train"]


def test_every_row_knows_its_sample(dataset: Dataset) -> None:
    split = dataset["train"]
    lines = [json.loads(line) for line in (dataset.path / "train" / "samples.jsonl").read_text().splitlines()]
    for row, line in enumerate(lines):
        assert split.source(row) == (line["id"], tuple(line["size"]))
        assert split.row_of(line["id"]) == row
    assert split.source(-1) == split.source(17)
    assert [each.id for each in split.source([3, -1])] == [lines[3]["id"], lines[17]["id"]]
    assert [each.id for each in split.source(torch.arange(18) < 2)] == [line["id"] for line in lines[:2]]
    assert split.row_of([lines[4]["id"], lines[0]["id"]]).tolist() == [4, 0]
    again = pickle.loads(pickle.dumps(split))
    assert again.row_of(again.source(5).id) == 5


@pytest.mark.parametrize("chunk", [1, 64, 2**20])
def test_odd_names_in_chunks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(samples, "_CHUNK_BYTES", chunk)
    ids = ["a", "", 'q"uote', "line\nend", "é/日本", "\udc80", "tab\t", "a" * 500, *map(str, range(50))]
    assert split_of(tmp_path / "compact", ids, (",", ":")).row_of(ids).tolist() == list(range(len(ids)))
    split = split_of(tmp_path / "odd", ids)
    assert split.row_of(ids).tolist() == list(range(len(ids)))
    assert [each.id for each in split.source(slice(None))] == ids
    assert split.source(3).size == (3, 7)
    assert split.source(4).size is None


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    split = split_of(tmp_path / "twice", ["a", "b", "a"])
    with pytest.raises(UsageError, match="no row of split 'train' of .* was made from 'c'"):
        split.row_of("c")
    with pytest.raises(UsageError, match="'a' is in 2 rows of .*: 0, 2; give a row number"):
        split.row_of(["b", "a"])
    with pytest.raises(IndexError, match="row 3 does not exist: split 'train' has 3 rows"):
        split.source(3)
    with pytest.raises(TypeError, match="a row number of split 'train' is True"):
        split.source(True)


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "gone"])
def test_a_damaged_list_is_an_error(copy: Path, damage: str) -> None:
    split = mmload.open(copy)["train"]
    path = copy / "train" / "samples.jsonl"
    content = path.read_bytes()
    path.unlink()
    other = {"flipped": content.replace(b"ant", b"amt", 1), "cut": content[:-9], "longer": content + b"x"}
    if damage in other:
        path.write_bytes(other[damage])
    with pytest.raises(mmload.errors.StoreError, match=r"samples\.jsonl"):
        split.source(0)


def test_an_empty_split_has_no_samples(tmp_path: Path) -> None:
    split = split_of(tmp_path / "empty", [])
    assert split.source([]) == []
    with pytest.raises(UsageError, match="no row"):
        split.row_of("a")


def test_a_line_that_is_no_sample_is_an_error(tmp_path: Path) -> None:
    split = split_of(tmp_path / "odd", ["a", "b"])
    lines = b"[]\n[]\n"
    (tmp_path / "odd" / "train" / "samples.jsonl").write_bytes(lines)
    manifest = json.loads((tmp_path / "odd" / "dataset.json").read_text())
    assert manifest["splits"]["train"]["rows"] == len(split)
    with pytest.raises(DamagedError, match=r"samples\.jsonl is damaged"):
        split.source(0)
