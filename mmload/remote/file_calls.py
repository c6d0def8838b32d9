"""Reads and writes many small files in one call, without the interpreter lock.

From Python, each system call releases the lock and waits to get it back: a file costs four such waits, which took a
millisecond beside threads that compute.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mmload.runtime.declarations import External
from mmload.runtime.numba_compile import numba_compiled
from mmload.runtime.resident_pages import POPULATE_READ, WILLNEED

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Addresses = npt.NDArray[np.uintp]

_OPEN = External("open", "int32(uintp, int32)")
_CREATE = External("creat", "int32(uintp, int32)")
_CLOSE = External("close", "int32(int32)")
_ADVISE = External("posix_fadvise", "int32(int32, int64, int64, int32)")
_READ = External("pread", "int64(int32, uintp, uintp, int64)")
_WRITE = External("write", "int64(int32, uintp, uintp)")
_SEEK = External("lseek", "int64(int32, int64, int32)")
_RENAME = External("rename", "int32(uintp, uintp)")
_MAP = External("mmap", "uintp(uintp, uintp, int32, int32, int32, int64)")
_MADVISE = External("madvise", "int32(uintp, uintp, int32)")

_FLAGS = sum(getattr(os, name, 0) for name in ("O_RDONLY", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY"))  # no wait for a FIFO
_WILLNEED = getattr(os, "POSIX_FADV_WILLNEED", -1)  # -1: macOS, where the call does not exist
_END = os.SEEK_END
_MODE = 0o666  # less what the process's mask takes away
_AT_ONCE = 64
_PAGE = mmap.PAGESIZE
_READ_ONLY, _READ_WRITE = 1, 3
_OVER, _NOTHING = 0x11, 0x4032  # MAP_SHARED and MAP_FIXED of Linux; the same private, anonymous, without a reserve


def read_files(paths: Sequence[str], sizes: Numbers, offsets: Numbers, outs: Sequence[memoryview]) -> Numbers:
    """Reads a part of each file. Up to 64 files are requested at a time, so that a disk is not idle.

    Args:
        paths: B files.
        sizes: int64 [B], the bytes that each must have, before and after it is read.
        offsets: int64 [B], the first byte of each part.
        outs: memory for each part, of as many bytes as are read.

    Returns:
        int64 [B], how many bytes were read of each; -1 where the file cannot be opened, or has another size.
    """
    names, starts = _names(paths)
    got = np.empty(len(paths), np.int64)
    addresses, lengths = _memory(outs)
    _read_files(names, starts, sizes, offsets, addresses, lengths, got)
    return got


def map_files(paths: Sequence[str], sizes: Numbers, addresses: Addresses, firsts: Numbers, stops: Numbers) -> Numbers:
    """Maps complete files over reserved addresses, and brings a part of each into memory.

    Args:
        paths: B files.
        sizes: int64 [B], the bytes that each must have.
        addresses: uintp [B], where each is mapped, at the begin of a page.
        firsts: int64 [B], the first byte of each part.
        stops: int64 [B], the byte after its last.

    Returns:
        int64 [B], the descriptor of each, for :func:`unmap_files`; -1 where a file does not exist, has another size or
        cannot be read.
    """
    names, starts = _names(paths)
    handles = np.empty(len(paths), np.int64)
    _map_files(names, starts, sizes, addresses, firsts, stops, handles)
    return handles


def unmap_files(address: int, length: int, handles: Numbers, sizes: Numbers) -> bool:
    """Unmaps all files over a range of addresses, which stays reserved, and closes them.

    Args:
        address: address of the first byte.
        length: bytes.
        handles: int64 [B], as :func:`map_files` has returned them.
        sizes: int64 [B], the bytes that each must still have.

    Returns:
        Whether they have; a file that was overwritten meanwhile has or had another size.
    """
    return bool(_unmap_files(address, length, handles, sizes))


def file_sizes(paths: Sequence[str]) -> Numbers:
    """Returns the bytes of each file, int64 [B]; -1 where it cannot be opened."""
    names, starts = _names(paths)
    sizes = np.empty(len(paths), np.int64)
    _file_sizes(names, starts, sizes)
    return sizes


def write_files(incoming: str, paths: Sequence[str], contents: Sequence[memoryview]) -> Flags:
    """Writes files in turn, each under the name ``incoming`` first, until one cannot be written.

    An existing file of the same size stays as it is; one of another size counts as one that cannot be written.

    Args:
        incoming: a path on the same file system; may remain if a file cannot be written.
        paths: B files.
        contents: bytes of each file.

    Returns:
        bool [up to B], whether each of the first files was written, and did not exist.
    """
    names, starts = _names([*paths, incoming])
    is_new = np.zeros(len(paths), np.bool_)
    done = _write_files(names, starts, *_memory(contents), is_new)
    return is_new[:done]


def _names(paths: Sequence[str]) -> tuple[Bytes, Numbers]:
    """Returns the names one after another, each with a zero byte, and the start of each."""
    encoded = [os.fsencode(path) for path in paths]
    starts = np.cumsum([0, *(len(name) + 1 for name in encoded)])[:-1]
    return np.frombuffer(b"\0".join(encoded) + b"\0", np.uint8), starts


def _memory(parts: Sequence[memoryview]) -> tuple[Addresses, Numbers]:
    """Returns the address and the bytes of each part."""
    arrays = [np.frombuffer(part, np.uint8) for part in parts]
    return np.array([array.ctypes.data for array in arrays], np.uintp), np.array([*map(len, arrays)], np.int64)


@numba_compiled(
    "void(Array(uint8, 1, 'C', readonly=True), int64[::1], int64[::1], int64[::1], uintp[::1], int64[::1], int64[::1])"
)
def _read_files(
    names: Bytes,
    starts: Numbers,
    sizes: Numbers,
    offsets: Numbers,
    outs: Addresses,
    lengths: Numbers,
    got: Numbers,
) -> None:
    handles = np.empty(_AT_ONCE, np.int32)
    for first in range(0, len(starts), _AT_ONCE):
        stop = min(len(starts), first + _AT_ONCE)
        for k in range(first, stop):
            handle = handles[k - first] = _OPEN(names.ctypes.data + starts[k], _FLAGS)
            if _WILLNEED >= 0 and handle >= 0:
                _ADVISE(handle, offsets[k], lengths[k], _WILLNEED)
        for k in range(first, stop):
            handle = handles[k - first]
            got[k] = -1
            if handle >= 0 and _SEEK(handle, 0, _END) == sizes[k]:
                done = more = 0
                while done < lengths[k]:
                    more = _READ(handle, outs[k] + done, lengths[k] - done, offsets[k] + done)
                    if more <= 0:
                        break
                    done += more
                if _SEEK(handle, 0, _END) == sizes[k]:
                    got[k] = done
            if handle >= 0:
                _CLOSE(handle)


@numba_compiled(
    "void(Array(uint8, 1, 'C', readonly=True), int64[::1], int64[::1], uintp[::1], int64[::1], int64[::1], int64[::1])"
)
def _map_files(
    names: Bytes,
    starts: Numbers,
    sizes: Numbers,
    addresses: Addresses,
    firsts: Numbers,
    stops: Numbers,
    handles: Numbers,
) -> None:
    for k in range(len(starts)):
        handle = handles[k] = _OPEN(names.ctypes.data + starts[k], _FLAGS)
        if handle < 0:
            continue
        is_whole = _SEEK(handle, 0, _END) == sizes[k]
        if is_whole and _MAP(addresses[k], sizes[k], _READ_ONLY, _OVER, handle, 0) == addresses[k]:
            first = firsts[k] // _PAGE * _PAGE
            _MADVISE(addresses[k] + first, stops[k] - first, WILLNEED)
        else:
            _CLOSE(handle)
            handles[k] = -1
    for k in range(len(starts)):
        first = firsts[k] // _PAGE * _PAGE
        if handles[k] >= 0 and _MADVISE(addresses[k] + first, stops[k] - first, POPULATE_READ) != 0:
            _CLOSE(handles[k])
            handles[k] = -1
            _MAP(addresses[k], sizes[k], _READ_WRITE, _NOTHING, -1, 0)  # else what is written there ends the process


@numba_compiled("boolean(uintp, int64, int64[::1], int64[::1])")
def _unmap_files(address: int, length: int, handles: Numbers, sizes: Numbers) -> bool:
    is_right = True
    for k in range(len(handles)):
        if handles[k] >= 0:
            is_right &= _SEEK(handles[k], 0, _END) == sizes[k]
            _CLOSE(handles[k])
    _MAP(address, length, _READ_WRITE, _NOTHING, -1, 0)
    return is_right


@numba_compiled("void(Array(uint8, 1, 'C', readonly=True), int64[::1], int64[::1])")
def _file_sizes(names: Bytes, starts: Numbers, sizes: Numbers) -> None:
    for k in range(len(starts)):
        handle = _OPEN(names.ctypes.data + starts[k], _FLAGS)
        sizes[k] = -1
        if handle >= 0:
            sizes[k] = _SEEK(handle, 0, _END)
            _CLOSE(handle)


@numba_compiled("int64(Array(uint8, 1, 'C', readonly=True), int64[::1], uintp[::1], int64[::1], bool_[::1])")
def _write_files(names: Bytes, starts: Numbers, contents: Addresses, lengths: Numbers, is_new: Flags) -> int:
    """Writes files for :func:`write_files`; returns how many exist."""
    incoming = names.ctypes.data + starts[-1]
    for k in range(len(lengths)):
        path = names.ctypes.data + starts[k]
        handle = _OPEN(path, _FLAGS)
        if handle >= 0:
            size = _SEEK(handle, 0, _END)
            _CLOSE(handle)
            if size != lengths[k]:
                return k
            continue
        handle = _CREATE(incoming, _MODE)
        if handle < 0:
            return k
        done = 0
        while done < lengths[k]:
            more = _WRITE(handle, contents[k] + done, lengths[k] - done)
            if more <= 0:
                break
            done += more
        if _CLOSE(handle) != 0 or done < lengths[k] or _RENAME(incoming, path) != 0:
            return k
        is_new[k] = True
    return len(lengths)
