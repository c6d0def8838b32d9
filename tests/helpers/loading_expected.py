"""A batch as it has to be, and what of another differs from it; stored rows by numpy, and seeds in Python's numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmload.augment.collate import Collate
from mmload.augment.mix import MixStep
from mmload.augment.step import batch_of_epoch
from mmload.batch import fields_of, make_batch

Fields = dict[str, Tensor]


def differences(got: Fields, expected: Fields) -> list[str]:
    """What of a batch is not as expected, a line each."""
    lines = [f"fields {sorted(got)}, expected {sorted(expected)}"] if got.keys() != expected.keys() else []
    for name, want in expected.items():
        have = got.get(name, torch.empty(0))
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            lines.append(f"{name} is {have.dtype} {tuple(have.shape)}, expected {want.dtype} {tuple(want.shape)}")
        elif not torch.equal(have, want):
            apart = (have.double() - want.double()).abs()
            lines.append(
                f"{name} differs in {int((apart > 0).sum())} of {apart.numel()} values, by {float(apart.max())}"
            )
    return lines


def collated(collate: Collate, rows: Fields, seeds: Tensor, epoch: int) -> Fields:
    """The batch that a collate makes of stored rows in an epoch: of each row by itself, unless it mixes them.

    What a collate makes of a row alone is held against torchvision elsewhere.
    """
    given = {name: value for name, value in rows.items() if name not in ("ids", "seeds")}
    ids = rows.get("ids", torch.arange(len(seeds)))  # bare images have none
    mixes = any(isinstance(step, MixStep) for step in collate.steps)
    parts = [slice(None)] if mixes else [slice(k, k + 1) for k in range(len(seeds))]
    made: list[Fields] = []
    with batch_of_epoch(epoch):
        for part in parts:
            fields = {name: value[part] for name, value in given.items()}
            batch = make_batch(fields, len(seeds[part]), ids=ids[part], seeds=seeds[part])
            made.append(fields_of(collate(batch)))
    changed = made[0].keys() - {"ids", "seeds"}
    return dict(rows) | {name: torch.cat([fields[name] for fields in made]) for name in changed}


GOLDEN = 0x9E3779B97F4A7C15


def stored(folder: Path, split: str = "train") -> Fields:
    """Every field of all rows, from the files that the manifest names."""
    record = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))["splits"][split]
    return {name: _field(folder / split, name, spec, record["shards"]) for name, spec in record["fields"].items()}


def _field(folder: Path, name: str, spec: dict[str, Any], shards: list[Any]) -> Tensor:
    """A field's rows, one after another; lists are padded to the longest, of one element at least."""
    kind = "uint16" if spec["dtype"] == "bfloat16" else spec["dtype"]
    rows = [row for number in range(len(shards)) for row in _rows(folder / f"{number:06d}" / name, kind, spec)]
    shape = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
    if spec["encoding"] == "list":
        shape[0] = max(shape[0], 1)
    out = np.full((len(rows), *shape), -1 if name == "labels" else 0, kind)
    for row, values in enumerate(rows):
        out[(row, *(slice(size) for size in values.shape))] = values
    return torch.from_numpy(out).view(getattr(torch, spec["dtype"]))


def _rows(file: Path, kind: str, spec: dict[str, Any]) -> list[Any]:
    """The rows of a shard's field, [*shape] each, from its file or those of a list."""
    if spec["encoding"] != "list":
        return list(np.fromfile(f"{file}.memmap", kind).reshape(-1, *spec["shape"]))
    values, offsets = np.fromfile(f"{file}.bytes.memmap", np.uint8), np.fromfile(f"{file}.offsets.memmap", np.int64)
    return [
        values[begin:end].view(kind).reshape(-1, *spec["shape"][1:])
        for begin, end in zip(offsets[:-1], offsets[1:], strict=True)
    ]


def sample_seeds(seed: int, epoch: int, rows: Sequence[int], occurrences: Sequence[int] | None = None) -> Tensor:
    """The samples' seeds, hash(hash(seed), epoch, row, occurrence) in Python's own numbers, int64 [B]."""
    run = _mix(_mix(seed + GOLDEN) ^ GOLDEN * (epoch + 1))
    words = [_mix(_mix(row ^ run) + GOLDEN) for row in rows]
    if occurrences is not None:
        pairs = zip(words, occurrences, strict=True)
        words = [_mix(word + _mix(number)) if number else word for word, number in pairs]
    return torch.tensor([word - (word >> 63 << 64) for word in words], dtype=torch.int64)


def seeds_of_view(seeds: Tensor, view: int) -> Tensor:
    """The seeds of a view: the first has the samples' own, another hash(hash(seed), view); int64 [B]."""
    if view == 0:
        return seeds
    words = [_mix(_mix(seed) ^ GOLDEN * view) for seed in seeds.tolist()]
    return torch.tensor([word - (word >> 63 << 64) for word in words], dtype=torch.int64)


def _mix(word: int) -> int:
    word %= 1 << 64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
    word = (word ^ word >> 27) * 0x94D049BB133111EB % (1 << 64)
    return word ^ word >> 31
