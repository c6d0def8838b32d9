"""Builds and commands under other defaults of torch than float32 and the CPU: the same bytes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coco_sets
import numpy as np
import pytest
import torch
from building import make_pictures
from cifar_files import write_cifar10
from conftest import contents, mmload
from devkits import voc_dataset
from yolo_sets import YoloSet

from mmload.store.dataset import Dataset


@pytest.fixture(params=["bfloat16", "meta"])
def default(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Sets a default dtype or device, until the test ends."""

    def set_default() -> None:
        if request.param == "meta":
            torch.set_default_device("meta")
        else:
            torch.set_default_dtype(getattr(torch, request.param))

    yield set_default
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


class Scores:
    """A map-style dataset of plain numbers."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels = np.full((16, 20, 3), index, np.uint8)
        return {"images": pixels, "targets": index, "score": 0.1 * index, "point": [0.1, 0.7 * index]}


def pictures(root: Path) -> list[object]:
    return ["imagefolder", make_pictures(root)]


def coco(root: Path) -> list[object]:
    coco_sets.example(root).write()
    return ["coco", root]


def keypoints(root: Path) -> list[object]:
    coco_sets.example(root, prefix="person_keypoints").write()
    return ["coco", root, "--task", "keypoints"]


def devkit(root: Path) -> Path:
    voc_dataset(root, "detection")
    return root / "kit"


def yolo(root: Path) -> list[object]:
    made = YoloSet(root)
    made.image("a", "0 0.5 0.5 0.5 0.5", "1 0.3 0.3 0.1 0.2")
    made.describe("path: .\ntrain: images/train\nval: images/train\nnames:\n  0: cat\n  1: dog\n")
    return ["yolo", root]


KINDS: dict[str, tuple[Callable[[Path], list[object]], list[object]]] = {
    "square": (pictures, ["--size", "16"]),
    "variable": (pictures, ["--layout", "variable", "--encode", "mixed"]),
    "coco letterbox": (coco, ["--size", "24"]),
    "coco variable": (coco, ["--layout", "variable", "--size", "20"]),
    "keypoints": (keypoints, ["--size", "24"]),
    "yolo": (yolo, ["--size", "24"]),
    "voc detection": (lambda root: ["voc", devkit(root)], ["--size", "24"]),
    "voc classes": (lambda root: ["voc", devkit(root), "--task", "classification"], ["--size", "24"]),
    "voc masks": (lambda root: ["voc", devkit(root), "--task", "segmentation"], ["--size", "24"]),
    "cifar": (lambda root: ["cifar10", write_cifar10(root)], []),
    "python": (lambda root: ["python", root, "--dataset", f"{__name__}:Scores"], []),
}


@pytest.mark.parametrize("kind", KINDS)
def test_build_under_other_defaults_of_torch_writes_the_same_bytes(
    kind: str, default: Callable[[], None], tmp_path: Path
) -> None:
    if kind == "python":
        (tmp_path / "source").mkdir()
    make, options = KINDS[kind]
    source = make(tmp_path / "source")
    expected = mmload("build", *source, tmp_path / "expected", *options)
    assert expected.returncode == 0, expected.stderr
    default()
    made = mmload("build", *source, tmp_path / "made", *options)
    assert made.returncode == 0, made.stderr
    assert contents(tmp_path / "made") == contents(tmp_path / "expected")


def changed(path: Path, folder: Path) -> list[str]:
    """Runs every command that reads or changes a dataset, and returns what they say."""
    ids = (path / "train" / "samples.jsonl").read_text().count("\n")
    scores = folder / "scores.npy"
    np.save(scores, np.linspace(0, 1, ids, dtype=np.float32))
    rows = folder / "rows.npy"
    np.save(rows, np.array([0, 2, 3]))
    commands: list[list[object]] = [
        ["verify", path],
        ["add-field", path, "score", scores],
        ["subset", path, "some", "--rows", rows],
        ["export", path, folder / "png"],
        ["preview", path, "--out", folder / "sheet.png"],
        ["report", path, "--out", folder / "report.html"],
        ["info", path],
    ]
    said = []
    for words in commands:
        done = mmload(*words)
        assert done.returncode == 0, (words, done.stderr)
        said.append(done.stdout.replace(str(folder), ""))
    return said


def test_commands_under_other_defaults_of_torch_do_the_same(
    dataset: Dataset, default: Callable[[], None], tmp_path: Path
) -> None:
    found = []
    for name in ("expected", "otherwise"):  # words that the page has nowhere else
        out = tmp_path / name
        shutil.copytree(dataset.path, out / "data")
        said = changed(out / "data", out)
        # Manifests and reports hold the time of each change, and reports the path.
        files = {name: body for name, body in contents(out).items() if not name.endswith(".json")}
        page = files["report.html"].decode().replace(name, "")
        files["report.html"] = re.sub(r"\d+-\d+-\d+T? ?[\d:]+Z?", "", page).encode()
        found.append((said, files))
        default()
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]


def test_update_and_parity_under_other_defaults_of_torch_do_the_same(
    default: Callable[[], None], tmp_path: Path
) -> None:
    source = make_pictures(tmp_path / "source")
    words = ["imagefolder", source, tmp_path / "made", "--size", "16"]
    assert mmload("build", *words).returncode == 0
    shutil.copytree(tmp_path / "made", tmp_path / "expected")
    added = next(source.rglob("*.*"))
    shutil.copy(added, added.with_name("zz" + added.name))
    assert mmload("update", tmp_path / "expected", source).returncode == 0
    expected = mmload("parity", tmp_path / "expected", "--source", source)
    assert expected.returncode == 0, expected.stderr
    default()
    updated = mmload("update", tmp_path / "made", source)
    assert updated.returncode == 0, updated.stderr
    assert mmload("verify", tmp_path / "made").returncode == 0
    found = mmload("parity", tmp_path / "made", "--source", source)
    assert (found.returncode, found.stdout) == (0, expected.stdout), found.stderr
