"""Folder of an open dataset and its files: as they were when it was opened, read by position, or mapped.

Opening takes the inode, size and time of modification of every file of the shards. A file is opened at its first use,
and is the one that was there then, or an error: so rows of a dataset that takes the place of another are never read as
rows of that. A file that is unlinked or replaced later is read as it was. Files can also be overwritten in place under
a reader (``cp -r new/. old/``, ``rsync --inplace``): data is valid only after a check of its file, one ``fstat``.

Files of rows are mapped as one copy-on-write array. Its rows are brought in by a call that returns an error if they
cannot be read. A page that goes after that, as its file is truncated or its disk fails, ends the process by a SIGBUS
when it is touched, as in every program that maps files. Imports no torch: ``mmload info`` needs no more than this.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import resource
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, MmloadError, StoreError, bytes_text
from mmload.records import FieldSpec
from mmload.runtime.files import open_regular
from mmload.runtime.kernels import RecordArray, filled, numba_compiled
from mmload.runtime.resources import free_memory
from mmload.store.checksum import crc32
from mmload.store.manifest import BYTES, FILE_NAME, META_NAME, OFFSETS, FileRecord, Manifest, files_of, tensordict_meta
from mmload.store.row_numbers import Numbers
from mmload.store.versions import read_any

if TYPE_CHECKING:
    from mmload.runtime.resident_pages import FileRanges

_TRIES = 10

_CACHED = 8
"""One in so many rows that are read again stays cached, so that memory that becomes free is used: one in 16 or 32 has
the same rate, one in 4 has 0.85 of it."""

_HITS = 4
"""So many bytes found in the page cache outweigh one that is read: an eviction after four epochs is forgiven."""

Revision = tuple[int, int, int]
"""Identifies the content of a file without reading it: inode, size and time of modification."""


class Folder:
    """Folder of a dataset. Thread-safe; picklable: a copy opens the path again and checks that it is the same dataset.

    An update adds a version beside the one that was read, whose files stay.

    Attributes:
        path: absolute, as it was given.
        manifest: the manifest that was read.

    Args:
        root: the folder at the path: a link to the current dataset may lead to another one later.
        revisions: of the files of the shards, by their paths below it.
    """

    def __init__(self, path: Path, root: Path, manifest: Manifest, revisions: Mapping[str, Revision]) -> None:
        self.path, self.manifest, self._root, self._revisions = path, manifest, root, revisions

    def __reduce__(self) -> tuple[Any, ...]:
        return open_again, (self.path, self.manifest.version, self.identity)

    @property
    def identity(self) -> str:
        """Digest of everything that determines the rows; equal for copies of a dataset."""
        return self.manifest.contents

    @property
    def title(self) -> str:
        """Name of the dataset in messages."""
        return str(self.path)

    @property
    def remedy(self) -> str:
        """Advice in messages about damage."""
        return f"run: mmload verify {self.path}"

    def name(self, file: str) -> str:
        """Returns a file's absolute path; a str, as a Path would double the time to open many."""
        return os.path.join(self._root, file)

    def revision(self, file: str) -> Revision | None:
        """Returns the revision of a file of a shard when the dataset was opened; None of other files."""
        return self._revisions.get(file)

    def open(self, file: str, record: FileRecord) -> int:
        """Opens a file, given by its path inside the folder and its record; returns a descriptor.

        Raises:
            StoreError: if it cannot be opened, or is no regular file.
        """
        try:
            return open_regular(self.name(file))
        except OSError as error:
            if error.errno == errno.EMFILE and allow_more_files():
                return self.open(file, record)
            what = f"cannot open {self.name(file)} ({error.strerror})"
            if error.errno == errno.ENOENT:
                what += ": it was removed or replaced while the dataset was open; open it again"
            raise StoreError(what) from error


def allow_more_files() -> bool:
    """Raises the soft limit of open files (often 1,024) to the hard limit; returns whether that changed anything.

    Each field of each shard is a file: 2 TB in shards of 1 GiB with targets are 4,000 files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return soft != hard
    return False


def revision_of(status: os.stat_result) -> Revision:
    """Returns a file's revision, without the device, whose number may differ between containers."""
    return status.st_ino, status.st_size, status.st_mtime_ns


