"""The folder of a cache: what it survives, kills and forks too, and what it leaves alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cached_datasets import SMALL_CHUNKS, check_rows, end_all, map_of, stored_bytes, used_bytes
from forked_program import Program, in_a_fork
from meanwhile import dying_at
from small_disks import fill, small_disk_at
from variable_datasets import some_images, variable_dataset
from waiting import until
from written_datasets import of_tensors

import mmload
from mmload.errors import StoreError, UsageError
from mmload.remote import cache_folder, chunk_map
from mmload.remote.cache_folder import NAME, CacheFolder
from mmload.remote.copies import push
from mmload.runtime import files
from mmload.store.dataset import Dataset

pytestmark = [
    pytest.mark.usefixtures("fresh_caches"),
    pytest.mark.skipif(sys.platform == "win32", reason="URLs are not read there"),
]

ROWS, ROW_BYTES = 24, 3 * 120 * 120
FILES = "chunks/train/000000"


@pytest.fixture
def local(tmp_path: Path) -> Dataset:
    """A dataset of 24 rows of 43,200 bytes, a block each, of which three are a chunk."""
    pytest.importorskip("obstore", reason="object storage needs obstore")
    images = torch.randint(1, 256, (ROWS, 3, 120, 120), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = {"images": images, "targets": torch.arange(1, ROWS + 1)}
    return mmload.open(of_tensors(tmp_path / "local", {"train": split, "val": split}))


@pytest.fixture
def url(local: Dataset, tmp_path: Path) -> str:
    push(local.path, f"file://{tmp_path}/pushed")
    return f"file://{tmp_path}/pushed"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def in_process(code: str) -> Program:
    return Program(f"import mmload, time\nimport numpy as np\nfrom pathlib import Path\n{SMALL_CHUNKS}\n{code}", [])


def ended(process: Program) -> str:
    done = process.ended()
    assert done.returncode == 0, done.stderr
    return done.stdout


def sum_of(dataset: Dataset, rows: range = range(ROWS), split: str = "train") -> int:
    """The sum of the pixels of rows, as programs print it."""
    return int(dataset[split].reader.array("images", np.array(rows)).sum())


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


HARMS: dict[str, tuple[Callable[[Path, Path], bool], Callable[[Path], object]]] = {
    "delete": (lambda path, cache: path.is_file(), remove),
    "truncate": (lambda path, cache: path.is_file(), lambda path: os.truncate(path, path.stat().st_size // 2)),
    "empty": (lambda path, cache: path.is_file(), lambda path: os.truncate(path, 0)),
    "folder": (lambda path, cache: path.name.startswith("images-"), remove),
    "everything": (lambda path, cache: path.parent == cache, remove),
}
"""What is harmed, and how."""


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("is_open", [True, False])
def test_cache_files_removed_by_others_are_fetched_again(
    url: str, local: Dataset, cache: Path, harm: str, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_map, "MOST_IDLE", 0)
    remote = mmload.open(url, cache=cache, cache_limit="10MB")
    check_rows(remote, local)
    assert remote["train"].source(3).id == "3.png"
    if not is_open:
        end_all()
    is_harmed, change = HARMS[harm]
    for path in [path for path in cache.rglob("*") if is_harmed(path, cache)]:
        change(path)
    if harm == "delete" and not is_open:  # nothing proves any more that the folder is a cache
        with pytest.raises(UsageError, match="is not empty and not a cache of mmload"):
            mmload.open(url, cache=cache, cache_limit="10MB")
        return
    if not is_open:
        if harm == "truncate":  # as if the mark were a file of somebody else
            (cache / NAME).write_bytes(b"")
        remote = mmload.open(url, cache=cache, cache_limit="10MB")
        assert remote["train"].source(3).id == "3.png"
    for _ in range(2):
        check_rows(remote, local)


@pytest.mark.parametrize("harm", ["truncated", "removed"])
def test_indexes_of_photographs_that_were_lost_are_fetched_again(tmp_path: Path, cache: Path, harm: str) -> None:
    pytest.importorskip("obstore", reason="object storage needs obstore")
    local = mmload.open(variable_dataset(tmp_path / "local", some_images()))["train"]
    push(tmp_path / "local", f"file://{tmp_path}/pushed")
    for _ in range(2):
        remote = mmload.open(f"file://{tmp_path}/pushed", cache=cache)["train"]
        assert all(torch.equal(remote[row].images, local[row].images) for row in range(len(local)))
        if harm == "removed":
            shutil.rmtree(cache)
            continue
        end_all()
        for path in cache.glob("*/train/*/*.memmap"):
            os.truncate(path, 3)


def test_a_list_that_is_fetched_after_the_cache_was_deleted_leaves_a_cache(
    url: str, local: Dataset, cache: Path
) -> None:
    remote = mmload.open(url, cache=cache)
    shutil.rmtree(cache)
    assert remote["train"].source(3) == local["train"].source(3)
    end_all()  # and no block is stored
    check_rows(mmload.open(url, cache=cache), local)


def test_a_cache_leaves_everything_alone_that_it_did_not_write(url: str, local: Dataset, cache: Path) -> None:
    remote = mmload.open(url, cache=cache, cache_limit=4 * ROW_BYTES)
    check_rows(remote, local)
    root, unused, outside = remote.path, cache / ("0" * 32), cache.parent / "outside"
    inside = Path(FILES, "images-00000000")
    strange = [
        cache / "checkpoints" / "last.pt",
        root / "notes.txt",
        root / inside / "1.chunk.txt",
        root / inside / "007.chunk",
        root / FILES.replace("000000", "000000 (copy)") / "images-00000000" / "1.chunk",
        unused / "weights.pt",
        unused / inside / "weights.pt",
        unused / inside / "deeper" / "1.chunk",
        cache / "checkpoints" / inside / "1.chunk",
        outside / inside / "1.chunk",
        outside / inside / "1.chunk.passing",
    ]
    own = [
        unused / inside / name
        for name in ("7.chunk", "8.chunk.fetching", "9.chunk.passing", "9.chunk.passing.0f.partial")
    ]
    for path in [*strange, *own]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100_000))
    (cache / ("2" * 32)).mkdir()
    for link, target in (
        (cache / ("1" * 32), outside),
        (cache / ("2" * 32) / "chunks", outside / "chunks"),
        (unused / "chunks" / "link", outside / "chunks" / "train"),
    ):
        link.symlink_to(target)
    end_all()
    check_rows(mmload.open(url, cache=cache, cache_limit=4 * ROW_BYTES), local)
    assert all(path.exists() for path in strange)
    assert not any(path.exists() for path in own)  # as the cache names its own, of a dataset that nobody reads


def test_first_use_by_many_processes_counts_every_byte(url: str, local: Dataset, cache: Path, tmp_path: Path) -> None:
    limit, begin = 8 * ROW_BYTES, tmp_path / "begin"
    code = f"""print("ready", flush=True)
