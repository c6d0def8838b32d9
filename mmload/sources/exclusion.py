"""Leaves samples out of a source: those that a recipe names, or a list as ``mmload build --exclude FILE`` takes it.

A line of a list is ``NAME``, or ``NAME``, a reason and perhaps a split, separated by tabs. Names are written as
``mmload info --row`` shows them: what is not printable is escaped, so that a file name with a line end stays in its
line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmload.errors import RecipeError, choices, counted, one_line
from mmload.records import Sample
from mmload.runtime.regular_files import read_regular
from mmload.sources import HasNotes, SourceSplit, Splittable

MOST_BYTES = 2**28
"""Upper bound on the size of a list; a larger file is rejected."""

_COMMENT = "#"
_ESCAPED = "\\x23"  # a number sign at the start of a name


class Entry(NamedTuple):
    """One line of a list: its number, the name as :func:`listed` gives it, and what it says after that, if anything."""

    line: int
    name: str
    reason: str
    split: str


def listed(sample: str) -> str:
    """Returns a sample's name as a list has it: in one line, without tabs, and never like a comment."""
    name = sample if sample.isprintable() else one_line(sample)
    return _ESCAPED + name[1:] if _is_comment(name) else name


def originals_of(name: str) -> list[str]:
    """Returns the ids that a name in a list may stand for: the name itself, or what its escapes stand for."""
    try:
        unescaped = name.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:  # a backslash that is none of an escape
        return [name]
    return [each for each in dict.fromkeys((name, unescaped)) if listed(each) == name]


def line_of(sample: str, reason: str = "", split: str = "") -> str:
    """Returns a line of a list, without its end; without a split it is about the one that has the sample."""
    fields = (listed(sample), one_line(reason), split)
    return "\t".join(fields).rstrip("\t")


def read_entries(path: str | Path) -> list[Entry]:
    """Reads the entries of a list.

    Raises:
        RecipeError: if it cannot be read, or a line has more than three fields.
    """
    try:
        text = read_regular(path, most=MOST_BYTES).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise RecipeError(f"cannot read the list {path} ({error.strerror}); give a file with a name a line") from error
    return entries_in(text, path)


def entries_in(text: str, path: str | Path) -> list[Entry]:
    """Parses the text of a list; its path is for messages.

    Raises:
        RecipeError: if a line has more than three fields.
    """
    entries = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.removesuffix("\r").split("\t")
        if _is_comment(line) or not line.strip():
            continue
        if len(fields) > 3:
            raise RecipeError(
                f"{path}, line {number} has {len(fields)} fields; write NAME, or NAME, a reason and a split, with tabs "
                "between them"
            )
        name, reason, split = *fields, *[""] * (3 - len(fields))
        entries.append(Entry(number, name if name.isprintable() else one_line(name), reason, split.strip()))
    return entries


def _is_comment(line: str) -> bool:
    """Returns whether a line is a comment: ``#`` alone, or with a space after it; a folder may be called ``#1``."""
    return line.rstrip("\r") == _COMMENT or line.startswith(f"{_COMMENT} ")


Excluded = Mapping[str, Sequence[str]]
"""Split -> ids of the samples to leave out."""


def absent(excluded: Excluded, splits: Mapping[str, SourceSplit]) -> dict[str, list[str]]:
    """Returns the excluded samples that the splits do not have, sorted."""
    found = {}
    for name, ids in excluded.items():
        there = map(splits[name].id, range(len(splits[name]))) if name in splits else ()
        if missing := set(ids).difference(there):
            found[name] = sorted(missing)
    return found


