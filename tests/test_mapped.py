"""A split of several shards as one map: the same bytes, nothing copied, nothing left behind."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import mmload
from mmload.build import build
from mmload.dataset import Split
from mmload.errors import DamagedError, StoreError
from mmload.mapped import joinable, mapped
from mmload.recipe import BuildRecipe, square

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc, and maps as Linux does")

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
    return (
        Path("/proc/self/maps").read_text().count(str(split.reader.path("images", 0))[: -len("000000/images.memmap")])
    )


def write(folder: Path, sizes: Sequence[int]) -> list[str]:
    """Files of these sizes, each filled with its number from 1."""
    paths = [folder / f"{number}" for number in range(1, len(sizes) + 1)]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True), 1):
        path.write_bytes(bytes([number]) * size)
    return [str(path) for path in paths]


def test_several_shards_are_one_tensorclass(split: Split) -> None:
    assert len(split.shards) == 4
    data = split.data
    assert len(data) == 18
    assert torch.equal(data.images, split[:].images)
    assert torch.equal(data.targets, split[:].targets)
    assert torch.equal(data[7:12].images, split[7:12].images)
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


def test_files_lie_one_behind_the_other(tmp_path: Path) -> None:
    whole = mapped(write(tmp_path, [4096, 8192, 5]), [4096, 8192, 5])
    assert whole.tobytes() == b"\1" * 4096 + b"\2" * 8192 + b"\3" * 5
    assert not whole.flags.writeable


def test_the_last_file_alone_may_end_within_a_page() -> None:
    assert joinable([5])
    assert joinable([4096, 5])
    assert not joinable([5, 4096])


def test_a_file_that_was_truncated_or_removed_is_an_error(tmp_path: Path) -> None:
    paths = write(tmp_path, [4096, 4096])
    with pytest.raises(DamagedError, match=r"2 has 4,096 bytes, expected 8,192: it was truncated"):
        mapped(paths, [4096, 8192])
    Path(paths[1]).unlink()
    with pytest.raises(StoreError, match=r"cannot map .*2 \(No such file"):
        mapped(paths, [4096, 4096])
