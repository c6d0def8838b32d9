"""Rows where they lie in mapped files, and what happens when these change under their reader."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from whole_datasets import some_images, whole_dataset
from written_datasets import of_tensors

import mmload
from mmload.augment import RandomCrop, RandomResizedCrop
from mmload.errors import MmloadError
from mmload.loader import tiers, whole_tiers
from mmload.runtime.bus_errors import Guard
from mmload.runtime.resident_pages import SEGMENT_BYTES, can_populate
from mmload.store import memory_map
from mmload.store import row_map as row_map_module
from mmload.store.dataset import Dataset
from mmload.store.row_map import row_map

pytestmark = pytest.mark.skipif(not can_populate(), reason="this system cannot populate maps")

ROWS = 40


def squares(path: Path, side: int, shards: int = 3, rows: int = ROWS) -> Dataset:
    """A dataset in shards whose files are no whole pages."""
    images = torch.randint(1, 256, (rows, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    parts = [of_tensors(path / f"part{k}", {"train": {"images": images[k::shards]}}) for k in range(shards)]
    return [mmload.open(part) for part in parts]  # type: ignore[return-value]


@pytest.mark.parametrize("side", [5, 32, 85, 130])
def test_rows_of_joined_splits_lie_where_they_are_located(tmp_path: Path, side: int) -> None:
    parts = [part["train"] for part in squares(tmp_path, side)]  # type: ignore[call-overload]
    joined = mmload.Loader(torch.utils.data.ConcatDataset(parts)).split
    rows = np.random.default_rng(0).permutation(ROWS)
    row_bytes = 3 * side * side
    mapped = row_map(joined.reader.field("images"))
    assert mapped is not None
    for _ in range(2):
        starts, absent = mapped.prepare(joined.reader.field("images").located(rows), lambda _, error: error)
        assert absent <= ROWS
        assert (starts % row_bytes == 0).all()
        found = np.stack([mapped.memory[start : start + row_bytes] for start in starts.tolist()])
        expected = joined.reader.gather("images", torch.from_numpy(rows)).reshape(ROWS, -1)
        assert np.array_equal(found, expected.numpy())
    assert absent == 0


@pytest.mark.parametrize("batch_size", [1, 7])
def test_mapped_batches_equal_read_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int) -> None:
    parts = torch.utils.data.ConcatDataset([part["train"] for part in squares(tmp_path, 45)])  # type: ignore[call-overload]
    photographs = mmload.open(whole_dataset(tmp_path / "mixed", some_images(), encoding="mixed"))["train"]

    def batches() -> list[torch.Tensor]:
        found = []
        for rows, collate in (
            (parts, mmload.Collate(RandomCrop(40))),
            (photographs, mmload.Collate(RandomResizedCrop(9))),
        ):
            with mmload.Loader(rows, batch_size=batch_size, shuffle=True, collate=collate, tier="disk") as loader:
                found += [batch.images for batch in loader]
        return found

    mapped = batches()
    for module in (tiers, whole_tiers):
        monkeypatch.setattr(module, "row_map", lambda *_: None)
    read = batches()
    assert all(map(torch.equal, mapped, read))
    assert len(mapped) == len(read)


def test_small_rows_come_with_their_neighbors(tmp_path: Path) -> None:
    count = 3 * SEGMENT_BYTES // (3 * 32 * 32)
    split = squares(tmp_path, 32, shards=1, rows=count)[0]["train"]  # type: ignore[index]
    mapped = row_map(split.reader.field("images"))
    assert mapped is not None

    def prepare(rows: list[int]) -> int:
        """How many of the rows had to be read."""
        return mapped.prepare(split.reader.field("images").located(np.array(rows)), lambda _, error: error)[1]

    assert prepare([0]) == 1
    assert prepare([1, 2, count - 1]) == 1
    assert prepare([0, 1, count - 1]) == 0


def test_evicted_rows_are_counted_and_come_back(tmp_path: Path) -> None:
    split = squares(tmp_path, 200, shards=1)[0]["train"]  # type: ignore[index]
    path = next(tmp_path.rglob("images.memmap"))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    mapped = row_map(split.reader.field("images"))
    assert mapped is not None
    places = split.reader.field("images").located(np.arange(ROWS))
    starts, absent = mapped.prepare(places, lambda _, error: error)
    if absent == 0:
        pytest.skip("this file system does not evict")
    expected = split.reader.array("images", np.arange(ROWS)).reshape(ROWS, -1)
    assert all(
        np.array_equal(mapped.memory[s : s + 120_000], row) for s, row in zip(starts.tolist(), expected, strict=True)
    )
    assert mapped.prepare(places, lambda _, error: error)[1] == 0


@pytest.fixture
def other_handler() -> Iterator[None]:
    """Another library takes SIGBUS after the map's handler was installed, as Ray does."""
    import faulthandler

    was_enabled = faulthandler.is_enabled()
    Guard(np.zeros(4096, np.uint8)).arm()
    faulthandler.disable()
    faulthandler.enable(file=sys.__stderr__)
    yield
    if not was_enabled:
        faulthandler.disable()


