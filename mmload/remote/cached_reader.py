"""Reads rows of a dataset in object storage from blocks on the local disk; waits for those that are absent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from mmload.errors import MmloadError, StoreError, UsageError
from mmload.remote.block_grid import Numbers
from mmload.remote.dataset_cache import DatasetCache, dataset_cache
from mmload.remote.epoch_plan import EpochPlan, Take
from mmload.remote.read_ahead import ReadAhead
from mmload.remote.remote_blocks import Asked, RemoteBlocks
from mmload.runtime.file_calls import read_files
from mmload.runtime.regular_files import open_regular
from mmload.store.dataset_folder import Folder, Revision
from mmload.store.field_files import BYTES
from mmload.store.file_requests import Request
from mmload.store.held_file import HeldFile
from mmload.store.manifest import Manifest, SplitRecord, shard_name
from mmload.store.row_reader import SMALL_ROW, RowReader


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

    def __init__(self, path: str) -> None:
        self.path = path

    def check(self) -> None:
        """Nothing: blocks are immutable."""


class _Piece(NamedTuple):
    """Bytes of one block that a request needs: from ``offset`` in the block's file on."""

    request: Request
    block: int
    path: str
    offset: int
    out: memoryview


class CachedReader(RowReader):
    """Reads rows of a split through a cache. Thread-safe and picklable."""

    def __init__(self, folder: RemoteFolder, split: str, record: SplitRecord) -> None:
        super().__init__(folder, split, record)
        self._cache = folder.cache

    def blocks(self, name: str) -> RemoteBlocks:
        """The blocks of a field, by its name or that of its file of rows."""
        field = name.removesuffix(f".{BYTES}")
        own_sizes = self._record.fields[field].own_sizes
        return self._cache.blocks(self._split, field, self.whole(field).index.offsets if own_sizes else None)

    def revision(self, name: str, shard: int) -> Revision:
        """Not of the file, which changes when blocks come and go: all blocks are as the manifest says."""
        return 0, int(self._record.shards.bytes[name][shard]), 0

    def handle(self, name: str, shard: int) -> int:
        """Refused: a map of a file would show zeros where blocks are absent."""
        raise UsageError(
            f"{name} of {self._cache.objects.url} is in object storage and cannot be mapped into memory; read rows, or "
            f"copy it: mmload pull {self._cache.objects.url} DIR"
        )

    def files(self, name: str) -> None:
        """None: blocks come and go."""

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
        specs = {name: self._record.fields[name] for name in fields}
        large = [self.blocks(name) for name, spec in specs.items() if spec.own_sizes or spec.row_bytes > SMALL_ROW]
        for blocks in large:
            blocks.plan = EpochPlan(blocks.grid, takes, margin, blocks.plan)
            blocks.plan.begin(epoch, now)
        return ReadAhead(large, self._cache.limit, epoch)

    def held(self, name: str, shard: int) -> HeldFile:
        """See :class:`RowReader`."""
        key = shard, name
        return self._files.get(key) or self._files.setdefault(key, self._opened(name, shard))

    def _opened(self, name: str, shard: int) -> HeldFile:
        field, _, part = name.partition(".")
        if part in ("", BYTES):
            return CachedFile(self._cache.objects.url_of(f"{self._split}/{shard_name(shard)}/{name}.memmap"))
        self._cache.have_index(self._split, field)
        try:
            return super().held(name, shard)
        except MmloadError:  # something has removed or truncated it since
            self._cache.have_index(self._split, field, look=True)
            return super().held(name, shard)

    def _served(self, name: str, rows: Numbers, requests: Sequence[Request], groups: Sequence[int]) -> Iterator[None]:
        """As :meth:`RowReader._served`."""
        blocks = self.blocks(name)
        of_rows = blocks.grid.of_rows(rows)
        asked = blocks.ask(of_rows)
        if name.endswith(f".{BYTES}"):
            edges = np.arange(len(rows) + 1)
        else:
            lengths = (len(request.out) // blocks.grid.row_bytes for request in requests)
            edges = np.fromiter(accumulate(lengths, initial=0), np.int64)
        pieces, ends = _pieces(blocks, of_rows, edges, requests)
        return _filled(blocks, asked, pieces, [ends[last] for last in groups], len(rows))


def _pieces(
    blocks: RemoteBlocks, of_rows: Numbers, edges: Numbers, requests: Sequence[Request]
) -> tuple[list[_Piece], list[int]]:
    """Divides requests by the blocks that their rows are in.

    Args:
        blocks: of the field.
        of_rows: int64 [B], the block of each row.
        edges: int64 [R + 1]; request k is of the rows from ``edges[k]`` on.
        requests: R of them.

    Returns:
        The pieces in order, and how many of them belong to the first k requests, R + 1 numbers.
    """
    grid = blocks.grid
    is_head = np.zeros(len(of_rows), np.bool_)
    is_head[1:] = of_rows[1:] != of_rows[:-1]
    is_head[edges[:-1]] = True
    heads = np.flatnonzero(is_head)
    owners = np.searchsorted(edges, heads, "right") - 1
    past = ((heads - edges[owners]) * grid.row_bytes).tolist()  # 0 for rows of their own sizes: one row a request
    numbers = of_rows[heads]
    pieces: list[_Piece] = []
    for index, (owner, block, path, start) in enumerate(
        zip(
            owners.tolist(),
            numbers.tolist(),
            blocks.files.paths(numbers),
            grid.offsets_of(numbers).tolist(),
            strict=True,
        )
    ):
        request, first = requests[owner], past[index]
        last = past[index + 1] if index + 1 < len(past) and past[index + 1] else len(request.out)
        pieces.append(_Piece(request, block, path, request.offset + first - start, request.out[first:last]))
    return pieces, np.searchsorted(owners, np.arange(len(requests) + 1)).tolist()


def _filled(
    blocks: RemoteBlocks, asked: Asked, pieces: Sequence[_Piece], groups: Sequence[int], rows: int
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
            request, block, _, offset, out = some[index]
            if block not in asked and not looked:
                looked = True
                asked = blocks.ask(np.array([piece.block for piece in pieces[done + index :]]), look=True) | asked
            with request.named():
                out[:] = blocks.content(block, asked)[offset : offset + len(out)]
        if last == groups[-1] and blocks.plan is not None:
            blocks.plan.passed(rows)
        done = last
        yield
