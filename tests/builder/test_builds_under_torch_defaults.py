"""Builds and commands under other defaults of torch than float32 and the CPU: the same bytes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from building import make_pictures
from cifar_files import write_cifar10
from conftest import contents, mmload
from every_source import coco, devkit, only_boxes

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


def empty(root: Path) -> Path:
    root.mkdir()
    return root


KINDS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "square": (make_pictures, "imagefolder --size 16"),
    "variable": (make_pictures, "imagefolder --layout variable --encode mixed"),
    "coco letterbox": (coco("instances"), "coco --size 24"),
    "coco variable": (coco("instances"), "coco --layout variable --size 20"),
    "keypoints": (coco("person_keypoints"), "coco --task keypoints --size 24"),
    "yolo": (only_boxes, "yolo --size 24"),
    "voc detection": (devkit, "voc --size 24"),
    "voc classes": (devkit, "voc --task classification --size 24"),
    "voc masks": (devkit, "voc --task segmentation --size 24"),
    "cifar": (write_cifar10, "cifar10"),
    "python": (empty, f"python --dataset {__name__}:Scores"),
}


def said_by(*words: object) -> str:
    """What a command shows that ends well."""
    done = mmload(*words)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_build_under_other_defaults_of_torch_writes_the_same_bytes(
    kind: str, default: Callable[[], None], tmp_path: Path
) -> None:
    make, words = KINDS[kind]
    (name, *options), source = words.split(), make(tmp_path / "source")
    said_by("build", name, source, tmp_path / "expected", *options)
    default()
    said_by("build", name, source, tmp_path / "made", *options)
    assert contents(tmp_path / "made") == contents(tmp_path / "expected")


def changed(path: Path, folder: Path) -> list[str]:
    """Runs every command that reads or changes a dataset, and returns what they say."""
    rows = (path / "train" / "samples.jsonl").read_text().count("\n")
    np.save(folder / "scores.npy", np.linspace(0, 1, rows, dtype=np.float32))
    np.save(folder / "rows.npy", np.array([0, 2, 3]))
    return [
        said_by(*words).replace(str(folder), "")
        for words in (
            ["verify", path],
            ["add-field", path, "score", folder / "scores.npy"],
            ["subset", path, "some", "--rows", folder / "rows.npy"],
            ["export", path, folder / "png"],
            ["preview", path, "--out", folder / "sheet.png"],
            ["report", path, "--out", folder / "report.html"],
            ["info", path],
        )
    ]


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
    assert found[0] == found[1]


def test_update_and_parity_under_other_defaults_of_torch_do_the_same(
    default: Callable[[], None], tmp_path: Path
) -> None:
    source, made, other = make_pictures(tmp_path / "source"), tmp_path / "made", tmp_path / "expected"
    said_by("build", "imagefolder", source, made, "--size", "16")
    shutil.copytree(made, other)
    added = next(source.rglob("*.*"))
    shutil.copy(added, added.with_name("zz" + added.name))
    said_by("update", other, source)
    expected = said_by("parity", other, "--source", source)
    default()
    said_by("update", made, source)
    said_by("verify", made)
    assert said_by("parity", made, "--source", source) == expected