@pytest.mark.parametrize("taken", [False, True])
def test_a_page_that_is_gone_is_an_error_and_no_signal(
    tmp_path: Path, taken: bool, request: pytest.FixtureRequest
) -> None:
    """The file ends between the look at it and the reading: the reader goes on with zeros, which are then refused."""
    if taken:
        request.getfixturevalue("other_handler")
    split = squares(tmp_path, 200, shards=1)[0]["train"]  # type: ignore[index]
    mapped = row_map(split.reader.field("images"))
    assert mapped is not None
    places = split.reader.field("images").located(np.array([ROWS - 1]))
    (start,), _ = mapped.prepare(places, lambda _, error: error)
    content = next(tmp_path.rglob("images.memmap")).read_bytes()
    os.truncate(next(tmp_path.rglob("images.memmap")), 4096)
    assert not mapped.memory[start : start + 120_000].any()
    with pytest.raises(MmloadError, match=r"images.memmap is damaged: it ends at byte 4096"):
        mapped.check(places)
    next(tmp_path.rglob("images.memmap")).write_bytes(content)
    with pytest.raises(MmloadError, match="truncated or could not be read while it was in use; open the dataset again"):
        mapped.check(places)


def test_faults_of_other_memory_still_end_the_process(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    code = f"""import mmap, os, numpy as np
from mmload.runtime.bus_errors import Guard
guard = Guard(np.zeros(4096, np.uint8))
guard.arm()
memory = mmap.mmap(os.open({str(path)!r}, os.O_RDONLY), 8192, prot=mmap.PROT_READ)
os.truncate({str(path)!r}, 0)
print(memory[5000])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == -7, done.stderr


def attack(path: Path, draw: random.Random) -> None:
    """Harms a random file of a dataset as users and disks do."""
    file = draw.choice(sorted(path.rglob("*.memmap")))
    match draw.choice(("truncate", "shorten", "rewrite", "replace", "unlink", "unreadable")):
        case "truncate":
            os.truncate(file, 0)
        case "shorten":
            os.truncate(file, draw.randrange(max(1, file.stat().st_size)))
        case "rewrite":
            file.write_bytes(bytes(draw.randbytes(file.stat().st_size)))
        case "replace":
            file.with_suffix(".new").write_bytes(draw.randbytes(file.stat().st_size))
            file.with_suffix(".new").rename(file)
        case "unlink":
            file.unlink()
        case _:
            file.chmod(0)


FAULTS = """import sys, threading, torch, mmload, warnings
from mmload.augment import RandomCrop, RandomResizedCrop
sys.path[:0] = {paths!r}
import random, shutil, time
from pathlib import Path
from mmload.errors import MmloadError
from test_row_map import attack
draw, ended, right = random.Random({seed}), 0, 0
path = Path({path!r})
for number in range({rounds}):
    copy = Path(shutil.copytree(path, path.with_name(f"copy{seed}-{{number}}")))
    split = mmload.open(copy)["train"]
    collate = mmload.Collate(RandomResizedCrop(16)) if "mixed" in path.name else None
    options = dict(batch_size=8, shuffle=True, seed=number, threads=2, tier=draw.choice(["disk", "disk", "memory"]))
    expected = [b.images.clone() for b in mmload.Loader(mmload.open(path)["train"], collate=collate, **options)]
    timer = threading.Timer(draw.random() * 0.02 if number % 2 else 0, attack, (copy, draw))
    timer.start()
    if not number % 2:  # before the first batch
        timer.join()
    try:
        for _ in range(3):
            for batch, wanted in zip(mmload.Loader(split, collate=collate, **options), expected):
                if not torch.equal(batch.images, wanted):
                    raise SystemExit(f"a wrong batch in round {{number}}")
                right += 1
    except MmloadError as error:
        assert str(copy) in str(error), error
        ended += 1
    timer.join()
    shutil.rmtree(copy, ignore_errors=True)
print(ended, right)
"""


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["squares", "mixed"])
def test_files_that_change_under_a_loader_give_right_pixels_or_an_error(tmp_path: Path, layout: str) -> None:
    if layout == "squares":
        split = {"images": torch.randint(0, 256, (ROWS, 3, 120, 120), dtype=torch.uint8)}
        path = of_tensors(tmp_path / "squares", {"train": split})
    else:
        path = whole_dataset(tmp_path / "mixed", some_images([(90 + k, 100) for k in range(24)]), encoding="mixed")
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[1])]
    code = FAULTS.format(paths=paths, seed=0, path=str(path), rounds=40)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-500:]}{done.stderr[-2000:]}"
    ended, right = map(int, done.stdout.split())
    assert ended > 0
    assert right > 5


def test_files_that_cannot_be_mapped_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = squares(tmp_path, 32, shards=1)[0]["train"]  # type: ignore[index]
    monkeypatch.setattr(row_map_module, "MOST_FILES", 0)
    assert row_map(split.reader.field("images")) is None
    monkeypatch.setattr(row_map_module, "MOST_FILES", 9)
    assert row_map(split.reader.field("images")) is not None
    with monkeypatch.context() as patch:
        patch.setattr(memory_map, "_system_mmap", lambda: lambda *_: memory_map._FAILED)
        assert row_map(split.reader.field("images")) is None
    os.truncate(next(tmp_path.rglob("images.memmap")), 100)
    assert row_map(split.reader.field("images")) is None