while not Path({str(begin)!r}).exists():
    time.sleep(0.001)
remote = mmload.open({url!r}, cache={str(cache)!r}, cache_limit={limit})
for start in range(4):
    print(int(remote["train"].reader.array("images", np.arange(start, {ROWS}, 2)).sum()))
"""
    expected = [str(sum_of(local, range(start, ROWS, 2))) for start in range(4)]
    for _ in range(3):
        running = [in_process(code) for _ in range(4)]
        for process in running:
            process.wait_for("ready")
        begin.touch()
        assert [ended(process).split() for process in running] == [["ready", *expected]] * 4
        begin.unlink()
        assert 0 < stored_bytes(cache) <= used_bytes(cache) <= limit
        shutil.rmtree(cache)


@pytest.mark.parametrize("at", ["first use", "later"])
def test_full_disk_is_one_error_and_nothing_is_lost(url: str, local: Dataset, tmp_path: Path, at: str) -> None:
    with small_disk_at(tmp_path / "small", "3m") as place:
        remote = None
        if at == "later":
            remote = mmload.open(url, cache=place / "cache")
            remote["train"].rows([0])
        fill(place / "filling")
        with pytest.raises(StoreError, match=r"cache .*\(No space left on device\)"):
            check_rows(remote or mmload.open(url, cache=place / "cache"), local)
        until(lambda: not list(place.rglob("*.fetching")))  # of other chunks of the same rows
        (place / "filling").unlink()
        remote = remote or mmload.open(url, cache=place / "cache")
        rows = np.array([3, 5])
        for _ in range(2):
            read, expected = (dataset["train"].reader.array("images", rows) for dataset in (remote, local))
            assert np.array_equal(read, expected)
        assert used_bytes(place / "cache") == stored_bytes(place)
        assert not [*place.rglob("*.fetching"), *place.rglob("*.partial")]


def test_one_cache_serves_two_datasets_and_two_splits_in_two_processes(
    url: str, local: Dataset, cache: Path, tmp_path: Path
) -> None:
    limit = ROWS // 2 * ROW_BYTES
    other_local = mmload.open(of_tensors(tmp_path / "other", {"train": {"images": 255 - local["train"][:].images}}))
    push(other_local.path, f"file://{tmp_path}/pushed-other")
    remote = mmload.open(url, cache=cache, cache_limit=limit)
    check_rows(remote, local)
    code = f"""other = mmload.open("file://{tmp_path}/pushed-other", cache={str(cache)!r}, cache_limit={limit})["train"]
