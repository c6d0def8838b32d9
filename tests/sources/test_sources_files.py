"""Files of samples: each is opened once by a read, which counts the checksum that an update compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coco_sets import example, noise
from devkit import Devkit, thing
from PIL import Image
from yolo_sets import YoloSet

from mmload.sources import HasChecksums, SourceSplit, find_splits
from mmload.sources import files as source_files
from mmload.sources.decode import Decoder


def picture(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(20, 30, seed)).save(path)
    return path


def devkit(root: Path) -> Path:
    kit = Devkit(root)
    kit.add("a", thing("cat"), mask=np.ones((6, 8), np.uint8))
    for kind in ("Main", "Segmentation"):
        kit.list("train", "a", kind=kind)
    return root


def labeled(root: Path) -> Path:
    YoloSet(root).image("a", "0 0.5 0.5 0.5 0.5")
    return root


def listed(root: Path) -> Path:
    picture(root / "a.png")
    Image.fromarray(np.ones((20, 30), np.uint8)).save(root / "mask.png")
    torch.save(torch.arange(3.0), root / "b.pt")
    (root / "list.csv").write_text("path,label,mask\na.png,0,mask.png\nb.pt,1,\n")
    return root


def panoptic(root: Path) -> Path:
    made = example(root, prefix="panoptic", images=1)
    made.body["annotations"] = [
        {
            "image_id": 1,
            "file_name": "1.png",
            "segments_info": [{"id": 5, "category_id": 1, "bbox": [0, 0, 9, 9], "area": 81}],
        }
    ]
    height, width = (made.body["images"][0][side] for side in ("height", "width"))
    colors = np.zeros((height, width, 3), np.uint8)
    colors[:9, :9, 0] = 5
    made.file.with_suffix("").mkdir()
    Image.fromarray(colors).save(made.file.with_suffix("") / "1.png")
    return made.write()


SETS: dict[str, tuple[str, Callable[[Path], Path], dict[str, Any], int]] = {
    "imagefolder": ("imagefolder", lambda root: picture(root / "ant" / "a.png").parents[1], {}, 1),
    "voc": ("voc", devkit, {}, 2),
    "voc masks": ("voc", devkit, {"task": "segmentation"}, 2),
    "coco": ("coco", lambda root: example(root).write(), {}, 6),
    "coco panoptic": ("coco", panoptic, {"task": "panoptic"}, 2),
    "yolo": ("yolo", labeled, {}, 2),
    "list": ("list", listed, {"file": "list.csv"}, 3),
}
"""Name -> kind, function that writes it, options, and number of files of all samples."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    read, counts = source_files.SampleFiles.read, Counter[str]()

    def counted(files: Any, name: str, *more: Any) -> bytes:
        counts[name] += 1
        return read(files, name, *more)

    monkeypatch.setattr(source_files.SampleFiles, "read", counted)
    return counts


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