class OpenedFile:
    """Open file of a dataset, of the revision that it had when the dataset was opened. Thread-safe.

    Attributes:
        handle: the descriptor, closed with this object.
        path: absolute, for messages.
        size: bytes of the file.

    Raises:
        StoreError: if it cannot be opened, or was written to or replaced since the dataset was opened.
        DamagedError: if it was truncated.
    """

    def __init__(self, folder: Folder, file: str, record: FileRecord) -> None:
        self.handle = folder.open(file, record)
        self.path, self.size = folder.name(file), record.bytes
        self._crc32, self._remedy = record.crc32, folder.remedy
        self._revision = folder.revision(file) or revision_of(os.fstat(self.handle))
        self.check()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound early: at exit the module may be gone
        handle = self.__dict__.get("handle")
        if handle is not None:
            close(handle)

    def check(self) -> None:
        """Checks that everything read so far belongs to the dataset that was opened; call it after reading.

        Raises:
            StoreError: if the file was written to, or its file system has gone.
            DamagedError: if it was truncated.
        """
        try:
            current = revision_of(os.fstat(self.handle))
        except OSError as error:
            raise StoreError(f"cannot read the state of {self.path} ({error.strerror})") from error
        if current[1] < self.size:
            raise self.damaged(f"it ends at byte {current[1]}, the manifest says {self.size}: it was truncated")
        if current != self._revision:
            raise StoreError(
                f"{self.path} was written to or replaced while the dataset was open; open it again, or {self._remedy}"
            )

    def prefetch(self, offset: int, size: int) -> None:
        """Asks the system to read a range ahead; only a hint."""
        with suppress(OSError, AttributeError):  # macOS has no such call
            os.posix_fadvise(self.handle, offset, size, os.POSIX_FADV_WILLNEED)

    def fill(self, out: memoryview, offset: int) -> None:
        """Reads bytes from ``offset`` on into ``out``; they are valid after :meth:`check`.

        Raises:
            StoreError: if the file cannot be read.
            DamagedError: if it ends before.
        """
        done = 0
        while done < len(out):
            try:
                got = os.preadv(self.handle, [out[done:]], offset + done)
            except OSError as error:
                raise StoreError(f"cannot read {self.path} ({error.strerror})") from error
            if got == 0:
                raise self.damaged(f"it ends at byte {offset + done}, before its last row: it was truncated")
            done += got

    def fill_checked(self, out: memoryview) -> None:
        """Reads the complete file into ``out``, and compares its checksum with the manifest's.

        Raises:
            StoreError: if the file cannot be read, or was written to.
            DamagedError: if it ends before, or has another checksum.
        """
        self.fill(out, 0)
        self.check()
        if f"{crc32(out):08x}" != self._crc32:
            raise self.damaged("checksum mismatch")

    def damaged(self, reason: str) -> DamagedError:
        """Returns the error of the file: what is wrong, and what to do."""
        return DamagedError(f"{self.path} is damaged: {reason}; {self._remedy}")


def open_folder(path: str | Path, version: int | None = None) -> tuple[Folder, Manifest]:
    """Returns a dataset's folder and manifest, which match the sizes of its files, even while the dataset is replaced.

    Takes O(shards), not O(rows).

    Raises:
        StoreError: if there is no finished dataset, or no such version of it.
        VersionError: if it is of another format version.
        DamagedError: if its files do not have the sizes that the manifest says.
    """
    path = Path(path).absolute()
    for _ in range(_TRIES):
        root = Path(os.path.realpath(path))
        before = _manifest_status(root)
        try:
            manifest = read_any(root, version)
            folder = Folder(path, root, manifest, _revisions(root, manifest))
        except StoreError:
            if _manifest_status(root) == before:
                raise
        else:
            if _manifest_status(root) == before:
                return folder, manifest
    raise StoreError(f"the dataset {path} is being replaced again and again; open it when that has ended")


def open_again(path: Path, version: int, identity: str) -> Folder:
    """Opens a dataset that was opened before.

    Raises:
        StoreError: if the path holds another dataset; as :func:`open_folder`.
    """
    folder, _ = open_folder(path, version)
    if folder.identity != identity:
        raise StoreError(f"the dataset {path} was replaced or removed while it was open; open it again")
    return folder