def samples_of(path: str | Path, splits: Mapping[str, SourceSplit], gone: Excluded) -> dict[str, list[str]]:
    """Returns the ids of the samples that an exclusion list names, by split, without those that are known to be gone.

    Raises:
        RecipeError: if the list cannot be read, or a line names no sample, or several; it names the line.
    """
    entries = read_entries(path)
    wanted = {entry.name for entry in entries}
    found: dict[str, dict[str, str]] = {name: {} for name in splits}  # split -> name in the list -> id
    for split, samples in splits.items():
        for sample in map(samples.id, range(len(samples))):
            name = listed(sample)
            if name in wanted and found[split].setdefault(name, sample) != sample:
                raise RecipeError(f"{path}: {name!r} names several samples of split {split}; rename one of their files")
    excluded: dict[str, list[str]] = {}
    lost = {(own, listed(sample)) for name, ids in gone.items() for sample in ids for own in (name, "")}
    for entry in entries:
        there = [split for split, names in found.items() if entry.name in names and entry.split in ("", split)]
        if there or (entry.split, entry.name) not in lost:
            _check_is_one(entry, there, f"{path}, line {entry.line}: {entry.name!r}", splits)
            excluded.setdefault(there[0], []).append(found[there[0]][entry.name])
    return excluded


def check_there(excluded: Excluded, splits: Mapping[str, SourceSplit], gone: Excluded) -> None:
    """Checks that the splits have the excluded samples, but for those that are known to be gone.

    Raises:
        RecipeError: if they do not.
    """
    for name, ids in absent(excluded, splits).items():
        missing = sorted(set(ids).difference(gone.get(name, ())))
        if missing and name not in splits:
            raise RecipeError(f"exclude names the split {name!r}; the source has {choices(splits)}")
        if missing:
            raise RecipeError(
                f"exclude names {missing[0]!r}, which is not a sample of split {name}; mmload info DATASET --row N "
                "shows how they are named"
            )


def exclude_samples(splits: Mapping[str, SourceSplit], excluded: Excluded) -> Mapping[str, SourceSplit]:
    """Returns the splits without the samples that are excluded, by their ids.

    Raises:
        RecipeError: if a split would become empty.
    """
    remaining = dict(splits)
    for name in set(excluded).intersection(splits):
        names, split = set(excluded[name]), splits[name]
        kept = [index for index in range(len(split)) if split.id(index) not in names]
        if not kept:
            raise RecipeError(f"exclude names all {counted(len(split), 'sample')} of split {name}; leave at least one")
        if len(kept) < len(split):
            remaining[name] = only(split, np.array(kept, np.int64))
    return remaining


def _check_is_one(entry: Entry, there: Sequence[str], where: str, splits: Mapping[str, SourceSplit]) -> None:
    """Checks that an entry names a sample of exactly one split; ``there`` are those that have it."""
    if entry.split and entry.split not in splits:
        raise RecipeError(f"{where} names the split {entry.split!r}; the source has {choices(splits)}")
    if len(there) > 1:
        raise RecipeError(
            f"{where} exists in the splits {choices(there)}; add the split as a third field, one line per split"
        )
    if not there:
        within, example = f" of split {entry.split}" if entry.split else "", splits[entry.split or next(iter(splits))]
        raise RecipeError(
            f"{where} names no sample{within}; samples are named as in {listed(example.id(0))!r} (mmload info DATASET "
            "--row N shows them)"
        )


def only(split: SourceSplit, remaining: npt.NDArray[np.int64]) -> SourceSplit:
    """Returns a split with only these samples, ascending."""
    return split.part(remaining.tolist()) if isinstance(split, Splittable) else _Remaining(split, remaining)


class _Remaining:
    """The samples that remain, ascending, of a split that cannot make a part of itself."""

    def __init__(self, split: SourceSplit, remaining: npt.NDArray[np.int64]) -> None:
        self._split, self._remaining = split, remaining

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by index."""
        return self._split.classes

    def __len__(self) -> int:
        return len(self._remaining)

    def notes(self) -> tuple[str, ...]:
        """Returns the notes of the complete split."""
        return self._split.notes() if isinstance(self._split, HasNotes) else ()

    def id(self, index: int) -> str:
        return self._split.id(int(self._remaining[index]))

    def revision(self, index: int) -> str:
        """Returns a sample's revision; the first one's includes that of the complete split's first sample."""
        own = self._split.revision(int(self._remaining[index]))
        return own if index or not self._remaining[0] else f"{self._split.revision(0)} {own}"

    def read(self, index: int) -> Sample:
        return self._split.read(int(self._remaining[index]))
