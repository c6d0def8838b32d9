"""A cache on a local disk: one folder and one limit for several datasets and all processes of a machine.

    CACHE/mmload-cache             marks the folder and counts its bytes; locked while a file comes or goes
    CACHE/mmload-cache.*.incoming  the file that is being written, under that lock
    CACHE/CONTENTS/                a dataset, by what its manifest identifies: its lists, indexes and checksums
    CACHE/CONTENTS/open            locked by each process that has the dataset open
    CACHE/CONTENTS/blocks-BOOT/SPLIT/SHARD/FIELD/NUMBER.block

A block is an immutable file: it is renamed in when it is complete, and unlinked when it has to go. The system keeps an
unlinked file for whoever has it open, so a reader sees a whole block or none, and nothing has to agree with the bytes.
The count is raised before a file comes and lowered after one has gone, so a process that ends in between leaves it too
high, never too low; a survey of the files corrects it. Only files with such names are ever removed.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from mmload.errors import StoreError, UsageError, bytes_text
from mmload.remote.block_files import BlockFiles
from mmload.remote.cache_files import NAME, CacheMark, block_folders, size_of, unlink, write_renamed
from mmload.remote.epoch_plan import Needs, needed_last
from mmload.remote.file_calls import write_files
from mmload.remote.layout import Numbers
from mmload.runtime.durable_files import lock, open_lock

OPEN = "open"
SPARE = 0.01
"""The share of the limit that an eviction frees beyond what is needed, so that not every block asks for one."""

_INCOMING = re.compile(rf"{NAME}\.[0-9a-f]{{16}}\.incoming")
_SURVEY_S, _RETRY_S = 60.0, 1.0  # a survey takes about a second for a million blocks


class OtherFiles(NamedTuple):
    """Files of blocks whose order this process does not know.

    Attributes:
        paths: their paths.
        sizes: int64 [n], bytes.
        unused: bool [n], whether no process has the dataset open.
    """

    paths: list[str]
    sizes: Numbers
    unused: NDArray[np.bool_]


class CacheFolder:
    """Folder of a cache, created if it does not exist, with a limit in bytes or without. Thread-safe.

    Use :func:`cache_folder`.

    Attributes:
        files: files of the fields that this process has open.

    Raises:
        UsageError: if the folder holds something else.
        StoreError: if it cannot be written.
    """

    def __init__(self, path: Path, limit: int | None) -> None:
        self.path, self.limit = path, limit
        self.files: list[BlockFiles] = []
        self._others = OtherFiles([], np.empty(0, np.int64), np.empty(0, np.bool_))
        self._surveyed = -_SURVEY_S
        self._random = np.random.default_rng(0)
        self._incoming = str(path / f"{NAME}.{secrets.token_hex(8)}.incoming")
        try:
            self._mark = CacheMark(path)
            with self.locked() as is_locked:
                if is_locked:
                    self._remove_incoming()
        except OSError as error:
            raise StoreError(f"cannot use {path} as a cache ({error.strerror})") from error

    @property
    def used(self) -> int:
        """Bytes of all blocks, or more if a process has ended while it stored some since the last survey."""
        return self._mark.count or 0

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Holds the lock of all threads and processes; yields False if another process does not give it up in time."""
        with self._mark.locked() as is_locked:
            if is_locked and self._mark.count is None:  # new, or truncated by somebody
                self._survey()
                self._mark.add(0)  # last: after a kill before it, the bytes are counted anew
            yield is_locked

    def store(self, files: Sequence[tuple[str, memoryview]]) -> list[bool]:
        """Stores complete files, if there is room for them and the lock can be had.

        Returns:
            Whether each is stored.

        Raises:
            StoreError: if the folder cannot be written, such as on a full disk.
        """
        stored = [False] * len(files)
        try:
            with self.locked() as is_locked:
                if is_locked and files:
                    self._store(files, stored)
        except FileNotFoundError:  # something removes the folder at this moment
            return stored
        except OSError as error:
            raise StoreError(
                f"cannot write to the cache {self.path} ({error.strerror}); free space there, or give another folder"
            ) from error
        return stored

    def _store(self, files: Sequence[tuple[str, memoryview]], stored: list[bool]) -> None:
        """Stores the first files for which there is room, and marks them in ``stored``; the caller holds the lock."""
        ends = list(accumulate(len(data) for _, data in files))
        fitting = bisect_right(ends, self._room(ends[-1]))
        paths, contents = [path for path, _ in files[:fitting]], [data for _, data in files[:fitting]]
        pending = sum(map(len, contents))  # what is counted, but not there or counted by another process
        self._change(pending)
        done = 0
        try:
            while done < fitting:
                is_new = write_files(self._incoming, paths[done:], contents[done:])
                pending -= sum(len(contents[done + index]) for index in np.flatnonzero(is_new))
                stored[done : done + len(is_new)] = [True] * len(is_new)
                done += len(is_new)
                if done < fitting:  # its folder does not exist, somebody has truncated it, or the disk is full
                    self._change(-unlink(paths[done]))
                    write_renamed(self._incoming, contents[done], paths[done])
                    pending -= len(contents[done])
                    stored[done] = True
                    done += 1
        except BaseException:
            unlink(self._incoming)
            raise
        finally:
            self._change(-pending)

    def _room(self, more: int) -> int:
        """Evicts until `more` bytes fit if possible; returns how many bytes fit. The caller holds the lock."""
        if self.limit is None:
            return more
        if self.used + more > self.limit and time.monotonic() > self._surveyed + _SURVEY_S:
            self._survey()
        self._evict(self.used + more - self.limit)
        if self.used + more > self.limit and time.monotonic() > self._surveyed + _RETRY_S:
            self._survey()  # other processes may have changed what this one expects
            self._evict(self.used + more - self.limit)
        return self.limit - self.used

    def _evict(self, excess: int) -> None:
        """Removes at least `excess` bytes of what is needed last, if there are as many; the caller holds the lock."""
        if excess <= 0:
            return
        known = [files for files in list(self.files) if files.grid.is_evicted]
        length = max((len(files.plan) for files in known if files.plan is not None), default=1)
        needs, sizes = [self._needs_of_others(length)], [self._others.sizes]
        present = [np.flatnonzero(files.expected) for files in known]
        for files, blocks in zip(known, present, strict=True):
            needs.append(self._any_time(len(blocks), length) if files.plan is None else files.plan.next_needs(blocks))
            sizes.append(files.grid.bytes_of(blocks))
        chosen = needed_last(np.concatenate(needs), np.concatenate(sizes), excess + int(SPARE * (self.limit or 0)))
        chosen.sort()
        edges = np.searchsorted(chosen, np.cumsum([0, *map(len, sizes)]))
        parts = [chosen[start:stop] for start, stop in pairwise(edges)]
        freed = self._remove_others(parts[0])
        first = len(sizes[0])
        for files, blocks, part in zip(known, present, parts[1:], strict=True):
            freed += files.remove(blocks[part - first])
            first += len(blocks)
        self._change(-freed)

    def _any_time(self, count: int, length: int) -> Needs:
        """Returns random needs in the later half of an epoch, for blocks whose order is not known."""
        return self._random.uniform(length / 2, length, count).astype(np.float32)

    def _needs_of_others(self, length: int) -> Needs:
        needs = self._any_time(len(self._others.paths), length)
        needs[self._others.unused] = np.inf
        return needs

    def _remove_others(self, chosen: Numbers) -> int:
        freed = sum(unlink(self._others.paths[index]) for index in chosen.tolist())
        keep = np.ones(len(self._others.paths), np.bool_)
        keep[chosen] = False
        paths = [self._others.paths[index] for index in np.flatnonzero(keep).tolist()]
        self._others = OtherFiles(paths, self._others.sizes[keep], self._others.unused[keep])
        return freed

    def _survey(self) -> None:
        """Counts all blocks of the folder, and records which this process can evict; the caller holds the lock."""
        own = {(files.prefix, files.grid.field): files for files in list(self.files)}
        datasets = {prefix.split(os.sep)[-3] for prefix, _ in own}
        found: dict[tuple[str, str], list[Numbers]] = {key: [] for key in own}
        self._remove_incoming()
        total = 0
        paths: list[str] = []
        sizes: list[int] = []
        unused: list[bool] = []
        for folder, names in block_folders(self.path):
            prefix, shard, field = folder.rsplit(os.sep, 2)
            files = own.get((prefix, field))
            index = None if files is None else files.shard_of(int(shard))
            if files is not None and index is None:
                continue
            if files is None or index is None:
                is_unused = folder.split(os.sep)[-5] not in datasets and self._is_unused(folder)
                some = [os.path.join(folder, name) for name in names]
                each = [size_of(path) for path in some]
                paths, sizes, unused = paths + some, sizes + each, unused + [is_unused] * len(each)
                total += sum(each)
            else:
                numbers = np.array([int(name.partition(".")[0]) for name in names], np.int64)
                numbers = numbers[numbers < files.grid.starts[index + 1] - files.grid.starts[index]]
                found[prefix, field].append(numbers + files.grid.starts[index])
        for key, numbers_of in found.items():
            files, present = own[key], np.concatenate([np.empty(0, np.int64), *numbers_of])
            files.expected[:] = False
            files.expected[present] = True
            total += int(files.grid.bytes_of(present).sum())
        self._others = OtherFiles(paths, np.array(sizes, np.int64), np.array(unused, np.bool_))
        self._surveyed = time.monotonic()
        self._change(total - self.used)

    def _remove_incoming(self) -> None:
        """Removes what killed processes left while they stored a file; the caller holds the lock."""
        for entry in os.scandir(self.path):
            if _INCOMING.fullmatch(entry.name):
                unlink(entry.path)

    def _is_unused(self, folder: str) -> bool:
        """Returns whether no process has the dataset of a folder of blocks open."""
        with suppress(OSError), open_lock(Path(folder).parents[3] / OPEN) as lock_file:
            return lock(lock_file)
        return False

    def _change(self, change: int) -> None:
        """Adds to the number of bytes; the caller holds the lock."""
        if change:
            self._mark.add(change)


_FOLDERS: WeakValueDictionary[Path, CacheFolder] = WeakValueDictionary()


def cache_folder(path: Path, limit: int | None) -> CacheFolder:
    """Returns the cache at a path: one object for all datasets of this process, so that each knows the others' orders.

    Raises:
        UsageError: if it is open with another limit, or as :class:`CacheFolder`.
        StoreError: as :class:`CacheFolder`.
    """
    folder = _FOLDERS.get(path)
    if folder is None:
        folder = _FOLDERS[path] = CacheFolder(path, limit)
    if folder.limit != limit:
        raise UsageError(
            f"the cache {path} is open in this process with cache_limit={_limit_text(folder.limit)}, not "
            f"{_limit_text(limit)}; give the same limit to all datasets that share a cache"
        )
    return folder


def _limit_text(limit: int | None) -> str:
    return "None" if limit is None else bytes_text(limit)