def _manifest_status(path: Path) -> tuple[object, ...] | None:
    """Returns what identifies the current ``dataset.json`` without reading it; None if it does not exist."""
    with suppress(OSError):
        status = os.stat(path / FILE_NAME)
        return status.st_dev, *revision_of(status)
    return None


def _revisions(path: Path, manifest: Manifest) -> dict[str, Revision]:
    """Compares the sizes of the shards' files with the manifest, and returns their revisions."""
    advice = f"run: mmload verify {path} --repair --source ROOT"
    found = {}
    for split, record in manifest.built_splits.items():
        for index, shard in enumerate(record.shards):
            for name, expected in shard.files.items():
                file = f"{record.shard_folder(split, index)}/{name}.memmap"
                full = os.path.join(path, file)  # a Path would double the time to open many
                try:
                    status = os.stat(full)
                except FileNotFoundError as error:
                    raise DamagedError(f"{full} is missing; {advice}") from error
                except OSError as error:
                    raise DamagedError(f"{full} cannot be read ({error.strerror})") from error
                if not stat.S_ISREG(status.st_mode):
                    raise DamagedError(f"{full} is not a file; {advice}")
                if status.st_size != expected.bytes:
                    what = "was truncated" if status.st_size < expected.bytes else "was written to"
                    have = f"{full} has {status.st_size:,} bytes, the manifest says {expected.bytes:,}"
                    raise DamagedError(f"{have}: it {what}; {advice}")
                found[file] = revision_of(status)
    return found


def check_no_links(root: Path, names: Iterable[str]) -> None:
    """Checks that no part of some paths below a folder is a link, before a command writes or removes them.

    The folder itself may be one. What a link leads to may belong to another dataset.

    Raises:
        StoreError: naming the first link.
    """
    for name in names:
        place = root
        for part in name.split("/"):
            place /= part
            if place.is_symlink():
                raise StoreError(
                    f"{place} is a link to {os.readlink(place)}, and nothing is written or removed behind links; "
                    "put the file or folder itself in its place, then run this again"
                )


@dataclass(frozen=True, kw_only=True)
class DatasetFile:
    """File that a dataset must have.

    Attributes:
        split: the split's name.
        shard: the shard's number; None for the split's lists of samples.
        name: relative to the dataset's folder.
        record: its size and checksum.
        row_bytes: bytes of a row, in a file of rows; else None.
        offsets: for a file of variable-size rows, the file that says where each begins; else None.
        content: content of a file that follows from the manifest; else None.
    """

    split: str
    shard: int | None
    name: str
    record: FileRecord
    row_bytes: int | None = None
    offsets: str | None = None
    content: bytes | None = None


def dataset_files(manifest: Manifest) -> Iterator[DatasetFile]:
    """Yields all files of a dataset but ``dataset.json``, split by split, shard by shard."""
    for name, split in manifest.splits.items():
        files = files_of(split.fields)
        own = split.shards if split.subset_of is None else ()
        for index, shard in enumerate(own):
            folder = split.shard_folder(name, index)
            meta = tensordict_meta(split.fields, shard).encode()
            record = FileRecord(bytes=len(meta), crc32=f"{crc32(meta):08x}")
            yield DatasetFile(split=name, shard=index, name=f"{folder}/{META_NAME}", record=record, content=meta)
            for field, record in shard.files.items():
                yield DatasetFile(
                    split=name,
                    shard=index,
                    name=f"{folder}/{field}.memmap",
                    record=record,
                    row_bytes=files[field].spec.row_bytes,
                    offsets=None
                    if files[field].counted or files[field].is_list
                    else f"{folder}/{field.removesuffix(BYTES)}{OFFSETS}.memmap",
                )
        for file, record in split.lists.items():
            yield DatasetFile(split=name, shard=None, name=f"{name}/{file}", record=record)


ROW = np.dtype(
    [
        ("file", np.int64),
        ("offset", np.int64),
        ("bytes", np.int64),
        ("height", np.int32),
        ("width", np.int32),
        ("encoding", np.uint8),
    ],
    align=True,
)
"""Place of a row: the number of its file, its first byte there, and its bytes; height and width of an image or a mask,
else 0; and its encoding, :data:`~mmload.store.variable_rows.RAW` or :data:`~mmload.store.variable_rows.JPEG`."""

