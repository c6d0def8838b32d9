"""Marks samples that are wrong, in a list for ``mmload build --exclude``, written to its file at every change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from mmload.errors import MmloadError, one_line
from mmload.runtime.durable_files import file_lock, remove_partials, write_atomically
from mmload.runtime.regular_files import read_regular
from mmload.sources.exclusion import MOST_BYTES, Entry, entries_in, line_of, listed

REASONS = ("wrong label", "broken", "duplicate", "other")


class Marks:
    """Marked samples. Thread-safe; other processes may change the same file.

    The file is replaced as a whole and made durable before a change returns, so a crash loses nothing that was shown as
    saved. It is read, changed and written under the lock file ``.NAME.lock`` beside it. Lines that others wrote stay.
    If the path is a link, its target is replaced.

    Raises:
        MmloadError: if the file cannot be read.
        RecipeError: if the file is not a list of marks.
    """

    def __init__(self, path: Path, dataset: Path) -> None:
        self.path, self._dataset = path, dataset
        self._reading, self._writing = Lock(), Lock()
        self._list_identity: tuple[int, ...] | None = None
        self._list = _List("", path)
        self._current()

    def reason(self, sample: str, split: str) -> str | None:
        """Returns why a sample is marked; None if it is not."""
        found = self._current().found(sample, split)
        return found[-1].reason or "marked" if found else None

    def of_split(self, split: str, others: Sequence[str]) -> list[str]:
        """Returns the names, as in the list, of what is marked in a split, or in none of the others."""
        return [name for name, own in self._current().entries if own == split or own not in others]

    def __len__(self) -> int:
        return len(self._current().entries)

    def set(self, sample: str, split: str, reason: str | None, *, alone: bool) -> None:
        """Marks a sample, or removes its mark if there is no reason, and writes the file.

        If its name is ``alone``, in no other split, the list does not name the split.

        Raises:
            MmloadError: if the file cannot be read or written; nothing has changed in this case.
        """
        file = Path(os.path.realpath(self.path))
        try:
            with self._writing, file_lock(file.with_name(f".{file.name}.lock")):
                remove_partials(file)
                marks = _List(self._read() or self._heading(), self.path)
                marks.change(sample, split, reason, alone=alone)
                write_atomically(file, marks.text())
        except OSError as error:
            raise MmloadError(f"cannot write {self.path} ({error.strerror}); nothing was saved") from error
        with self._reading:
            self._list_identity = None

    def _heading(self) -> str:
        """Writes the first line of a new list."""
        dataset, path = one_line(str(self._dataset)), one_line(str(self.path))
        return f"# Marked in {dataset}; mmload build ... --exclude {path} leaves these out\n"

    def _current(self) -> _List:
        """Returns the current list; reads the file again if it has changed."""
        with self._reading:
            try:
                status = os.stat(self.path)
                identity = status.st_ino, status.st_size, status.st_mtime_ns
            except FileNotFoundError:
                identity = None
            except OSError as error:
                raise self._unreadable(error) from error
            if identity is None or identity != self._list_identity:
                self._list = _List(self._read(), self.path)
                self._list_identity = identity
            return self._list

    def _read(self) -> str:
        """Reads the file; "" if there is none. Any other failure is an error, because the file may contain marks."""
        try:
            return read_regular(self.path, most=MOST_BYTES).decode("utf-8-sig", "surrogateescape")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> MmloadError:
        return MmloadError(f"cannot read {self.path} ({error.strerror}); repair or remove it to mark rows")


class _List:
    """Lines of a list, and their entries as they were read; immutable after other threads can read it."""

    def __init__(self, text: str, path: Path) -> None:
        self._lines: list[str | None] = []
        if text:
            self._lines += [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
        self.entries: dict[tuple[str, str], list[Entry]] = {}  # by name in the list and split
        for entry in entries_in(text, path):
            self.entries.setdefault((entry.name, entry.split), []).append(entry)

    def found(self, sample: str, split: str) -> list[Entry]:
        """Returns the lines about a sample, in order."""
        name = listed(sample)
        return [entry for own in (split, "") for entry in self.entries.get((name, own), ())]

    def change(self, sample: str, split: str, reason: str | None, *, alone: bool) -> None:
        """Puts a mark in place of the first line about a sample, and removes the others; without a reason, all."""
        gone = [entry.line - 1 for entry in self.found(sample, split)]
        for place in gone:
            self._lines[place] = None
        if reason is not None:
            place = min(gone, default=len(self._lines))
            self._lines[place : place + 1] = [line_of(sample, reason, "" if alone else split)]

    def text(self) -> str:
        """Returns the text of the file."""
        return "".join(f"{line}\n" for line in self._lines if line is not None)
