"""A cache after kills and forks, and after its folder was deleted."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from cached_datasets import SMALL_CHUNKS, cache_of, check_rows, end_all, map_of, stored_bytes
from forked_program import Program
from written_datasets import of_tensors

import mmload
from mmload.errors import UsageError
from mmload.remote import cached_dataset
from mmload.remote.cache_folder import NAME, CacheFolder
from mmload.remote.copies import push
from mmload.store.dataset import Dataset

pytestmark = [
    pytest.mark.usefixtures("fresh_caches"),
    pytest.mark.skipif(sys.platform == "win32", reason="URLs are not read there"),
]

ROWS, ROW_BYTES = 24, 3 * 120 * 120


@pytest.fixture
def local(tmp_path: Path) -> Dataset:
    """A dataset of 24 rows of 43,200 bytes, a block each, of which three are a chunk."""
    pytest.importorskip("obstore", reason="object storage needs obstore")
    images = torch.randint(1, 256, (ROWS, 3, 120, 120), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return mmload.open(of_tensors(tmp_path / "local", {"train": {"images": images, "targets": torch.arange(ROWS)}}))


@pytest.fixture
def url(local: Dataset, tmp_path: Path) -> str:
    push(local.path, f"file://{tmp_path}/pushed")
    return f"file://{tmp_path}/pushed"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_list_that_is_fetched_after_the_cache_was_deleted_leaves_a_cache(
    url: str, local: Dataset, cache: Path
) -> None:
    remote = mmload.open(url, cache=cache)
    shutil.rmtree(cache)
    assert remote["train"].source(3) == local["train"].source(3)
    end_all()  # and no block is stored
    check_rows(mmload.open(url, cache=cache), local)


def test_a_survey_of_a_truncated_mark_that_is_killed_leaves_no_count_that_is_too_low(
    url: str, local: Dataset, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = mmload.open(url, cache=cache, cache_limit=8 * ROW_BYTES)
    check_rows(remote, local)
    os.truncate(cache / NAME, 0)
    with monkeypatch.context() as patch:
        patch.setattr(CacheFolder, "_survey", kill)
        with pytest.raises(Killed):
            _ = cache_of(remote).used
    end_all()
    assert CacheFolder(cache, None).used == stored_bytes(cache) > 0


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the package catches it."""


def kill(*_: object) -> None:
    raise Killed


def test_processes_that_are_killed_leave_nothing_that_is_taken_for_whole(url: str, local: Dataset, cache: Path) -> None:
    draw, limit = random.Random(0), 11 * ROW_BYTES
    code = f"""import mmload, random
import numpy as np
{SMALL_CHUNKS}
from mmload.remote import cache_folder, chunk_map
chunk_map.MOST_IDLE, cache_folder._SURVEY_S = 1, 0.0
read = mmload.open({url!r}, cache={str(cache)!r}, cache_limit={limit})["train"].reader.array
print("reads", flush=True)
while True:
    rows = np.array(random.choices(range({ROWS}), k=4))
    read("images", rows)
    if random.random() < 0.2:  # its chunks come again
        [path.unlink(missing_ok=True) for path in __import__("pathlib").Path({str(cache)!r}).rglob("*.chunk")]
"""
    stored = (local.path / "train" / "000000" / "images.memmap").read_bytes()
    for _ in range(3):
        running = [Program(code, []) for _ in range(3)]
        for process in running:
            process.wait_for("reads")
        for process in running:
            time.sleep(draw.random() / 5)
            process.send_signal(signal.SIGKILL)
            process.ended()
        for path in [*cache.rglob("images*/*.chunk"), *cache.rglob("images*/*.passing")]:
            content, number = path.read_bytes(), int(path.name.partition(".")[0])
            assert content[-3 * ROW_BYTES :] == stored[number * 3 * ROW_BYTES :][: 3 * ROW_BYTES]
        remote = mmload.open(url, cache=cache, cache_limit=limit)
        assert cache_of(remote).used == stored_bytes(cache) <= limit
        assert not [*cache.rglob("*.incoming"), *cache.rglob("*.passing")]
        check_rows(remote, local)
        end_all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("held", ["opening", "cache", "indexing", "map", "files", "prefetch"])
def test_a_forked_process_does_not_wait_for_a_lock_of_its_parents_threads(
    url: str, local: Dataset, cache: Path, held: str
) -> None:
    remote = mmload.open(url, cache=cache)
    check_rows(remote, local)
    loader = mmload.Loader(remote["train"], batch_size=ROWS, threads=1, fields=["images"])
    assert len(list(loader)) == 1
    assert loader._pool is not None
    ahead, of_cache, chunks = loader._pool.prefetch, remote["train"].folder, map_of(remote)
    lock = {
        "opening": cached_dataset._OPENING,
        "cache": of_cache._lock,
        "indexing": of_cache._indexing,
        "map": chunks._changed,
        "files": chunks.files._lock,
        "prefetch": ahead._ended._cond,
    }[held]
    lock.acquire()  # as a thread of this process may, when it forks
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it if it waits
        code = 1
        with suppress(BaseException):
            check_rows(remote, local)
            with of_cache._indexing:
                pass
            with pytest.raises(UsageError, match="before this process was forked"):
                mmload.open(url, cache=cache)
            code = int(len(list(loader)) != 1)
        os._exit(code)
    lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loader.close()
