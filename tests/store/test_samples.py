"""Where rows came from and the way back, against samples.jsonl read plainly."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from building import changed_manifest
from written_datasets import of_tensors

import mmload
from mmload.errors import DamagedError, StoreError, UsageError
from mmload.store import row_sources as samples
from mmload.store.checksum import crc32
from mmload.store.dataset import Dataset, Split


def split_of(path: Path, ids: Sequence[str], separators: tuple[str, str] = (", ", ": ")) -> Split:
    """A split whose rows came from these; each third has a size."""
    of_tensors(path, {"train": {"targets": torch.arange(len(ids))}})
    lines = "".join(
        json.dumps({"id": name, "size": None if i % 3 else [i, 7]}, separators=separators) + "\n"
        for i, name in enumerate(ids)
    ).encode()
    (path / "train" / "samples.jsonl").write_bytes(lines)
    file = {"bytes": len(lines), "crc32": f"{crc32(lines):08x}"}
    changed_manifest(path, lambda body: body["splits"]["train"].update(samples=file))
    return mmload.open(path)["train"]


def test_every_row_knows_its_sample(dataset: Dataset) -> None:
    split = dataset["train"]
    lines = [json.loads(line) for line in (dataset.path / "train" / "samples.jsonl").read_text().splitlines()]
    ids = [line["id"] for line in lines]
    assert split.source(slice(None)) == [(line["id"], tuple(line["size"])) for line in lines]
    assert [split.row_of(name) for name in ids] == list(range(18))
    assert split.source(-1) == split.source(17)
    assert [each.id for each in split.source([3, -1])] == [ids[3], ids[17]]
    assert [each.id for each in split.source(torch.arange(18) < 2)] == ids[:2]
    assert split.row_of([ids[4], ids[0]]).tolist() == [4, 0]
    assert pickle.loads(pickle.dumps(split)).row_of(ids[5]) == 5


@pytest.mark.parametrize("chunk", [1, 64, 2**20])
def test_odd_names_in_chunks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(samples, "_CHUNK_BYTES", chunk)
    ids = ["a", "", 'q"uote', "line\nend", "é/日本", "\udc80", "tab\t", "a" * 500, *map(str, range(50))]
    for number, separators in enumerate(((",", ":"), (", ", ": "))):
        split = split_of(tmp_path / str(number), ids, separators)
        assert split.row_of(ids).tolist() == list(range(len(ids)))
    assert [each.id for each in split.source(slice(None))] == ids
    assert (split.source(3).size, split.source(4).size) == ((3, 7), None)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda split: split.row_of("c"), UsageError, "no row of split 'train' of .* was made from 'c'"),
        (lambda split: split.row_of(["b", "a"]), UsageError, "'a' is in 2 rows of .*: 0, 2; give a row number"),
        (lambda split: split.source(3), IndexError, "row 3 does not exist: split 'train' has 3 rows"),
        (lambda split: split.source(True), TypeError, "a row number of split 'train' is True"),
    ],
)
def test_what_is_not_there_is_an_error(
    tmp_path: Path, ask: Callable[[Split], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ask(split_of(tmp_path / "twice", ["a", "b", "a"]))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.replace(b"ant", b"amt", 1),
        lambda content: content[:-9],
        lambda content: content + b"{}",
        lambda content: b"[]\n[]\n",
        lambda content: None,
    ],
    ids=["flipped", "cut", "longer", "no samples", "gone"],
)
def test_a_damaged_list_is_an_error(copy: Path, damage: Callable[[bytes], bytes | None]) -> None:
    split, path = mmload.open(copy)["train"], copy / "train" / "samples.jsonl"
    content = damage(path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DamagedError if content else StoreError, match=r"samples\.jsonl"):
        split.source(0)


def test_an_empty_split_has_no_samples(tmp_path: Path) -> None:
    split = split_of(tmp_path / "empty", [])
    assert split.source([]) == []
    with pytest.raises(UsageError, match="no row"):
        split.row_of("a")
