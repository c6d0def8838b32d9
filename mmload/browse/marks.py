"""What somebody marked as wrong: a list for ``mmload build --exclude``, written to its file at every change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from mmload.errors import MmloadError, one_line
from mmload.runtime.durable_files import write_atomically
from mmload.store.exclusion_list import Entry, line_of, listed, read_entries

REASONS = ("wrong label", "broken", "duplicate", "other")

_Key = tuple[str, str]  # name in the list, split


class Marks:
    """Marked samples. Thread-safe.

    The file is replaced as a whole and made durable before a change returns, so a crash loses nothing that was shown as
    saved. Comments and lines of other hands stay. What is changed in the file meanwhile is read again.

    Args:
        path: the file; it may not exist yet.
        dataset: whose samples are marked, for the file's first line.

    Raises:
        RecipeError: if the file is no such list.
    """

    def __init__(self, path: Path, dataset: Path) -> None:
        self.path, self._dataset = path, dataset
        self._lock = Lock()
        self._seen: tuple[int, ...] | None = None
        self._lines: list[str] = []
        self._entries: dict[_Key, list[Entry]] = {}
        with self._lock:
            self._refresh()

    def reason(self, sample: str, split: str) -> str | None:
        """Why a sample is marked; None if it is not."""
        with self._lock:
            self._refresh()
            found = self._found(sample, split)
        return found[-1].reason or "marked" if found else None

    def of_split(self, split: str, others: Sequence[str]) -> list[str]:
        """The names, as in the list, of what is marked in a split, or in none of the others."""
        with self._lock:
            self._refresh()
            return [name for name, own in self._entries if own == split or own not in others]

    def __len__(self) -> int:
        with self._lock:
            self._refresh()
            return len(self._entries)

    def set(self, sample: str, split: str, reason: str | None, *, alone: bool) -> None:
        """Mark a sample, or take its mark away, and write the file.

        Args:
            sample: its id.
            split: where it is.
            reason: None: it is not marked any longer.
            alone: whether the name is in no other split, so that the list need not name the split.

        Raises:
            MmloadError: if the file cannot be written; nothing has changed in this case.
        """
        with self._lock:
            self._refresh()
            gone = {entry.line - 1 for entry in self._found(sample, split)}
            place = min(gone, default=len(self._lines))
            mark = [] if reason is None else [line_of(sample, reason, "" if alone else split)]
            kept = [line if number not in gone else None for number, line in enumerate(self._lines)]
            lines = [line for line in [*kept[:place], *mark, *kept[place:]] if line is not None]
            self._write(lines)

    def _write(self, lines: list[str]) -> None:
        if not self._lines:
            name = one_line(str(self._dataset))
            lines = [
                f"# Marked in {name}; mmload build ... --exclude {one_line(str(self.path))} leaves these out",
                *lines,
            ]
        try:
            write_atomically(self.path, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            raise MmloadError(f"cannot write {self.path} ({error.strerror}); nothing was saved") from error
        self._refresh()

    def _found(self, sample: str, split: str) -> list[Entry]:
        """The lines about a sample, in order."""
        name = listed(sample)
        return [entry for own in (split, "") for entry in self._entries.get((name, own), ())]

    def _refresh(self) -> None:
        """Read the file, if it is another than the one that was read or written last."""
        try:
            status = os.stat(self.path)
        except OSError:
            self._seen, self._lines, self._entries = None, [], {}
            return
        seen = status.st_ino, status.st_size, status.st_mtime_ns
        if seen != self._seen:
            entries = read_entries(self.path)
            text = self.path.read_bytes().decode("utf-8-sig", "surrogateescape")
            self._lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
            self._entries = {}
            for entry in entries:
                self._entries.setdefault((entry.name, entry.split), []).append(entry)
            self._seen = seen
