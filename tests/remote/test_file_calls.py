"""Files that are read and written by one call."""

from __future__ import annotations

import gc
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from mmload.remote.file_calls import file_sizes, map_files, read_files, unmap_files, write_files
from mmload.runtime.resident_pages import can_populate
from mmload.store.row_map import _system_mmap, reserved

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the calls of POSIX")


@pytest.mark.parametrize("count", [0, 1, 64, 65, 200])
def test_files_written_by_one_call_are_read_by_one_call(tmp_path: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    contents = [memoryview(generator.bytes(int(size))) for size in generator.integers(0, 20_000, count)]
    paths = [str(tmp_path / f"ä {index}") for index in range(count)]
    assert write_files(str(tmp_path / "incoming"), paths, contents).tolist() == [True] * count
    offsets = np.array([min(len(content), 7) for content in contents], np.int64)
    outs = [memoryview(bytearray(len(content) - offset)) for content, offset in zip(contents, offsets, strict=True)]
    sizes = np.array([*map(len, contents)], np.int64)
    assert read_files(paths, sizes, offsets, outs).tolist() == [*map(len, outs)]
    assert all(out == content[offset:] for out, content, offset in zip(outs, contents, offsets, strict=True))
    assert file_sizes([*paths, str(tmp_path / "absent")]).tolist() == [*map(len, contents), -1]
    assert len(list(tmp_path.iterdir())) == count


def test_reading_tells_what_could_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"12345")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    paths = [str(tmp_path / name) for name in ("absent", "short", "folder", "pipe", "short", "short")]
    outs = [memoryview(bytearray(4)) for _ in paths]
    sizes = np.array([5, 5, 5, 0, 5, 4])
    assert read_files(paths, sizes, np.array([0, 2, 0, 0, 9, 0]), outs).tolist() == [-1, 3, -1, -1, 0, -1]
    assert bytes(outs[1]) == b"345\0"


@pytest.mark.parametrize("obstacle", ["no folder", "other size", "folder", "incoming"])
def test_writing_ends_at_what_cannot_be_written(tmp_path: Path, obstacle: str) -> None:
    paths = [str(tmp_path / name) for name in ("old", "new", "third", "last")]
    Path(paths[0]).write_bytes(b"OLD")
    if obstacle == "no folder":
        paths[2] = str(tmp_path / "absent" / "third")
    elif obstacle == "other size":
        Path(paths[2]).write_bytes(b"4444")
    elif obstacle == "folder":
        Path(paths[2]).mkdir()
    else:
        (tmp_path / "incoming").mkdir()
    is_new = write_files(str(tmp_path / "incoming"), paths, [memoryview(b"abc")] * 4)
    assert is_new.tolist() == ([False] if obstacle == "incoming" else [False, True])
    assert Path(paths[0]).read_bytes() == b"OLD"
    assert not Path(paths[3]).exists()
    if obstacle == "other size":
        assert Path(paths[2]).read_bytes() == b"4444"


def test_descriptors_are_closed(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the system does not list descriptors")
    gc.collect()  # files of other tests are closed now, and not between the two counts
    before = len(os.listdir("/proc/self/fd"))
    paths = [str(tmp_path / str(index)) for index in range(9)]
    for _ in range(3):
        write_files(str(tmp_path / "incoming"), [*paths, str(tmp_path / "absent" / "0")], [memoryview(b"abc")] * 10)
        file_sizes(paths)
        for size in (3, 4):
            sizes, firsts = np.full(9, size, np.int64), np.zeros(9, np.int64)
            read_files(paths, sizes, firsts, [memoryview(bytearray(3)) for _ in paths])
            if can_populate():
                memory = reserved(9 * mmap.PAGESIZE)
                places = memory.ctypes.data + np.arange(9, dtype=np.uintp) * np.uintp(mmap.PAGESIZE)
                handles = map_files(paths, sizes, places, firsts, sizes)
                assert (handles >= 0).all() == (size == 3)
                assert bytes(memory[:3]) == (b"abc" if size == 3 else b"\0\0\0")
                assert unmap_files(memory.ctypes.data, len(memory), handles, sizes)
                assert not memory.any()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not can_populate(), reason="this system cannot populate maps")
def test_memory_over_which_a_file_could_not_be_read_can_be_written(tmp_path: Path) -> None:
    page, kind = mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
    (tmp_path / "file").write_bytes(b"x" * page)
    memory = reserved(2 * page)
    here = memory.ctypes.data
    _system_mmap()(here + page, page, 0, kind, -1, 0)  # may not be read, as a part on a failed disk
    sizes, part = np.array([page]), (np.array([0]), np.array([page + 1]))
    assert map_files([str(tmp_path / "file")], sizes, np.array([here], np.uintp), *part).tolist() == [-1]
    with open(tmp_path / "file", "rb") as file:  # the system writes, where an assignment could end the process
        assert os.preadv(file.fileno(), [memory[:page].data], 0) == page