split = mmload.open({url!r}, cache={str(cache)!r}, cache_limit={limit})["val"]
for _ in range(5):
    print(*[int(each.reader.array("images", np.arange({ROWS})).sum()) for each in (other, split)])
"""
    process = in_process(code)
    while not process.has_ended:
        check_rows(remote, local)
    assert ended(process) == f"{sum_of(other_local)} {sum_of(local, split='val')}\n" * 5
    assert stored_bytes(cache) <= limit


@pytest.mark.parametrize("limit", [1, ROW_BYTES, 2 * ROW_BYTES])
def test_a_limit_below_one_batch_reads_every_row(url: str, local: Dataset, cache: Path, limit: int) -> None:
    check_rows(mmload.open(url, cache=cache, cache_limit=limit), local)
    assert stored_bytes(cache) <= limit


def test_a_process_stopped_in_a_fetch_does_not_stop_others(
    url: str, local: Dataset, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder, "_WAIT_S", 0.05)
    process = in_process(f"""from mmload.remote.object_store import Objects
def wait(*_): print("waits", flush=True); time.sleep(100)
Objects.get_range = wait
mmload.open({url!r}, cache={str(cache)!r})["train"].reader.array("images", np.arange({ROWS}))
""")
    process.wait_for("waits")
    process.send_signal(signal.SIGSTOP)
    check_rows(mmload.open(url, cache=cache), local)
    process.send_signal(signal.SIGKILL)
    process.ended()
    end_all()
    check_rows(mmload.open(url, cache=cache), local)
    assert stored_bytes(cache) > ROWS * ROW_BYTES


def test_a_survey_of_a_truncated_mark_that_is_killed_leaves_no_count_that_is_too_low(
    url: str, local: Dataset, cache: Path
) -> None:
    remote = mmload.open(url, cache=cache, cache_limit=8 * ROW_BYTES)
    check_rows(remote, local)
    os.truncate(cache / NAME, 0)
    with dying_at(CacheFolder, "_survey"):
        mmload.open(url, cache=cache)
    mmload.open(url, cache=cache)
    assert used_bytes(cache) == stored_bytes(cache) > 0


def test_a_count_that_a_killed_process_left_too_high_is_corrected(url: str, local: Dataset, cache: Path) -> None:
    check_rows(mmload.open(url, cache=cache), local)
    end_all()
    (cache / NAME).write_bytes((cache / NAME).read_bytes()[:-20] + b"%020d" % 10**9)
    mmload.open(url, cache=cache)
    assert used_bytes(cache) == stored_bytes(cache) > ROWS * ROW_BYTES


def test_processes_that_are_killed_leave_nothing_that_is_taken_for_whole(url: str, local: Dataset, cache: Path) -> None:
    draw, limit = random.Random(0), 11 * ROW_BYTES
    code = f"""import random
