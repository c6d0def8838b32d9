"""Sources with random damage: samples, or errors that mmload names. A longer search is this one with more rounds."""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from devkit import Devkit, thing
from PIL import Image

from mmload.errors import RecipeError, SampleError, SourceError
from mmload.sources import find_splits
from mmload.sources.decode import Decoder

ROUNDS = 60
PIECES = [
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"-1", b"1e999", b"nan", b"9" * 20, b'"', b"\n", b"{", b"[" * 50, b"<"),
    *(b"&amp;", b"&#0;", b"\\ud800", b"../", b"/", b"\x1b[31m", b"true", b"null", b",,,", b"\r"),
    *(b"\xff\xff\xff\x7f", b"\0\0\0\0"),
]  # fmt: skip


def damaged(data: bytes, draw: random.Random) -> bytes:
    """The bytes with a few changes: flipped, put in, taken out, repeated, cut off."""
    body = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        kind, at = draw.randrange(5), draw.randrange(len(body) + 1)
        if kind == 0:
            body[at : at + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            body[at:at] = draw.choice(PIECES)
        elif kind == 2:
            del body[at : at + draw.choice((1, 4, 30, 300))]
        elif kind == 3:
            body[at:at] = body[: draw.choice((1, 8, 60))]
        elif draw.random() < 0.3:
            del body[at:]
    return bytes(body)


def image(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(out, kind, **options)
    return out.getvalue()


def tensor(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def images(root: Path) -> list[tuple[str, bytes]]:
    kinds = [
        "PNG RGB",
        "PNG P",
        "PNG RGBA",
        "TIFF RGB",
        "WEBP RGB",
        "BMP RGB",
        "BMP P",
        "JPEG RGB",
        "JPEG CMYK",
        "PPM L",
    ]
    (root / "c").mkdir()
    return [("c/x.png", image(*kind.split())) for kind in kinds]


def tensors(root: Path) -> list[tuple[str, bytes]]:
    (root / "list.csv").write_text("path,label\nx.pt,0\n")
    value = torch.arange(60, dtype=torch.uint8).reshape(3, 4, 5)
    return [("x.pt", tensor(value)), ("x.pt", tensor(value, _use_new_zipfile_serialization=False))]


def lists(root: Path) -> list[tuple[str, bytes]]:
    (root / "a.png").write_bytes(image("PNG"))
    row = {"path": "a.png", "label": "cat", "split": "train", "id": "1"}
    lines = json.dumps(row) + "\n" + json.dumps({**row, "id": "2", "label": "dog"}) + "\n"
    ids = {"partition": {"train": ["a"], "validation": ["b"]}, "labels": {"a": 0, "b": 1}}
    return [
        ("list.csv", b'path,label,split,id\na.png,cat,train,1\na.png,"dog, big",val,2\n'),
        ("list.csv", b"path,label\na.png,1.5\na.pt,2\n"),
        ("list.jsonl", lines.encode()),
        ("list.jsonl", b'{"path": "a.png", "label": [1.0, 0, 2]}\n'),
        ("list.json", json.dumps(ids).encode()),
    ]


def devkit(root: Path) -> list[tuple[str, bytes]]:
    kit = Devkit(root)
    kit.add("a", thing("cat"), thing("dog", (2, 2, 5, 5), 1), mask=np.zeros((6, 8), np.uint8))
    kit.list("train", "a")
    kit.list("train", "a", kind="Segmentation")
    names = ["Annotations/a.xml", "ImageSets/Main/train.txt", "SegmentationClass/a.png"]
    return [(str((kit.home / name).relative_to(root)), (kit.home / name).read_bytes()) for name in names]


def batches(root: Path) -> list[tuple[str, bytes]]:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rows = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [0]}
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        (folder / name).write_bytes(pickle.dumps(rows, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"a", b"b"]}, protocol=2))
    return [(f"{folder.name}/{name}", (folder / name).read_bytes()) for name in ("test_batch", "batches.meta")]


SEEDS: dict[str, tuple[Callable[[Path], list[tuple[str, bytes]]], list[dict[str, Any]]]] = {
    "imagefolder": (images, [{}]),
    "tensors": (tensors, [{"file": "list.csv"}]),
    "list": (lists, [{}]),
    "voc": (devkit, [{"classes": "auto"}, {"task": "classification"}, {"task": "segmentation"}]),
    "cifar10": (batches, [{}]),
}


@pytest.mark.parametrize("kind", SEEDS)
def test_damage_is_named(tmp_path: Path, kind: str) -> None:
    draw, (make, options) = random.Random(0), SEEDS[kind]
    root = tmp_path / "root"
    root.mkdir()
    good = make(root)
    for _ in range(ROUNDS):
        name, data = draw.choice(good)
        (root / name).write_bytes(damaged(data, draw))
        extra = {"file": name} if kind == "list" else draw.choice(options)
        try:
            splits = find_splits("list" if kind == "tensors" else kind, root, Decoder(), extra)
            for split in splits.values():
                read_all(split)
        except (SourceError, RecipeError) as error:
            assert "\n" not in str(error)  # noqa: PT017  # some damage is none
        (root / name).write_bytes(data)
    shutil.rmtree(root)


def read_all(split: Any) -> None:
    """Every sample, or its error, which has its name."""
    for index in range(len(split)):
        assert isinstance(split.revision(index), str)
        try:
            split.read(index)
        except SampleError as error:
            assert error.sample == split.id(index)  # noqa: PT017  # as above
