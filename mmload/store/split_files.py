"""The files of a split's shards, opened at their first use, and read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from mmload.errors import DamagedError
from mmload.store.dataset_folder import Folder, Revision, revision_of
from mmload.store.field_rows import FieldRows, Numbers, Places
from mmload.store.file_reads import arriving
from mmload.store.held_file import HeldFile
from mmload.store.manifest import SplitRecord, shard_name


class LocalFiles:
    """The files of a split as :class:`~mmload.store.field_rows.SplitFiles`. Picklable, and safe to use after a fork.

    Args:
        folder: the dataset's.
        split: the split's name.
        record: its manifest entry.
    """

    is_local = True

    def __init__(self, folder: Folder, split: str, record: SplitRecord) -> None:
        self.folder, self.split, self.record = folder, split, record
        self._held: dict[tuple[int, str], HeldFile] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "split": self.split, "record": self.record}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # files are opened again, lazily

    def revision(self, name: str, shard: int) -> Revision:
        """The revision of a file that rows are read from."""
        seen = self.folder.seen(self.split, name, shard)
        return revision_of(self.folder.stat(self._path(name, shard))) if seen is None else seen

    def held(self, name: str, shard: int) -> HeldFile:
        """An open file of a shard, by its name without ``.memmap``. Lock-free, as a fork could leave a lock held."""
        key = (shard, name)
        held = self._held.get(key)
        if held is None:
            seen = self.folder.seen(self.split, name, shard)
            made = HeldFile(self.folder, self._path(name, shard), self.record.shards.file(shard, name), seen)
            held = self._held.setdefault(key, made)
        return held

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

        def damaged(index: int, reason: str) -> DamagedError:
            return field.damaged(int(rows[index]), reason)

        return arriving(partial(self.held, field.file), places, out, starts, groups, damaged)

    def _path(self, name: str, shard: int) -> str:
        return f"{self.split}/{shard_name(shard)}/{name}.memmap"