from mmload.remote import cache_folder, chunk_map
chunk_map.MOST_IDLE, cache_folder._SURVEY_S = 1, 0.0
read = mmload.open({url!r}, cache={str(cache)!r}, cache_limit={limit})["train"].reader.array
print("reads", flush=True)
while True:
    rows = np.array(random.choices(range({ROWS}), k=4))
    read("images", rows)
    if random.random() < 0.2:  # its chunks come again
        [path.unlink(missing_ok=True) for path in Path({str(cache)!r}).rglob("*.chunk")]
"""
    stored = (local.path / "train" / "000000" / "images.memmap").read_bytes()
    for _ in range(3):
        running = [in_process(code) for _ in range(3)]
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
        assert used_bytes(cache) == stored_bytes(cache) <= limit
        assert not [*cache.rglob("*.partial"), *cache.rglob("*.fetching"), *cache.rglob("*.passing")]
        check_rows(remote, local)
        end_all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_forked_meanwhile_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may be counting a chunk when workers of another loader are forked, which live long."""
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.1)
    with files.file_lock(tmp_path / NAME):
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
    try:
        with files.file_lock(tmp_path / NAME):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_to_be_spawned_and_waits_for_no_lock(url: str, local: Dataset, cache: Path) -> None:
    remote = mmload.open(url, cache=cache)
    check_rows(remote, local)
    loader = mmload.Loader(remote["train"], batch_size=ROWS, threads=1, fields=["images"])
    assert len(list(loader)) == 1

    def child() -> None:
        for use in (
            lambda: check_rows(remote, local),
            lambda: list(loader),
            lambda: remote.folder.ensure_index("train", "images"),
            lambda: mmload.open(url, cache=cache),
        ):
            with pytest.raises(UsageError, match="before this process was forked"):
                use()

    chunks = map_of(remote)
    with remote.folder._lock, chunks._lock, chunks.files._lock:  # as threads of this process may, when it forks
        assert in_a_fork(child)
    loader.close()


@pytest.mark.parametrize("content", [b"my own file of that name", b"x" * 1000])
def test_cache_folder_with_a_foreign_mark_raises_and_stays(url: str, cache: Path, content: bytes) -> None:
    cache.mkdir()
    (cache / NAME).write_bytes(content)
    with pytest.raises(UsageError, match="was not written by this version of mmload"):
        mmload.open(url, cache=cache)
    assert (cache / NAME).read_bytes() == content


def test_random_acts_of_one_process_agree_with_a_model(
    url: str, local: Dataset, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens in whatever order, rows are right, and what is kept stays within the limit and the count."""
    draw, limit = random.Random(0), 7 * ROW_BYTES
    monkeypatch.setattr(chunk_map, "MOST_IDLE", 1)
    monkeypatch.setattr(cache_folder, "_SURVEY_S", 0.0)
    remote = mmload.open(url, cache=cache, cache_limit=limit)
    for _ in range(300):
        act = draw.choice(("read", "delete", "replace"))
        files = sorted(cache.rglob("*.chunk*"))
        if act == "read":
            rows = np.array(draw.choices(range(ROWS), k=draw.randrange(1, 9)))
            read, expected = (dataset["train"].reader.array("images", rows) for dataset in (remote, local))
            assert np.array_equal(read, expected)
        elif files:
            path = draw.choice(files)
            size = path.stat().st_size
            path.unlink()  # one that is truncated in its use would end this process
            if act == "replace":
                path.write_bytes(bytes(draw.randrange(size)))
        assert stored_bytes(cache) <= min(limit, used_bytes(cache))
        assert len(list(cache.rglob("*.passing"))) <= 4


def test_a_fetching_thread_that_cannot_start_is_an_error_and_no_wait(url: str, local: Dataset, cache: Path) -> None:
    remote = mmload.open(url, cache=cache)
    with dying_at(chunk_map, "start_new_thread", RuntimeError):
        check_rows(remote, local)
    check_rows(remote, local)
