"""Marks samples that are wrong, in a list for ``mmload build --exclude``, written to its file at every change."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from mmload.errors import MmloadError, one_line
from mmload.runtime.files import file_lock, read_regular, remove_partials, write_atomically
from mmload.sources.listed_split import MOST_BYTES, Entry, entries_in, line_of, listed

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
        self._writing = threading.Lock()  # threads that all poll the lock of the file slow down the one that has it
        self.current()

    def current(self) -> MarkList:
        """Reads the marks that are in the file now.

        Raises:
            MmloadError: if it cannot be read.
            RecipeError: if it is not a list of marks.
        """
        return MarkList(self._read(), self.path)

    def set(self, sample: str, split: str, reason: str | None, *, alone: bool) -> MarkList:
        """Marks a sample, or removes its mark if there is no reason; writes the file, and returns all marks.

        If its name is ``alone``, in no other split, the list does not name the split.

        Raises:
            MmloadError: if the file cannot be read or written; nothing has changed in this case.
        """
        file = Path(os.path.realpath(self.path))
        dataset, path = one_line(str(self._dataset)), one_line(str(self.path))
        heading = f"# Marked in {dataset}; mmload build ... --exclude {path} leaves these out\n"
        try:
            with self._writing, file_lock(file.with_name(f".{file.name}.lock")):
                remove_partials(file)
                text = MarkList(self._read() or heading, self.path).changed(sample, split, reason, alone=alone)
                write_atomically(file, text)
        except OSError as error:
            raise MmloadError(f"cannot write {self.path} ({error.strerror}); nothing was saved") from error
        return MarkList(text, self.path)

    def _read(self) -> str:
        """Reads the file; "" if there is none. Any other failure is an error, because the file may contain marks."""
        try:
            return read_regular(self.path, most=MOST_BYTES).decode("utf-8-sig", "surrogateescape")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise MmloadError(
                f"cannot read {self.path} ({error.strerror}); repair or remove it to mark rows"
            ) from error


class MarkList:
    """Lines of a list, and their entries as they were read."""

    def __init__(self, text: str, path: Path) -> None:
        self._lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
        self._entries: dict[tuple[str, str], list[Entry]] = {}  # by name in the list and split
        for entry in entries_in(text, path):
            self._entries.setdefault((entry.name, entry.split), []).append(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def reason(self, sample: str, split: str) -> str | None:
        """Returns why a sample is marked; None if it is not."""
        found = self._found(sample, split)
        return found[-1].reason or "marked" if found else None

    def of_split(self, split: str, others: Sequence[str]) -> list[str]:
        """Returns the names, as in the list, of what is marked in a split, or in none of the others."""
        return [name for name, own in self._entries if own == split or own not in others]

    def changed(self, sample: str, split: str, reason: str | None, *, alone: bool) -> str:
        """Returns the text with a mark in place of the first line about a sample, and without the other ones.

        Without a reason, no line about it remains.
        """
        gone = [entry.line - 1 for entry in self._found(sample, split)]
        lines: list[str | None] = [None if place in gone else line for place, line in enumerate(self._lines)]
        if reason is not None:
            place = min(gone, default=len(lines))
            lines[place : place + 1] = [line_of(sample, reason, "" if alone else split)]
        return "".join(f"{line}\n" for line in lines if line is not None)

    def _found(self, sample: str, split: str) -> list[Entry]:
        """Returns the lines about a sample, in order."""
        name = listed(sample)
        return [entry for own in (split, "") for entry in self._entries.get((name, own), ())]