Places = npt.NDArray[np.void]
"""Structured [B] of :data:`ROW`."""

MOST_FILES = 16_000
"""Upper bound on mapped files: a process may have 65,530 maps on Linux, and a file and its gap are two."""

_FIXED = 0x10  # MAP_FIXED of Linux and macOS, which the mmap module does not have
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0x40  # MAP_NORESERVE: else a map larger than the memory is refused
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class PreparedRows(NamedTuple):
    """Rows in use, which are in memory or on their way to it.

    Attributes:
        map: where they are mapped.
        places: [B], their places in their files.
        files: int64 [B], the range of the map that each is in.
        starts: int64 [B], the first byte of each in the map.
        absent: int64 [B], the bytes of each that have to be read.
        end: ends the use.
    """

    map: MappedRows
    places: Places
    files: Numbers
    starts: Numbers
    absent: Numbers
    end: Callable[[], object] = lambda: None


def reserved(size: int) -> npt.NDArray[np.uint8]:
    """Reserves addresses over which files can be mapped; released with the array.

    Returns:
        uint8 [size], zeros that take no memory until they are written.

    Raises:
        StoreError: if there are not enough addresses.
    """
    kind = mmap.MAP_PRIVATE | _NO_RESERVE | mmap.MAP_ANONYMOUS
    try:
        return np.frombuffer(mmap.mmap(-1, size, flags=kind, prot=_READ_WRITE), dtype=np.uint8)
    except OSError as error:
        why = f"rows of {bytes_text(size)} cannot be mapped ({error.strerror})"
        raise StoreError(f"{why}; raise the limit of address space (ulimit -v)") from error


NO_HANDLE = -1


def map_over(address: int, size: int, handle: int, path: str | Path) -> None:
    """Maps a file over reserved addresses, copy-on-write: writes never reach it. No handle: gives its pages back.

    The descriptor may be closed afterwards.

    Raises:
        StoreError: if it cannot be mapped; the message names the path.
    """
    kind = mmap.MAP_PRIVATE | _FIXED | _NO_RESERVE | (mmap.MAP_ANONYMOUS if handle == NO_HANDLE else 0)
    if system_mmap()(address, size, _READ_WRITE, kind, handle, 0) != address:
        raise StoreError(f"cannot map {path} ({os.strerror(ctypes.get_errno())})")


