"""Random damage to the files of variable-size images: one clear error, or rows whose bytes are as they were."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from building import reseal_file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from variable_datasets import SIZES, some_images, variable_dataset

import mmload
from mmload.builder.verify import verify
from mmload.errors import DamagedError, MmloadError

FUZZ = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
IMAGES = some_images()
FILES = ("bytes", "offsets", "sizes", "encodings")
ODD = st.sampled_from([0, 1, -1, 2, 7, 2**15, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63)])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven rows of pixels and JPEGs in shards of 3, 3 and 1; each example puts its files back."""
    return variable_dataset(tmp_path_factory.mktemp("fuzz") / "out", IMAGES, encoding="mixed")


@contextmanager
def restored(*files: Path) -> Iterator[None]:
    """Puts files back as they were."""
    kept = {file: file.read_bytes() for file in files}
    try:
        yield
    finally:
        for file, content in kept.items():
            file.write_bytes(content)


REFUSAL = re.compile(r"(?=.*(\.png'|\.memmap is damaged)).{1,999}")
"""One line that names the row by its sample, or the file."""


def rows_of(path: Path) -> list[bytes | None]:
    """The pixels of every row; None where it is refused."""
    split, rows = mmload.open(path)["train"], []
    for row in range(len(SIZES)):
        try:
            rows.append(split[row].images.numpy().tobytes())
        except DamagedError as error:
            assert REFUSAL.fullmatch(str(error))  # noqa: PT017  # rows that are read are right, too
            rows.append(None)
    return rows


@FUZZ
@given(
    shard=st.integers(0, 2),
    part=st.sampled_from(FILES),
    index=st.integers(0, 10_000),
    value=ODD | st.integers(-(2**63), 2**63 - 1),
    sealed=st.booleans(),
)
def test_any_number_in_any_file(built: Path, shard: int, part: str, index: int, value: int, sealed: bool) -> None:
    """With checksums that fit, a changed size of a JPEG or byte of a pixel may not be seen; all else is."""
    file, manifest = built / f"train/{shard:06d}/images.{part}.memmap", built / "dataset.json"
    before = rows_of(built)
    dtype = np.dtype({"offsets": np.int64, "sizes": np.int32}.get(part, np.uint8))
    array = np.fromfile(file, dtype)
    changed = np.array(value).astype(dtype)
    index %= len(array)
    same = array[index] == changed
    array[index] = changed
    with restored(file, manifest):
        array.tofile(file)
        if sealed:
            reseal_file(built, "train", shard, f"images.{part}")
        else:
            found = [fault.file for fault in verify(built)]
            assert found == ([] if same else [file.relative_to(built).as_posix()])
        after = rows_of(built)
    if same:
        assert after == before
    elif part in ("offsets", "sizes"):  # the index of all shards is checked at once; a JPEG's header later
        assert None in after
        assert all(now in (None, then) for now, then in zip(after, before, strict=True))
    elif part == "encodings":
        assert None in after
    else:
        others = [row for row in range(len(before)) if row // 3 != shard]
        assert all(after[row] == before[row] for row in others)


@settings(FUZZ, max_examples=20)
@given(shard=st.integers(0, 2), part=st.sampled_from(FILES), size=st.integers(0, 20_000), junk=st.binary(max_size=20))
def test_files_of_any_length(built: Path, shard: int, part: str, size: int, junk: bytes) -> None:
    file, manifest = built / f"train/{shard:06d}/images.{part}.memmap", built / "dataset.json"
    whole = file.read_bytes()
    content = whole[: size % (len(whole) + 1)] + junk
    with restored(file, manifest):
        file.write_bytes(content)
        if len(content) != len(whole):
            with pytest.raises(DamagedError, match=f"images.{part}.memmap"):
                mmload.open(built)
        reseal_file(built, "train", shard, f"images.{part}")
        try:
            found = rows_of(built)
        except MmloadError as error:  # the manifest contradicts itself, or gives another size
            assert part != "bytes" or len(content) < 3  # noqa: PT017
            assert re.search("is damaged|the manifest says", str(error))  # noqa: PT017
        else:
            assert content == whole or None in found or part == "bytes"


@settings(FUZZ, max_examples=20)
@given(data=st.binary(min_size=1, max_size=400), cut=st.integers(1, 900), start=st.booleans())
def test_any_bytes_in_place_of_a_jpeg(built: Path, data: bytes, cut: int, start: bool) -> None:
    """Row 1 is a JPEG: it is read as it was, or refused; other rows never change."""
    pixels, places = (built / f"train/000000/images.{name}.memmap" for name in ("bytes", "offsets"))
    whole, offsets, before = pixels.read_bytes(), np.fromfile(places, np.int64), rows_of(built)
    first, stop = offsets[1:3].tolist()
    row = whole[first:stop][: cut % (stop - first)] + data if start else data
    with restored(pixels, places, built / "dataset.json"):
        pixels.write_bytes(whole[:first] + row + whole[stop:])
        offsets[2:] += len(row) - (stop - first)
        offsets.tofile(places)
        for name in ("bytes", "offsets"):
            reseal_file(built, "train", 0, f"images.{name}")
        after = rows_of(built)
    assert after[:1] + after[2:] == before[:1] + before[2:]
    assert after[1] is None or len(after[1]) == len(before[1] or b"")
