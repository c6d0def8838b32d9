"""Reads rows of a dataset in object storage from blocks on the local disk; waits for those that are absent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mmload.errors import DamagedError, MmloadError, StoreError, UsageError
from mmload.remote.block_grid import Numbers
from mmload.remote.dataset_cache import DatasetCache, dataset_cache
from mmload.remote.epoch_plan import EpochPlan, Take
from mmload.remote.read_ahead import ReadAhead
from mmload.remote.remote_blocks import Asked, RemoteBlocks
from mmload.runtime.file_calls import read_files
from mmload.runtime.regular_files import open_regular
from mmload.store.dataset_folder import Folder, Revision
from mmload.store.field_files import BYTES
from mmload.store.field_rows import FieldRows, Places
from mmload.store.held_file import HeldFile
from mmload.store.manifest import Manifest, SplitRecord, shard_name
from mmload.store.row_reader import SMALL_ROW, RowReader
from mmload.store.sized_rows import SizedRows
from mmload.store.split_files import LocalFiles


class RemoteFolder(Folder):
    """The folder of a dataset in a cache: its lists come when they are asked for. Picklable: a copy opens the URL."""

    def __init__(self, cache: DatasetCache) -> None:
        super().__init__(cache.root)
        self.cache = cache

    def __reduce__(self) -> tuple[Any, ...]:
        cache = self.cache
        return _folder, (cache.objects.url, cache.folder.path, cache.limit, cache.parallel, cache.manifest.contents)

    @property
    def title(self) -> str:
        """See :class:`Folder`."""
        return self.cache.objects.url

    @property
    def remedy(self) -> str:
        """See :class:`Folder`."""
        return "run mmload verify on the dataset that was pushed there"

    def read(self) -> Manifest:
        """See :class:`Folder`; the manifest of the URL."""
        self._manifest = self.cache.manifest
        return self._manifest

    def check(self) -> None:
        """Nothing: the folder is named after the dataset's content, and every file in it is checked."""

    def check_changed(self) -> None:
        """Nothing, as :meth:`check`."""

    def stat(self, file: str) -> os.stat_result:
        """See :class:`Folder`."""
        self.cache.have_list(file)
        return os.stat(self.name(file))

    def _open(self, file: str) -> int:
        self.cache.have_list(file)
        return open_regular(self.name(file))


def _folder(url: str, *given: Any) -> RemoteFolder:
    *options, contents = given
    folder = RemoteFolder(dataset_cache(url, *options))
    if folder.read().contents != contents:
        raise StoreError(f"{url} holds another dataset than when it was opened; open it again")
    return folder