@cache
def system_mmap() -> Callable[[int, int, int, int, int, int], int | None]:
    """Returns ``mmap`` of the C library: Python's own does not take an address."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    number, size = ctypes.c_int, ctypes.c_size_t
    function.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_longlong)
    typed: Callable[[int, int, int, int, int, int], int | None] = function
    return typed


def row_map(files: Callable[[], Sequence[OpenedFile]], spec: FieldSpec, ranks: int = 1) -> RowMap | None:
    """Maps files of rows; returns None where they cannot be mapped, or not be brought in safely."""
    from mmload.runtime.resident_pages import can_populate

    try:
        opened = files() if can_populate() else []
        if not sum(file.size for file in opened) or len(opened) > MOST_FILES:
            return None
        return RowMap(opened, spec.row_bytes if spec.encoding is None else 1, ranks)
    except (OSError, MmloadError):  # too many addresses; or a file that cannot be read, which may not be needed
        return None


class MappedRows(Protocol):
    """Files of a field, or chunks of them, as one array. Thread-safe.

    Attributes:
        memory: uint8 [n]. What is written there stays in this process; only prepared rows may be read.
        ranges: the files, or chunks, in ``memory``.
        most_rows: upper bound on the rows that can be prepared at once.
    """

    memory: npt.NDArray[np.uint8]
    ranges: FileRanges
    most_rows: int = 2**31

    def prepare(self, places: Places) -> PreparedRows:
        """Begins to bring rows, or parts of them, into memory.

        Raises:
            MmloadError: if a file has to be fetched before, and cannot be.
        """

    def release(self, prepared: PreparedRows) -> None:
        """Ends the use of rows."""

    def reason(self, file: int, why: str) -> MmloadError:
        """Returns the error of one of the files, which the system does not read for the reason that is given."""

    def begun(self, places: Places, files: Numbers, starts: Numbers, lengths: Numbers) -> PreparedRows:
        """Asks the system to read rows that are mapped."""
        from mmload.runtime.resident_pages import can_populate, prefetch

        absent = (
            prefetch(self.memory, self.ranges, files, starts, lengths) if can_populate() else np.zeros_like(lengths)
        )
        return PreparedRows(self, places, files, starts, absent)

    def wait(self, prepared: PreparedRows, group: slice) -> None:
        """Waits until some of the prepared rows are in memory.

        Raises:
            DamagedError, StoreError: as :meth:`error_of`.
        """
        from mmload.runtime.resident_pages import make_resident

        absent = prepared.absent[group]
        if absent.any():
            lengths = np.ascontiguousarray(prepared.places["bytes"][group])
            at = prepared.files[group], prepared.starts[group], lengths, absent
            failed = make_resident(self.memory.ctypes.data, self.ranges, *at)
            if failed >= 0:
                raise self.error_of(prepared, group.indices(len(prepared.places))[0] + failed)

    def error_of(self, prepared: PreparedRows, row: int) -> Exception:
        """Returns the error of the file of a prepared row that cannot be read."""
        from mmload.runtime.resident_pages import POPULATE_READ, advise

        start, length = int(prepared.starts[row]), int(prepared.places["bytes"][row])
        code = advise(self.memory.ctypes.data + start, length, POPULATE_READ)
        return self.reason(int(prepared.files[row]), os.strerror(code or errno.EIO))


class EvictionPolicy:
    """Choice of the rows to evict after their use from a page cache that is too small for all.

    The system evicts the rows of longest ago. Of an order that is drawn for each epoch, a page cache of half of the
    rows serves 0.15 then; of a fixed order nothing. If rows that had been evicted before are evicted at once, the
    others stay and serve half of each epoch.

    ``size`` is the bytes of all files, or this rank's part of them.
    """

    def __init__(self, size: int) -> None:
        self._size, self._absent_rows = size, 0
        self._excess = -size  # bytes read beyond those of all files, which had been evicted: only then it evicts

    def choose(self, starts: Numbers, lengths: Numbers, absent: Numbers) -> tuple[Numbers, Numbers]:
        """Returns what to evict after a batch of parts, of whose bytes so many had to be read, int64 [B] each.

        Parts that overlap, as of a row that is repeated, are read and evicted once.

        Returns:
            The index of the first part of each range to evict, and the bytes of the range.
        """
        if self._excess == -self._size and not any(absent.tolist()):  # which keeps the interpreter lock
            return absent[:0], absent[:0]
        read: Numbers = np.flatnonzero(absent)
        read = read[np.argsort(starts[read])]
        begins, stops, is_first = starts[read], starts[read] + lengths[read], np.ones(len(read), np.bool_)
        is_first[1:] = begins[1:] >= np.maximum.accumulate(stops)[:-1]
        firsts = np.flatnonzero(is_first)
        sizes: Numbers = np.maximum.reduceat(stops, firsts) - begins[firsts]
        read_bytes = int(np.minimum(np.add.reduceat(absent[read], firsts), sizes).sum())
        excess = self._excess + read_bytes - int(lengths[absent == 0].sum()) // _HITS
        self._excess = min(max(excess, -self._size), self._size // _HITS)
        if self._excess <= 0:
            return read[:0], sizes[:0]
        numbers = np.arange(len(firsts)) + self._absent_rows
        self._absent_rows += len(firsts)
        evicted = numbers % _CACHED != 0
        return read[firsts[evicted]], sizes[evicted]


class RowMap(MappedRows):
    """Files of a field as one array.

    Args:
        files: at least one.
        unit: bytes of a row; files begin at multiples of it, so that rows can be indexed over all files.
        ranks: number of ranks of this machine, each of which reads a part of an epoch.

    Raises:
        StoreError: if a file cannot be mapped.
    """

    def __init__(self, files: Sequence[OpenedFile], unit: int, ranks: int) -> None:
        from mmload.runtime import resident_pages as pages  # compiled only by those who map

        self._files, self._pages = files, pages
        sizes = np.array([file.size for file in files], np.int64)
        step = math.lcm(unit, mmap.PAGESIZE)
        rooms = -(-sizes // step) * step
        firsts = np.cumsum(rooms) - rooms
        self.memory = reserved(int(firsts[-1] + sizes[-1]))  # for all, so that one munmap releases everything
        for file, first in zip(files, firsts.tolist(), strict=True):
            if file.size:
                map_over(self.memory.ctypes.data + first, file.size, file.handle, file.path)
        # A segment is read with its first row only if all files fit into memory: else it would be read for each row.
        is_small = 1 < unit < pages.SMALL_RANGE and int(sizes.sum()) <= free_memory()
        self._needs_reads = [pages.needs_reads(file.handle) for file in files]
        counts = -(-sizes // pages.SEGMENT_BYTES)
        known, looks = np.zeros(int(counts.sum()), np.uint8), False
        if not is_small:  # else a fault reads what lies around it, which then is of use
            known, looks = np.zeros(0, np.uint8), _tells_residency(files[0].path)
            for first, size in zip(firsts.tolist(), sizes.tolist(), strict=True):
                pages.advise(self.memory.ctypes.data + first, size, pages.RANDOM)
            for file, reads in zip(files, self._needs_reads, strict=True):
                if reads:  # else it reads up to 1.8 times the requested bytes
                    os.posix_fadvise(file.handle, 0, 0, os.POSIX_FADV_RANDOM)
        self.ranges = pages.FileRanges(
            firsts=firsts,
            ends=firsts + sizes,
            known=known,
            segments=np.cumsum(counts) - counts,
            looks=looks,
            reads=any(self._needs_reads),
            handles=np.array([file.handle for file in files], np.int64),
        )
        self._evictions = EvictionPolicy(int(sizes.sum()) // ranks)

    def populate(self) -> str:
        """Reads all files into memory, in order; what does not fit into free memory is not read: it would evict itself.

        Returns:
            What was done, as a sentence.

        Raises:
            DamagedError, StoreError: if a file was truncated, or cannot be read.
        """
        base, firsts, ends = self.memory.ctypes.data, self.ranges.firsts.tolist(), self.ranges.ends.tolist()
        size, free = sum(ends) - sum(firsts), free_memory()
        if size > free:
            return f"not populated: {bytes_text(size)} of images, {bytes_text(free)} of memory free"
        for file, first, end, reads in zip(self._files, firsts, ends, self._needs_reads, strict=True):
            code = self._pages.populate(base + first, end - first, file.handle if reads else None)
            if code:
                file.check()
                raise StoreError(f"cannot read {file.path} ({os.strerror(code)})")
        self.ranges.known[:] = self._pages.RESIDENT
        return "populated"

    def prepare(self, places: Places) -> PreparedRows:
        """Begins to bring rows, or parts of them, into memory."""
        return self.begun(places, *filled(_place_in_map, (3, len(places)), np.int64, places, self.ranges.firsts))

    def reason(self, file: int, why: str) -> MmloadError:
        """Returns that a file was truncated, or why else it is not read."""
        opened = self._files[file]
        try:
            opened.check()
        except MmloadError as error:
            return error
        return StoreError(f"cannot read {opened.path} ({why})")

    def release(self, prepared: PreparedRows) -> None:
        """Evicts some of the prepared rows after their use from a page cache that is too small for all."""
        if self.ranges.looks:
            evicted, lengths = self._evictions.choose(prepared.starts, prepared.places["bytes"], prepared.absent)
            if len(evicted):
                at = prepared.files[evicted], prepared.starts[evicted], lengths
                self._pages.evict(self.memory.ctypes.data, self.ranges, *at)


@numba_compiled(RecordArray(ROW), "int64[::1], int64[:, ::1]", nogil=False)
def _place_in_map(places: Places, firsts: Numbers, out: Numbers) -> None:
    """Writes the file, the first byte in the map, and the bytes of rows, by the first byte of each file there."""
    for k in range(len(places)):
        file = places[k].file
        out[0, k], out[1, k], out[2, k] = file, firsts[file] + places[k].offset, places[k].bytes


def _tells_residency(path: str) -> bool:
    """Returns whether ``mincore`` tells which pages of a file are in memory: only to its owner and its writers."""
    return os.access(path, os.W_OK) or os.stat(path).st_uid == os.geteuid()
