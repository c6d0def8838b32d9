"""Rows of their own sizes: written, read by us, by numpy and by tensordict, and refused where they are damaged."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from building import changed_manifest, reseal_file
from tensordict import TensorDict
from variable_datasets import SIZES, jpeg_of, some_images, variable_dataset

import mmload
from mmload.augment import CenterCrop
from mmload.builder.verify import verify
from mmload.errors import DamagedError
from mmload.store.dataset import Split

IMAGES = some_images()
MASKS = [image[0] // 32 for image in IMAGES]


@pytest.fixture(scope="module", params=["raw", "jpeg", "mixed"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven rows with masks in shards of 3, 3 and 1. Read-only."""
    place = tmp_path_factory.mktemp("whole") / request.param
    return variable_dataset(place, IMAGES, encoding=request.param, masks=MASKS)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Rows of pixels, to be damaged."""
    return variable_dataset(tmp_path / "raw", IMAGES)


def expected(row: int, encoding: int) -> np.ndarray:
    return simplejpeg.decode_jpeg(jpeg_of(IMAGES[row]), "RGB").transpose(2, 0, 1) if encoding else IMAGES[row]


def split_of(path: Path) -> Split:
    return mmload.open(path)["train"]


def test_every_row_comes_back_in_its_own_size(built: Path) -> None:
    split = split_of(built)
    encodings = split.reader.field("images").located(np.arange(len(SIZES)))["encoding"]
    assert len(set(encodings.tolist())) == (2 if built.name == "mixed" else 1)
    for row, size in enumerate(SIZES):
        one = split[row]
        assert one.images.shape == (3, *size)
        assert (one.images.numpy() == expected(row, encodings[row])).all()
        assert torch.equal(one.masks, torch.from_numpy(MASKS[row]))
        assert (int(one.targets), int(one.ids)) == (row, row)
    assert verify(built) == []


def test_several_rows_are_a_lazy_stack(built: Path) -> None:
    split = split_of(built)
    batch = pickle.loads(pickle.dumps(split))[[4, 1, -1]]
    assert batch.targets.tolist() == batch.ids.tolist() == [4, 1, 6]
    listed = batch.get("images", as_list=True)
    assert [tuple(image.shape[1:]) for image in listed] == [SIZES[row] for row in (4, 1, 6)]
    for row, one in zip((4, 1, 6), batch.unbind(0), strict=True):
        assert torch.equal(one.images, split[row].images)
    assert len(split[[]]) == 0


def test_rows_lie_as_the_document_of_the_format_says(raw: Path) -> None:
    found = []
    for shard in range(3):
        pixels, offsets, sizes = (read(raw, shard, part) for part in ("bytes", "offsets", "sizes"))
        for row, (height, width) in enumerate(sizes.reshape(-1, 2)):
            found.append(pixels[offsets[row] : offsets[row + 1]].reshape(height, 3, width).transpose(1, 0, 2))
    assert len(found) == len(IMAGES)
    assert all(map(np.array_equal, found, IMAGES))


def test_a_shard_is_a_tensordict_and_has_what_that_can_hold(built: Path) -> None:
    shard = TensorDict.load_memmap(built / "train/000001")
    assert shard["images.sizes"].tolist() == [list(size) for size in SIZES[3:6]]
    assert shard["images.offsets"][-1] == len(shard["images.bytes"])
    assert shard["targets"].tolist() == [3, 4, 5]
    assert ("images.encodings" in shard) == (built.name == "mixed")


def test_manifest_of_variable_rows_round_trip_is_stable(raw: Path) -> None:
    text = (raw / "dataset.json").read_text()
    spec = {"dtype": "uint8", "shape": [3, -1, -1], "encoding": "raw", "version": 0}
    assert json.loads(text)["splits"]["train"]["fields"]["images"] == spec
    assert mmload.open(raw).manifest.dumps() == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoding": "png"}, "encoding is 'png', expected one of raw, jpeg, mixed"),
        ({"encoding": None}, "expected positive integers"),
        ({"encoding": 1}, "Expected `str \\| null`, got `int`"),
        ({"shape": [3, 256, 256]}, "is not a variable-size image or mask"),
        ({"shape": [-1, -1, -1]}, "expected positive integers"),
        ({"shape": [-1]}, "is not a variable-size image or mask"),
        ({"shape": [2, -1, -1], "encoding": "jpeg"}, "a JPEG has 1 or 3 channels"),
        ({"dtype": "int64"}, "is not a variable-size image or mask"),
    ],
)
def test_a_field_that_cannot_be(raw: Path, change: dict[str, object], message: str) -> None:
    changed_manifest(raw, lambda body: body["splits"]["train"]["fields"]["images"].update(change))
    with pytest.raises(DamagedError, match=message):
        mmload.open(raw)


def damage(path: Path, shard: int, part: str, change: np.ndarray) -> Split:
    """The split after a file of a shard was replaced, with the checksum of what is there now."""
    change.tofile(path / f"train/{shard:06d}/images.{part}.memmap")
    reseal_file(path, "train", shard, f"images.{part}")
    return split_of(path)


def read(path: Path, shard: int, part: str) -> np.ndarray:
    dtype = {"offsets": np.int64, "sizes": np.int32, "bytes": np.uint8, "encodings": np.uint8}[part]
    return np.fromfile(path / f"train/{shard:06d}/images.{part}.memmap", dtype)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((1, "offsets", 0), 3, "row 0: its offset is 3, expected 0"),
        ((0, "offsets", 2), 10, "row 1: its bytes end before they begin"),
        ((0, "offsets", 2), 10**9, "row 1: its bytes leave the file"),
        ((0, "offsets", 1), 2**63 - 1, "row 0: its bytes leave the file"),
        ((0, "offsets", 1), -(2**63), "row 0: its bytes end before they begin"),
        ((0, "offsets", 2), 3755, "row 1: it has another number of bytes than its pixels"),
        ((0, "offsets", 3), 3700, "row 2: its bytes end before they begin"),
        ((2, "sizes", 0), 0, "row 0: its height or width is below 1"),
        ((2, "sizes", 1), -5, "row 0: its height or width is below 1"),
        ((1, "sizes", 3), 2**31 - 1, "row 1: it has more than 178,956,970 pixels"),
        ((1, "sizes", 3), 47, "row 1: it has another number of bytes than its pixels"),
    ],
)
def test_damaged_offsets_and_sizes_name_the_file_and_its_row(
    raw: Path, place: tuple[int, str, int], value: int, message: str
) -> None:
    shard, part, index = place
    array = read(raw, shard, part)
    array[index] = value
    with pytest.raises(DamagedError, match=rf"{shard:06d}/images.offsets.memmap is damaged: {message}"):
        _ = damage(raw, shard, part, array)[0]


@pytest.mark.parametrize(
    ("encoding", "sizes"),
    [
        *(
            (encoding, [*SIZES[0], *size, *SIZES[2]])
            for encoding in ("jpeg", "mixed")
            for size in ((49, 50), (1, 1), (1, 10_000))
        ),
        ("raw", [*SIZES[0][::-1], *SIZES[1], *SIZES[2]]),  # it fits the bytes of the row
    ],
)
def test_damaged_size_names_the_file_before_a_step_sees_it(tmp_path: Path, encoding: str, sizes: list[int]) -> None:
    path = variable_dataset(tmp_path / "data", IMAGES, encoding=encoding)
    np.array(sizes, np.int32).tofile(path / "train/000000/images.sizes.memmap")
    for use in (lambda: mmload.Loader(path, collate=[CenterCrop(48)]), lambda: split_of(path)[6]):
        with pytest.raises(DamagedError, match=r"000000/images.sizes.memmap is damaged: checksum mismatch"):
            use()


def test_bytes_that_are_left_over_and_unknown_encodings_name_the_row(tmp_path: Path) -> None:
    jpegs = variable_dataset(tmp_path / "jpegs", IMAGES, encoding="jpeg")
    split = damage(jpegs, 2, "bytes", np.append(read(jpegs, 2, "bytes"), np.uint8(0)))
    with pytest.raises(DamagedError, match="000002/.* row 0: its bytes end at .*those of the file at"):
        _ = split[6]
    mixed = variable_dataset(tmp_path / "mixed", IMAGES, encoding="mixed")
    split = damage(mixed, 1, "encodings", np.array([1, 7, 1], np.uint8))
    with pytest.raises(DamagedError, match="000001/.* row 1: its encoding is neither 0"):
        _ = split[0]


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (jpeg_of(IMAGES[0].transpose(0, 2, 1)), "its JPEG is 30 x 40, its size is 40 x 30"),
        (jpeg_of(IMAGES[0])[:200], "its JPEG cannot be decoded"),
        (np.zeros(50, np.uint8), "its JPEG cannot be decoded"),
    ],
)
def test_a_jpeg_that_is_not_of_its_size(tmp_path: Path, damaged: np.ndarray, message: str) -> None:
    jpegs = variable_dataset(tmp_path / "jpegs", IMAGES, encoding="jpeg", shard_rows=1)
    damage(jpegs, 0, "offsets", np.array([0, len(damaged)]))
    split = damage(jpegs, 0, "bytes", damaged)
    assert split[1].images.shape == (3, 1, 50)
    with pytest.raises(DamagedError, match=f"images of row 0 of split 'train' .*'0.png', is damaged: {message}"):
        _ = split[0]


def test_a_truncated_file_is_an_error_at_once_and_under_an_open_dataset(raw: Path) -> None:
    split, file = split_of(raw), raw / "train/000002/images.bytes.memmap"
    assert split[6].images.shape == (3, 16, 16)
    os.truncate(file, 767)
    with pytest.raises(DamagedError, match=r"images\.bytes\.memmap (ends|is damaged)"):
        _ = split[6]
    with pytest.raises(DamagedError, match=r"images\.bytes\.memmap has 767 bytes"):
        mmload.open(raw)
    assert [fault.file for fault in verify(raw)] == ["train/000002/images.bytes.memmap"]
