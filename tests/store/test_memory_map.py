"""A split of several shards as one map: the same bytes, nothing copied, nothing left behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from conftest import contents

import mmload
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import DamagedError
from mmload.store.dataset import Split
from mmload.store.row_reader import mapped

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc, and maps as Linux does")


class OpenFile(NamedTuple):
    """Open file of an expected size."""

    path: str
    handle: int
    size: int


SIDE = 64  # 3 x 64 x 64 bytes are three pages


@pytest.fixture
def split(folder: Path, tmp_path: Path) -> Split:
    """18 rows of whole pages in shards of 5."""
    shard_bytes = 5 * (3 * SIDE * SIDE + 8)
    out = tmp_path / "pages"
    build(BuildRecipe(kind="imagefolder", root=folder, out=out, transforms=square(SIDE), shard_bytes=shard_bytes))
    return mmload.open(out)["train"]


def maps_of(split: Split) -> int:
    """How many maps of the split's files this process has."""
    name = split.files.opened("images", 0).path
    return Path("/proc/self/maps").read_text().count(name[: -len("000000/images.memmap")])


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[OpenFile]]:
    """Open files of three sizes, each filled with its number from 1."""
    files = []
    for number, size in enumerate((4096, 8192, 5), 1):
        path = tmp_path / f"{number}"
        path.write_bytes(bytes([number]) * size)
        files.append(OpenFile(str(path), os.open(path, os.O_RDONLY), size))
    yield files
    for file in files:
        os.close(file.handle)


def test_several_shards_are_one_tensorclass(split: Split) -> None:
    assert len(split.shards) == 4
    data, rows = split.data, split[:]
    assert len(data) == 18
    assert torch.equal(data.images, rows.images)
    assert torch.equal(data.targets, rows.targets)
    assert torch.equal(data[7:12].images, rows[7:12].images)
    assert maps_of(split) == 4  # the images'; targets of 40 bytes a shard are read


def test_maps_end_with_what_looks_at_them(split: Split) -> None:
    row = split.data.images[17]
    expected = split[17].images
    gc.collect()
    assert maps_of(split) == 4
    assert torch.equal(row, expected)
    del row
    gc.collect()
    assert maps_of(split) == 0


def test_files_lie_one_behind_the_other_and_a_truncated_one_is_an_error(files: list[OpenFile]) -> None:
    assert mapped(files).tobytes() == b"\1" * 4096 + b"\2" * 8192 + b"\3" * 5
    with pytest.raises(DamagedError, match=r"2 has 8,192 bytes, expected 12,288: it was truncated"):
        mapped([files[0], files[1]._replace(size=12_288)])


def test_what_is_written_stays_in_the_process(split: Split) -> None:
    before, rows = contents(split.path), split[:].images
    data = split.data
    data.images += 1
    assert torch.equal(data.images, rows + 1)
    for part in (data, *split.shards):
        part.images.zero_()
        part.targets.fill_(7)
    assert contents(split.path) == before
    assert torch.equal(split.data.images, rows)
    assert torch.equal(split[:].images, rows)


def test_a_map_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    size = 2**42
    with open(tmp_path / "hole", "w+b") as file:
        try:
            file.truncate(size)
        except OSError as error:
            pytest.skip(f"no such large files here: {error}")
        assert mapped([OpenFile(file.name, file.fileno(), size)])[-1] == 0
