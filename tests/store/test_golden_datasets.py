"""Datasets of format version 2 that are kept in the repository: every release must read them as this one does.

``python tests/store/test_golden_datasets.py`` makes those that are missing. It never makes one again: a change that
needs that breaks the promise in docs/format.md.
"""

from __future__ import annotations

import json
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mmload
from mmload.builder.verify import verify
from mmload.records import FIELD_NAMES
from mmload.store.dataset import Split
from mmload.store.row_reader import read_rows

FOLDER = Path(__file__).parents[1] / "golden"
EXPECTED = FOLDER / "expected.json"
KINDS = ("squares", "variable", "lists", "versions")


def fields_of(split: Split) -> dict[str, list[object]]:
    """Returns, for each field, the checksum of each row's values, and for each row its sample and size."""
    found: dict[str, list[object]] = {"source": [list(split.source(row)) for row in range(len(split))]}
    for name, spec in split.fields.items():
        found[name] = [_checksum(_values(split, name, row, encoded=spec.variable_size)) for row in range(len(split))]
    return found


def _values(split: Split, name: str, row: int, *, encoded: bool) -> NDArray[Any]:
    """Returns the values of a row; of a variable-size one its bytes, as pixels depend on who decodes a JPEG."""
    if encoded:
        return read_rows(split.reader.field(name), np.array([row])).bytes
    batch = split[row]
    return np.asarray(getattr(batch, name) if name in FIELD_NAMES else batch.extra[name])


def _checksum(values: NDArray[np.generic]) -> list[object]:
    return [str(values.dtype), list(values.shape), zlib.crc32(np.ascontiguousarray(values).tobytes())]


def contents(folder: Path) -> dict[str, object]:
    """Returns what a reader of a dataset gets: of each version and split the rows, classes and statistics."""
    manifest = mmload.open(folder).manifest
    found: dict[str, object] = {}
    for version in [each.number for each in manifest.versions] or [1]:
        for name, split in mmload.open(folder, version=version).items():
            found[f"{version}/{name}"] = {
                "fields": fields_of(split),
                "classes": list(split.classes),
                "mean": list(split.mean),
                "std": list(split.std),
            }
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
def test_a_golden_dataset_is_read_as_ever(kind: str) -> None:
    assert verify(FOLDER / kind) == []
    assert contents(FOLDER / kind) == json.loads(EXPECTED.read_text(encoding="utf-8"))[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_golden_dataset_is_loaded(kind: str) -> None:
    for split in mmload.open(FOLDER / kind).values():
        collate = mmload.Collate(mmload.augment.RandomResizedCrop(8)) if kind in ("variable", "lists") else None
        loader = mmload.Loader(split, batch_size=2, shuffle=True, seed=0, collate=collate)
        assert sorted(int(row) for batch in loader for row in batch.ids) == list(range(len(split)))


def make(kind: str, folder: Path) -> None:
    """Builds a golden dataset of noise, of a few kilobytes."""
    from building import make_pictures, recipe  # the tests above need no build
    from coco_sets import coco_dataset
    from updating import add_and_update, picture

    from mmload.builder.pipeline import build
    from mmload.builder.recipe import VariableLayout

    work = folder.with_name(f"{folder.name}.source")
    if kind == "lists":
        shutil.move(coco_dataset(work, "keypoints", size=None), folder)
    else:
        variable = {"transforms": (), "variable_layout": VariableLayout(encode="mixed", raw_share=0.5)}
        made = recipe(make_pictures(work, classes=2, each=4), folder, **(variable if kind == "variable" else {}))
        build(made)
    if kind == "versions":
        picture(work, 2).unlink()
        add_and_update(made)
        mmload.save_subset(mmload.open(folder), "few", [3, 1], split="train")
        mmload.add_field(folder, "scores", np.arange(8, dtype=np.float32).reshape(8, 1), split="train")
    shutil.rmtree(work)


def main() -> None:
    """Makes the golden datasets that are missing."""
    sys.path.insert(0, str(FOLDER.parent / "helpers"))
    expected = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    FOLDER.mkdir(exist_ok=True)
    for kind in KINDS:
        if not (FOLDER / kind).exists():
            make(kind, FOLDER / kind)
            expected[kind] = contents(FOLDER / kind)
    EXPECTED.write_text(json.dumps(expected, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
