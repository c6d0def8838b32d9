"""Folders of files as tables, and checks of what a source makes of them: rows, notes, or one line that refuses all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coco_sets import noise
from PIL import Image

from mmload.errors import MmloadError, SampleError
from mmload.sources import find_splits
from mmload.sources.decode import Decoder

Row = Mapping[str, Any] | str
"""Values of some fields, and the ``id``, of a sample; or a pattern of its error."""


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(noise(height, width, seed))


def plant(root: Path, tree: Mapping[str, Any]) -> Path:
    """Writes files by name: text, bytes, pictures as PNG, tensors, and all else as JSON; None is a folder."""
    for name, content in tree.items():
        path = root / name
        (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
        if isinstance(content, Image.Image):
            content.save(path, "PNG")
        elif isinstance(content, torch.Tensor):
            torch.save(content, path)
        elif content is not None:
            text = content if isinstance(content, str | bytes) else json.dumps(content)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def check(
    kind: str,
    root: Path,
    rows: Mapping[str, Sequence[Row]] | str,
    *,
    tree: Mapping[str, Any] | None = None,
    below: str = "",
    notes: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Writes a tree, and checks the rows of each split; a text in place of them is a pattern of the refusal.

    Args:
        kind: kind of the source.
        root: folder of the tree.
        rows: split -> its rows.
        tree: files, as in :func:`plant`.
        below: root of the source in the folder.
        notes: parts of the first split's notes.
        classes: its classes.
        options: options of the source.
    """
    plant(root, tree or {})
    if isinstance(rows, str):
        with pytest.raises(MmloadError, match=rows) as caught:
            find_splits(kind, root / below, Decoder(), options or {})
        assert "\n" not in str(caught.value)
        return
    splits = find_splits(kind, root / below, Decoder(), options or {})
    assert {name: len(split) for name, split in splits.items()} == {name: len(own) for name, own in rows.items()}
    for name, own in rows.items():
        for index, row in enumerate(own):
            check_row(splits[name], index, row)
    first: Any = next(iter(splits.values()))
    assert classes is None or first.classes == tuple(classes)
    found = first.notes() if notes is not None else ()
    assert [part in note for note, part in zip(found, notes or (), strict=True)] == [True] * len(found), found


def check_row(split: Any, index: int, row: Row) -> None:
    """Checks fields of a sample, to the precision of float32, or its error, which names the sample in one line."""
    if isinstance(row, str):
        with pytest.raises(SampleError, match=row) as caught:
            split.read(index)
        assert split.id(index) in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    sample = split.read(index)
    for name, value in row.items():
        if name == "id":
            assert sample.id == split.id(index) == value
        else:
            found = np.asarray(sample.fields[name])
            assert found.shape == np.shape(value) or found.size == np.size(value) == 0, name
            np.testing.assert_allclose(found, np.reshape(value, found.shape), rtol=1e-6, err_msg=name)
