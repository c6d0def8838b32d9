"""A cache after kills and forks, and after its folder was deleted."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from cached_datasets import cache_of, check_rows, end_all, stored_bytes
from written_datasets import of_tensors

import mmload
from mmload.errors import UsageError
from mmload.remote import cache_files, dataset_cache
from mmload.remote.cache_folder import CacheFolder
from mmload.remote.copies import push
from mmload.store.dataset import Dataset

pytestmark = [
    pytest.mark.usefixtures("fresh_caches"),
    pytest.mark.skipif(sys.platform == "win32", reason="URLs are not read there"),
]

ROWS, ROW_BYTES = 24, 3 * 120 * 120


@pytest.fixture
def local(tmp_path: Path) -> Dataset:
    """A dataset of 24 rows of 43,200 bytes, a block each."""
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
    os.truncate(cache / cache_files.NAME, 0)
    with monkeypatch.context() as patch:
        patch.setattr(CacheFolder, "_survey", kill)
        with pytest.raises(Killed), cache_of(remote).folder.locked():
            pass
    end_all()
    with CacheFolder(cache, None).locked():
        assert CacheFolder(cache, None).used == stored_bytes(cache) > 0


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the package catches it."""


def kill(*_: object) -> None:
    raise Killed


def test_what_a_killed_process_left_in_an_unlimited_cache_goes_with_the_next_opening(url: str, cache: Path) -> None:
    mmload.open(url, cache=cache)
    end_all()
    (cache / f"{cache_files.NAME}.{'a' * 16}.incoming").write_bytes(bytes(1000))
    mmload.open(url, cache=cache)
    assert not list(cache.glob("*.incoming"))


def test_the_count_has_the_bytes_of_a_block_until_its_last_name_is_removed(tmp_path: Path) -> None:
    (tmp_path / "1.block").write_bytes(bytes(100))
    os.link(tmp_path / "1.block", tmp_path / "2.block")  # as a version takes over what an earlier one has
    assert [cache_files.unlink(str(tmp_path / f"{number}.block")) for number in (1, 2, 3)] == [0, 100, 0]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("held", ["opening", "cache", "indexing", "plan", "prefetch"])
def test_a_forked_process_does_not_wait_for_a_lock_of_its_parents_threads(
    url: str, local: Dataset, cache: Path, held: str
) -> None:
    remote = mmload.open(url, cache=cache)
    check_rows(remote, local)
    loader = mmload.Loader(remote["train"], batch_size=ROWS, threads=1, fields=["images"])
    assert len(list(loader)) == 1
    assert loader._pool is not None
    ahead, plan = loader._pool._prefetcher._prefetch, cache_of(remote).blocks("train", "images").files.plan
    assert plan is not None
    of_cache = cache_of(remote)
    lock = {
        "opening": dataset_cache._OPENING,
        "cache": of_cache._lock,
        "indexing": of_cache._indexing,
        "plan": plan._lock,
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
