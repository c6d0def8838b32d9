"""Files of samples: each is opened once by a read, which counts the checksum that an update compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_source import coco, devkit, folders, panoptic, polygons, save_picture

from mmload.sources import HasChecksums, SourceSplit, find_splits
from mmload.sources.decode import Decoder


def listed(root: Path) -> Path:
    """A sample that is an image with a mask, and one that is a tensor."""
    save_picture(root / "a.png", 20, 30)
    save_picture(root / "mask.png", 20, 30, channels=1)
    torch.save(torch.arange(3.0), root / "b.pt")
    (root / "list.csv").write_text("path,label,mask\na.png,0,mask.png\nb.pt,1,\n")
    return root


SETS: dict[str, tuple[str, Callable[[Path], Path], dict[str, Any], int]] = {
    "imagefolder": ("imagefolder", folders, {}, 16),
    "voc": ("voc", devkit, {}, 4),
    "voc masks": ("voc", devkit, {"task": "segmentation"}, 4),
    "coco": ("coco", coco("instances"), {}, 6),
    "coco panoptic": ("coco", panoptic, {"task": "panoptic"}, 2),
    "yolo": ("yolo", polygons, {}, 5),
    "list": ("list", listed, {"file": "list.csv"}, 3),
}
"""Name -> kind, function that writes it, options, and number of files of all samples."""


def samples(name: str, root: Path) -> SourceSplit:
    kind, write, options, _ = SETS[name]
    return find_splits(kind, write(root), Decoder(), options)["train"]


@pytest.mark.parametrize("name", SETS)
def test_read_opens_each_file_once_and_gives_the_checksum(name: str, tmp_path: Path, opened: Counter[str]) -> None:
    split = samples(name, tmp_path / "root")
    opened.clear()
    read = [split.read(index) for index in range(len(split))]
    assert len(opened) == SETS[name][3]
    assert set(opened.values()) == {1}
    assert isinstance(split, HasChecksums)
    assert [sample.checksum for sample in read] == [split.checksum(index) for index in range(len(split))]
    assert len({sample.checksum for sample in read} - {""}) == len(split)
