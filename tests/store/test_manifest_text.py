"""The text of a manifest: no bit of it changes unnoticed, and what is wrong with it is named."""

from __future__ import annotations

import json
import operator
import os
from functools import reduce
from pathlib import Path

import pytest
from building import changed_manifest, make_pictures, recipe
from conftest import contents

from mmload.builder.dataset_change import write_card
from mmload.builder.pipeline import build
from mmload.builder.verify import compare, repair, verify
from mmload.errors import DamagedError, MmloadError, StoreError
from mmload.records import FieldSpec
from mmload.store.manifest import FileRecord, Manifest, ShardRecord, SplitRecord, loads, read, sealed_text

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
            shards=(ShardRecord(rows=3, files={"images": FileRecord(bytes=36, crc32="deadbeef")}),),
        )
    },
)


GOLDEN = """\
{
 "format": "mmload dataset",
 "version": 2,
 "recipe": {
  "source": {
   "kind": "python"
  },
  "rate": 1.5e-05,
  "name": "\udce9t\u00e9 \\\\u00E9 \\n"
 },
 "fingerprint": "ab",
 "splits": {
  "train": {
   "rows": 3,
   "fields": {
    "images": {
     "dtype": "uint8",
     "shape": [
      3,
      2,
      2
     ],
     "encoding": null,
     "version": 0
    }
   },
   "classes": [
    "caf\u00e9",
    "\udcff"
   ],
   "class_counts": [
    1,
    2
   ],
   "mean": [
    0.30000000000000004,
    0.49,
    1e-07
   ],
   "std": [
    0.1,
    0.2,
    0.0
   ],
   "skipped_count": 0,
   "skipped": [],
   "skipped_file": null,
   "samples": {
    "bytes": 3,
    "crc32": "0123abcd"
   },
   "origins": null,
   "shard_samples": 8,
   "shards": [
    {
     "rows": 3,
     "files": {
      "images": {
       "bytes": 36,
       "crc32": "deadbeef"
      }
     }
    }
   ],
   "objects": null,
   "order": null
  }
 },
 "card": {},
 "versions": [],
 "crc32": "b0edf400"
}
"""


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
    unsealed = {key: value for key, value in body.items() if key != "crc32"}
    others = [json.dumps(body, sort_keys=True), json.dumps(body), json.dumps(unsealed)]
    for text in (*others, SMALL.dumps() + "\n", SMALL.dumps()[:-1]):
        with pytest.raises(DamagedError, match="does not end with the crc32"):
            loads(text, "x")


TRAIN = ("splits", "train")
KEYS: list[tuple[tuple[str | int, ...], str]] = [
    ((), "recipe"),
    ((), "fingerprint"),
    ((), "splits"),
    (TRAIN, "rows"),
    ((*TRAIN, "fields", "images"), "dtype"),
    ((*TRAIN, "samples"), "bytes"),
    ((*TRAIN, "shards", 0), "rows"),
    ((*TRAIN, "shards", 0, "files", "images"), "bytes"),
]


@pytest.mark.parametrize(("place", "key"), KEYS, ids=str)
def test_an_unknown_or_a_missing_key_is_refused(place: tuple[str | int, ...], key: str) -> None:
    body = json.loads(SMALL.dumps())
    inner = reduce(operator.getitem, place, body)
    inner["later"] = 1
    with pytest.raises(DamagedError, match="unknown field `later`"):
        loads(sealed_text(body), "x")
    del inner["later"], inner[key]
    with pytest.raises(DamagedError, match=f"missing required field `{key}`"):
        loads(sealed_text(body), "x")


def test_manifest_text_is_the_golden_one() -> None:
    """A change of this text is a new version of the format."""
    assert SMALL.dumps() == GOLDEN
    assert loads(GOLDEN, "x") == SMALL


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("rows", "3", "Expected `int`, got `str` - at `.*.rows`"),
        ("rows", -1, "Expected `int` >= 0 - at `.*.rows`"),
        ("rows", 4, "rows is 4, expected 3, the sum of its shards"),
        ("mean", [0.5, 2, 0.5], r"Expected `float` <= 1.0 - at `.*.mean\[1\]`"),
        ("mean", [0.5], r"mean is \(0.5,\), expected 3 numbers, one per channel"),
        ("classes", ["a", 5], r"Expected `str`, got `int` - at `.*.classes\[1\]`"),
        ("class_counts", [1], r"class_counts is \(1,\), expected one per class"),
        ("shard_samples", 0, "Expected `int` >= 1 - at `.*.shard_samples`"),
        ("samples", {"bytes": 1, "crc32": "xyz"}, "Expected `str` matching regex .* - at `.*.samples.crc32`"),
        ("skipped_count", 1, "skipped_count is 1, expected the number of skipped samples"),
        ("skipped_file", {"bytes": 1, "crc32": "00000000"}, "skipped_file is .*expected a file if samples were left"),
        ("fields", {}, "fields is {}, expected at least one"),
        (
            "fields",
            {"images": {"dtype": "uint8", "shape": [3.5], "encoding": None}},
            r"Expected `int`, got `float` - at `.*.fields\[...\].shape\[0\]`",
        ),
        (
            "fields",
            {"a/b": {"dtype": "uint8", "shape": [], "encoding": None}},
            "fields has 'a/b', expected a plain name",
        ),
    ],
)
def test_wrong_value_is_named_with_its_place(place: str, value: object, message: str) -> None:
    body = json.loads(SMALL.dumps())
    train = body["splits"]["train"]
    body["splits"] = {"first": train, "train": train | {place: value}}
    with pytest.raises(DamagedError, match=f"^x is damaged: .*{message}.*; rebuild the dataset$"):
        loads(sealed_text(body), "x")


def test_a_file_too_large_to_be_a_manifest_is_not_read(copy: Path) -> None:
    os.truncate(copy / "dataset.json", 2**31 + 1)
    with pytest.raises(StoreError, match="it has 2,147,483,649 bytes, at most 2,147,483,648 are read"):
        read(copy)


def test_dataset_with_other_shard_sizes_is_verified_repaired_and_recorded(tmp_path: Path) -> None:
    """What is rebuilt must be cut as the manifest says, not as a build would cut it now."""
    source, out = make_pictures(tmp_path / "photos"), tmp_path / "out"
    row = 3 * 32 * 32 + 8
    made = build(recipe(source, out, transforms=({"step": "Resize", "size": [32, 32]},), shard_bytes=7 * row))
    assert made.manifest.splits["train"].shard_samples == 7
    changed_manifest(out, lambda body: body["recipe"]["store"].update(shard_size=9 * row))
    assert verify(out) == []
    assert compare(out, source) == []
    write_card(out, "parity", {"verdicts": []}, read(out).contents)
    assert "parity" in read(out).card
    whole = contents(out)
    (out / "train/000001/images.memmap").unlink()
    assert [fault.shard for fault in repair(out, source)] == [1]
    assert contents(out) == whole