class CachedFile(HeldFile):
    """A shard's file in object storage, whose blocks lie in a cache."""

    def __init__(self, dataset: str, name: str) -> None:
        self._dataset, self.path = dataset, name

    @property
    def handle(self) -> int:  # type: ignore[override]  # there is none
        """Refused: it is no file here.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{self.path} is in object storage and cannot be mapped into memory; read rows, or copy the dataset: "
            f"mmload pull {self._dataset} DIR"
        )

    def check(self) -> None:
        """Nothing: blocks are immutable."""


class _Piece(NamedTuple):
    """Bytes of one block that are read, from ``offset`` in its file on; ``first`` is the index of their first row."""

    first: int
    block: int
    path: str
    offset: int
    out: memoryview


class CachedFiles(LocalFiles):
    """The files of a split in object storage, read through a cache; its indexes are local files."""

    is_local = False

    def __init__(self, folder: RemoteFolder, split: str, record: SplitRecord) -> None:
        super().__init__(folder, split, record)
        self._cache = folder.cache

    @property
    def limit(self) -> int | None:
        """Bytes that the cache may hold."""
        return self._cache.limit

    def blocks(self, field: FieldRows) -> RemoteBlocks:
        """The blocks of a field."""
        offsets = field.index.offsets if isinstance(field, SizedRows) else None
        return self._cache.blocks(self.split, field.name, offsets)

    def revision(self, name: str, shard: int) -> Revision:
        """Not of the file, which changes when blocks come and go: all blocks are as the manifest says."""
        return 0, int(self.record.shards.bytes[name][shard]), 0

    def held(self, name: str, shard: int) -> HeldFile:
        """See :class:`~mmload.store.field_rows.SplitFiles`."""
        key = shard, name
        return self._held.get(key) or self._held.setdefault(key, self._opened(name, shard))

    def _opened(self, name: str, shard: int) -> HeldFile:
        field, _, part = name.partition(".")
        if part in ("", BYTES):
            objects = self._cache.objects
            return CachedFile(objects.url, objects.url_of(f"{self.split}/{shard_name(shard)}/{name}.memmap"))
        self._cache.have_index(self.split, field)
        try:
            return super().held(name, shard)
        except MmloadError:  # something has removed or truncated it since
            self._cache.have_index(self.split, field, look=True)
            return super().held(name, shard)

    def arriving(
        self,
        field: FieldRows,
        rows: Numbers,
        places: Places,
        out: memoryview,
        starts: Numbers,
        groups: Sequence[int],
    ) -> Iterator[None]:
        """See :meth:`mmload.store.field_rows.Rows.arriving`."""
        if field.name not in self.record.fields:  # a file of an index, which is here as a whole
            return super().arriving(field, rows, places, out, starts, groups)
        blocks = self.blocks(field)
        of_rows = blocks.grid.of_rows(rows)
        asked = blocks.ask(of_rows)
        pieces, ends = _pieces(blocks, of_rows, places, out, starts, groups)

        def damaged(index: int, reason: str) -> DamagedError:
            return field.damaged(int(rows[index]), reason)

        return _filled(blocks, asked, pieces, ends, damaged, len(rows))


class CachedReader(RowReader):
    """Reads rows of a split through a cache. Thread-safe and picklable."""

    files: CachedFiles

    def blocks(self, name: str) -> RemoteBlocks:
        """The blocks of a field."""
        return self.files.blocks(self.field(name))

    def follow(self, fields: Sequence[str], takes: Sequence[Take], epoch: int, now: int, margin: int) -> ReadAhead:
        """Fetch what an epoch reads, ahead of it and in its order, and evict by what it needs last.

        Args:
            fields: that it reads.
            takes: the order of each rank of this machine, this one's first.
            epoch: its number.
            now: the position at which it goes on.
            margin: as :class:`EpochPlan` has it.

        Returns:
            The reader ahead; it ends when it is closed or collected.
        """
        read = [self.field(name) for name in fields]
        large = [self.files.blocks(field) for field in read if field.spec.own_sizes or field.spec.row_bytes > SMALL_ROW]
        for blocks in large:
            blocks.plan = EpochPlan(blocks.grid, takes, margin, blocks.plan)
            blocks.plan.begin(epoch, now)
        return ReadAhead(large, self.files.limit, epoch)


def _pieces(
    blocks: RemoteBlocks, of_rows: Numbers, places: Places, out: memoryview, starts: Numbers, groups: Sequence[int]
) -> tuple[list[_Piece], list[int]]:
    """Joins rows that follow each other in a block and in memory.

    Args:
        blocks: of the field.
        of_rows: int64 [B], the block of each row.
        places: [B], where each is.
        out: where they go.
        starts: int64 [B], the byte of ``out`` at which each begins.
        groups: after which rows those so far must be there.

    Returns:
        The pieces in order, and how many of them make up the rows of each group and all before it.
    """
    offset, size = places["offset"], places["bytes"]
    is_head = np.ones(len(of_rows), np.bool_)
    is_head[1:] = (of_rows[1:] != of_rows[:-1]) | (offset[1:] != offset[:-1] + size[:-1])
    is_head[1:] |= starts[1:] != starts[:-1] + size[:-1]
    is_head[groups[:-1]] = True
    heads = np.flatnonzero(is_head)
    numbers = of_rows[heads]
    past = (offset[heads] - blocks.grid.offsets_of(numbers)).tolist()
    ends = (starts + size)[np.append(heads[1:], len(of_rows)) - 1].tolist()
    pieces = [
        _Piece(index, block, path, at, out[start:end])
        for index, block, path, at, start, end in zip(
            heads.tolist(),
            numbers.tolist(),
            blocks.files.paths(numbers),
            past,
            starts[heads].tolist(),
            ends,
            strict=True,
        )
    ]
    return pieces, np.searchsorted(heads, groups).tolist()


def _filled(
    blocks: RemoteBlocks,
    asked: Asked,
    pieces: Sequence[_Piece],
    groups: Sequence[int],
    damaged: Callable[[int, str], DamagedError],
    rows: int,
) -> Iterator[None]:
    """Fills the memory of the pieces; yields after each of ``groups``, numbers of pieces.

    The first piece whose block has gone since it was expected has all later ones looked for.
    """
    looked, done = False, 0
    for last in groups:
        some = pieces[done:last]
        for piece in some:
            if piece.block in asked:
                asked[piece.block].done.wait()
        offsets = np.array([piece.offset for piece in some], np.int64)
        got = read_files([piece.path for piece in some], offsets, [piece.out for piece in some])
        lengths = np.array([len(piece.out) for piece in some], np.int64)
        for index in np.flatnonzero(got != lengths).tolist():
            first, block, _, offset, out = some[index]
            if block not in asked and not looked:
                looked = True
                asked = blocks.ask(np.array([piece.block for piece in pieces[done + index :]]), look=True) | asked
            try:
                out[:] = blocks.content(block, asked)[offset : offset + len(out)]
            except DamagedError as error:
                raise damaged(first, str(error)) from error
        if last == groups[-1] and blocks.plan is not None:
            blocks.plan.passed(rows)
        done = last
        yield
