"""No bit of a manifest changes unnoticed, and what version 1 wrote is still read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from building import make_pictures, recipe
from conftest import contents

import mmload
from mmload.builder.pipeline import build
from mmload.builder.repair import repair
from mmload.builder.verify import compare, verify
from mmload.errors import DamagedError, MmloadError, StoreError
from mmload.parity import Report, record
from mmload.records import FieldSpec
from mmload.store.manifest import Manifest, SplitRecord, loads, read
from mmload.store.manifest_text import KEYS, VERSION, text_of
from mmload.store.shard_table import FileRecord, ShardRecord, ShardTable

SMALL = Manifest(
    recipe={"source": {"kind": "python"}, "rate": 1.5e-05, "name": "\udce9t\u00e9 \\u00E9 \n"},
    fingerprint="ab",
    splits={
        "train": SplitRecord(
            rows=3,
            fields={"images": FieldSpec(dtype="uint8", shape=(3, 2, 2))},
            classes=("caf\u00e9", "\udcff"),
            class_counts=(1, 2),
            mean=(0.30000000000000004, 0.49, 1e-07),
            std=(0.1, 0.2, 0.0),
            samples=FileRecord(bytes=3, crc32="0123abcd"),
            shard_samples=8,
            shards=ShardTable.of([ShardRecord(rows=3, files={"images": FileRecord(bytes=36, crc32="deadbeef")})]),
        )
    },
)


def as_version_1(folder: Path) -> None:
    body = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    del body["crc32"]
    for split in body["splits"].values():
        del split["shard_samples"]
    body["version"] = 1
    (folder / "dataset.json").write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def test_every_bit_flip_is_an_error() -> None:
    whole = SMALL.dumps().encode("utf-8", "backslashreplace")
    assert loads(whole.decode(), "x") == SMALL
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((MmloadError, UnicodeDecodeError)):
            loads(flipped.decode("utf-8"), "x")


def test_another_layout_is_refused() -> None:
    """The checksum is of the bytes: what other programs write again has to be written by mmload."""
    body = json.loads(SMALL.dumps())
    for text in (json.dumps(body, sort_keys=True), json.dumps(body), SMALL.dumps() + "\n", SMALL.dumps()[:-1]):
        with pytest.raises(DamagedError, match="does not end as mmload writes it"):
            loads(text, "x")


def test_a_checksum_in_version_1_is_damage() -> None:
    with pytest.raises(DamagedError, match="format version 1 has no crc32"):
        loads(SMALL.dumps().replace('"version": 2', '"version": 1'), "x")


@pytest.mark.parametrize("place", ["", "fields/images", "samples", "shards/0", "shards/0/files/images", "skipped/0"])
def test_keys_within_a_split_are_all_there_and_no_others(place: str) -> None:
    body = json.loads(SMALL.dumps())
    split = body["splits"]["train"]
    split |= {"skipped": [{"id": "a", "reason": "b"}], "skipped_count": 1, "skipped_file": split["samples"]}
    loads(text_of(body), "x")
    inner = split
    for key in filter(None, place.split("/")):
        inner = inner[int(key)] if key.isdigit() else inner[key]
    inner["later"] = 1
    with pytest.raises(DamagedError, match="expected an object of"):
        loads(text_of(body), "x")
    del inner["later"], inner[sorted(inner)[0]]
    with pytest.raises(DamagedError):
        loads(text_of(body), "x")


def test_keys_of_version_2_are_all_there_and_no_others() -> None:
    body = json.loads(SMALL.dumps())
    assert tuple(body) == KEYS
    with pytest.raises(DamagedError, match="an unknown key 'later'"):
        loads(text_of({**body, "later": 1}), "x")
    for key in ("recipe", "fingerprint", "splits", "card"):
        with pytest.raises(DamagedError, match=f"no key '{key}'"):
            loads(text_of({k: v for k, v in body.items() if k != key}), "x")
    del body["crc32"]
    with pytest.raises(DamagedError, match="no key 'crc32'"):
        loads(json.dumps(body), "x")


def test_a_key_that_is_there_twice_is_refused() -> None:
    for version in (1, VERSION):
        with pytest.raises(DamagedError, match="key 'version' is there twice"):
            loads(f'{{"format": "mmload", "version": {version}, "version": {version}}}', "x")


def test_a_file_too_large_to_be_a_manifest_is_not_read(copy: Path) -> None:
    with open(copy / "dataset.json", "r+b") as file:
        file.truncate(2**31 + 1)
    with pytest.raises(StoreError, match="it has 2,147,483,649 bytes, at most 2,147,483,648 are read"):
        read(copy)


def test_a_dataset_of_version_1_is_read_verified_repaired_and_recorded(tmp_path: Path) -> None:
    """Its shards are not of whole pages: what is rebuilt must be cut as they are."""
    source, out = make_pictures(tmp_path / "photos"), tmp_path / "out"
    wide = recipe(source, out, transforms=({"step": "Resize", "size": [32, 32]},), shard_bytes=9 * (3 * 32 * 32 + 8))
    build(wide)
    body = json.loads((out / "dataset.json").read_text(encoding="utf-8"))["splits"]["train"]
    assert (body["shard_samples"], [shard["rows"] for shard in body["shards"]]) == (8, [8, 7])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmload.builder.planned_build.samples_per_shard", lambda samples, fields, shard_bytes: 9)
        build(wide, overwrite=True)
    as_version_1(out)
    whole = contents(out)
    assert len(mmload.open(out)["train"]) == 15
    assert verify(out) == []
    assert compare(out, source) == []
    for recorded in (False, True):
        if recorded:
            record(out, Report(settings={}, verdicts=(), contents=read(out).contents))
            text = (out / "dataset.json").read_text(encoding="utf-8")
            assert json.loads(text)["version"] == VERSION
            whole["dataset.json"] = text.encode()
        (out / "train/000001/images.memmap").unlink()
        assert [fault.shard for fault in repair(out, source)] == [1]
        assert contents(out) == whole


@pytest.mark.parametrize("place", ["", "splits", "fields"])
def test_a_key_that_cannot_be_kept_is_told(copy: Path, place: str) -> None:
    as_version_1(copy)
    body = json.loads((copy / "dataset.json").read_text(encoding="utf-8"))
    split = body["splits"]["train"]
    {"": body, "splits": split, "fields": split["fields"]["images"]}[place]["later"] = 1
    text = json.dumps(body)
    (copy / "dataset.json").write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match="the report was not kept .*'later'"):
        record(copy, Report(settings={}, verdicts=(), contents=read(copy).contents))
    assert (copy / "dataset.json").read_text(encoding="utf-8") == text
