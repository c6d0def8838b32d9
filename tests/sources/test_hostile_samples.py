"""Bad samples are errors of their own, with their names, and never take more memory than they say."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from devkit import Devkit, thing
from PIL import Image

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.errors import SampleError, SourceError
from mmload.sources import files, find_splits
from mmload.sources.decode import Decoder
from mmload.sources.voc import parse_annotation


def listed(root: Path, **tensors: Any) -> Path:
    """A list of ``.pt`` files in a folder of its own; bytes are written as they are."""
    root = root / "listed"
    root.mkdir()
    for name, tensor in tensors.items():
        if isinstance(tensor, bytes):
            (root / f"{name}.pt").write_bytes(tensor)
        else:
            torch.save(tensor, root / f"{name}.pt")
    (root / "list.csv").write_text("path,label\n" + "".join(f"{name}.pt,0\n" for name in tensors))
    return root


def skipped(root: Path, out: Path, kind: str = "list", **options: Any) -> list[tuple[str, str]]:
    """What a build that skips leaves out."""
    if kind == "list":
        options = {"file": "list.csv", **options}
    recipe = BuildRecipe(
        kind=kind, root=root, out=out, options=options, transforms=({"step": "Resize", "size": [8, 8]},)
    )
    return list(build(recipe, threads=1, on_error="skip").manifest.splits["train"].skipped)


def saved(tensor: torch.Tensor, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(tensor, out, **options)
    return out.getvalue()


@pytest.mark.parametrize("encoding", ["bogus", "utf-7", "idna", "base64", "utf-32", "x" * 500])
def test_an_annotation_in_an_encoding_that_there_is_not(encoding: str) -> None:
    with pytest.raises(ValueError, match="XML|encoding|codec"):
        parse_annotation(f'<?xml version="1.0" encoding="{encoding}"?><annotation/>'.encode())


def test_it_is_skipped_by_its_name(devkit: Devkit, tmp_path: Path) -> None:
    for name in ("a", "b"):
        devkit.add(name, thing("cat"))
    devkit.annotate("b", '<?xml version="1.0" encoding="bogus"?><annotation/>')
    devkit.list("train", "a", "b")
    ((name, reason),) = skipped(devkit.root, tmp_path / "out", "voc")
    assert name.endswith("b.jpg")
    assert "unknown encoding" in reason


def test_tensors_without_numbers_are_skipped_by_name(tmp_path: Path) -> None:
    image = torch.zeros(3, 4, 5, dtype=torch.uint8)
    root = listed(
        tmp_path,
        good=image,
        flat=torch.zeros(3, 0, 5, dtype=torch.uint8),
        thin=torch.zeros(3, 4, 0, dtype=torch.uint8),
        none=torch.zeros(0, 4, 5, dtype=torch.uint8),
        meta=torch.zeros(3, 4, 5, dtype=torch.uint8, device="meta"),
        wide=torch.zeros(1, 1, 1, dtype=torch.uint8).expand(3, 40_000, 40_000),
    )
    left_out = dict(skipped(root, tmp_path / "out"))
    assert set(left_out) == {"flat.pt", "thin.pt", "none.pt", "meta.pt", "wide.pt"}
    assert "is empty, of shape [3, 0, 5]" in left_out["flat.pt"]
    assert "torch.uint8 meta" in left_out["meta.pt"]


def test_old_tensor_files_are_read(tmp_path: Path) -> None:
    old = saved(torch.arange(12.0), _use_new_zipfile_serialization=False)
    root = listed(tmp_path, old=old, cut=old[:-8])
    split = find_splits("list", root, Decoder(), {"file": "list.csv"})["train"]
    assert split.read(0).fields["features"].tolist() == list(range(12))
    with pytest.raises(SampleError, match=r"cut.pt"):
        split.read(1)


def test_a_file_of_more_bytes_than_any_image_is_refused(tmp_path: Path) -> None:
    root = listed(tmp_path, large=b"")
    with open(root / "large.pt", "wb") as file:
        file.truncate(files.MOST_BYTES + 1)
    split = find_splits("list", root, Decoder(), {"file": "list.csv"})["train"]
    with pytest.raises(SampleError, match=r"has 2,147,483,649 bytes, at most 2,147,483,648"):
        split.read(0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "list.json",
            '{"partition": {"train": ["a"], "val": ["b"], "train": ["c"]}, "labels": {"a": 0, "b": 0, "c": 0}}',
        ),
        ("list.json", '{"partition": {"train": ["a"]}, "labels": {"train": 0, "a": 0, "train": 1}}'),
        ("list.jsonl", '{"path": "a.pt", "train": 0, "train": 1}'),
    ],
)
def test_keys_that_are_there_twice_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match="key 'train' occurs twice"):
        find_splits("list", tmp_path, Decoder(), {"file": name})


@pytest.mark.parametrize("label", ["1e99", "-1e39", "3.4e38"])
def test_numbers_that_float32_does_not_hold_are_named(tmp_path: Path, label: str) -> None:
    (tmp_path / "list.csv").write_text(f"path,label\na.pt,0.5\nb.pt,{label}\n")
    with pytest.raises(SourceError, match=rf"line 3: label '{label}' is over 3e38"):
        find_splits("list", tmp_path, Decoder(), {"file": "list.csv"})


def test_a_mask_of_another_size_is_an_error_of_its_image(devkit: Devkit, tmp_path: Path) -> None:
    devkit.add("a", mask=np.zeros((6, 8), np.uint8))
    devkit.add("b", mask=np.zeros((12, 16), np.uint8))
    devkit.list("train", "a", "b", kind="Segmentation")
    ((name, reason),) = skipped(devkit.root, tmp_path / "out", "voc", task="segmentation")
    assert name.endswith("b.jpg")
    assert "its mask is 16 x 12, the image 8 x 6" in reason


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "BMP"])
def test_damaged_headers_are_values_or_clean_errors(kind: str) -> None:
    out = io.BytesIO()
    Image.fromarray(np.zeros((9, 7, 3), np.uint8)).save(out, kind)
    random, decode = np.random.default_rng(0), Decoder()
    for _ in range(300):
        data = bytearray(out.getvalue())
        for at in random.integers(0, min(len(data), 80), 3):
            data[at] = random.integers(256)
        try:
            assert decode(bytes(data)).dtype == np.uint8
        except ValueError as error:
            assert str(error)  # noqa: PT017  # most are broken, and some are sound still
