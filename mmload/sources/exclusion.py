"""Leaves samples out of a source: those that a recipe names, or a list as ``mmload build --exclude FILE`` takes it.

A line of a list is ``NAME``, or ``NAME``, a reason and perhaps a split, separated by tabs. Names are written as
``mmload info --row`` shows them: what is not printable is escaped, so that a file name with a line end stays in its
line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
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
    found = [name, _COMMENT + name.removeprefix(_ESCAPED)]
    with suppress(UnicodeDecodeError):  # a backslash that is none of an escape
        found.append(name.encode("latin-1", "backslashreplace").decode("unicode_escape"))
    return [each for each in dict.fromkeys(found) if listed(each) == name]


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


def remaining_splits(
    splits: Mapping[str, SourceSplit], excluded: Excluded, file: str | Path | None, before: Excluded
) -> tuple[dict[str, SourceSplit], Excluded, Excluded]:
    """Leaves samples out of splits.

    Args:
        splits: the splits.
        excluded: split -> ids of the samples to leave out.
        file: list that names further ones; None: there is none.
        before: samples that were left out before, which stay excluded, whether they are named or not, and may be gone.

    Returns:
        The splits without them, all excluded samples, and those of ``before`` that are gone.

    Raises:
        RecipeError: if the list cannot be read, something that is named is no sample or several, or a split would
            become empty.
    """
    entries = [] if file is None else read_entries(file)
    wanted = set[str]().union(*excluded.values(), *before.values())
    found = _indices(splits, wanted, {entry.name for entry in entries})
    lost = {name: sorted(set(ids).difference(found.get(name, ()))) for name, ids in before.items()}
    gone = {name: ids for name, ids in lost.items() if ids}
    every = {name: [*excluded.get(name, ()), *before.get(name, ())] for name in {*excluded, *before}}
    for name, ids in excluded.items():
        _check_there(name, set(ids).difference(found.get(name, ()), gone.get(name, ())), splits)
    of_found, of_gone = _by_name(found), _by_name(gone)
    for entry in entries:
        there = _meant(entry, of_found)
        if there or not _meant(entry, of_gone):
            _check_is_one(entry, there, f"{file}, line {entry.line}: {entry.name!r}", splits)
            every.setdefault(there[0][0], []).append(there[0][1])
    left_out = {
        name: {index for sample in every.get(name, ()) for index in ids.get(sample, ())} for name, ids in found.items()
    }
    return {name: _without(name, split, left_out[name]) for name, split in splits.items()}, every, gone


def _indices(
    splits: Mapping[str, SourceSplit], wanted: AbstractSet[str], names: AbstractSet[str]
) -> dict[str, dict[str, list[int]]]:
    """Returns split -> id -> numbers of the samples that are wanted by id, or by their names in a list.

    A source may list a sample twice. If none is wanted, no sample is looked at.
    """
    found: dict[str, dict[str, list[int]]] = {name: {} for name in splits}
    for name, split in splits.items():
        for index in range(len(split) if wanted or names else 0):
            sample = split.id(index)
            if sample in wanted or (names and listed(sample) in names):
                found[name].setdefault(sample, []).append(index)
    return found


def _by_name(samples: Mapping[str, Iterable[str]]) -> dict[str, list[tuple[str, str]]]:
    """Returns name in a list -> split and id of the samples that are listed so."""
    named: dict[str, list[tuple[str, str]]] = {}
    for split, ids in samples.items():
        for sample in ids:
            named.setdefault(listed(sample), []).append((split, sample))
    return named


def _meant(entry: Entry, named: Mapping[str, Sequence[tuple[str, str]]]) -> list[tuple[str, str]]:
    """Returns split and id of those of some samples that an entry names."""
    return [each for each in named.get(entry.name, ()) if entry.split in ("", each[0])]


def _check_there(name: str, missing: AbstractSet[str], splits: Mapping[str, SourceSplit]) -> None:
    """Checks that nothing is missing of the samples of a split that a recipe excludes."""
    if missing and name not in splits:
        raise RecipeError(f"exclude names the split {name!r}; the source has {choices(splits)}")
    if missing:
        raise RecipeError(
            f"exclude names {min(missing)!r}, which is not a sample of split {name}; mmload info DATASET --row N "
            "shows how they are named"
        )


def _without(name: str, split: SourceSplit, left_out: AbstractSet[int]) -> SourceSplit:
    """Returns a split without some samples."""
    if len(left_out) == len(split):
        raise RecipeError(f"exclude names all {counted(len(split), 'sample')} of split {name}; leave at least one")
    return only(split, np.delete(np.arange(len(split)), list(left_out))) if left_out else split


def _check_is_one(
    entry: Entry, there: Sequence[tuple[str, str]], where: str, splits: Mapping[str, SourceSplit]
) -> None:
    """Checks that an entry names exactly one sample; ``there`` are those that it names."""
    if entry.split and entry.split not in splits:
        raise RecipeError(f"{where} names the split {entry.split!r}; the source has {choices(splits)}")
    if len(there) > 1:
        raise RecipeError(
            f"{where} exists in the splits {choices({split for split, _ in there})}; add the split as a third field, "
            "one line per split"
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
