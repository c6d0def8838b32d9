"""Compact lists of millions of samples, splits of listed images, and samples that are held out or left out.

Samples are held out for validation; those that a recipe names are left out, or those of a list as ``mmload build
--exclude FILE`` takes it. A line of a list is ``NAME``, or ``NAME``, a reason and perhaps a split, separated by tabs.
Names are written as ``mmload info --row`` shows them: what is not printable is escaped, so that a file name with a line
end stays in its line.
"""

from __future__ import annotations

import hashlib
import marshal
import unicodedata
from abc import ABC, abstractmethod
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import copy
from itertools import islice, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from mmload.errors import RecipeError, SampleError, SourceError, choices, counted, naming, one_line
from mmload.lazy import lazy_property
from mmload.records import Sample, dtype_name
from mmload.runtime.files import read_regular
from mmload.sources import SourceSplit, Splittable, notes_of
from mmload.sources.decode import Decoder
from mmload.sources.files import Place, RemoteFiles, SampleFiles, local_root

if TYPE_CHECKING:
    from mmload.records import FieldValue
    from mmload.sources.schema import Schema

_BLOCK_ROWS = 32  # paths of so many samples take 10 µs to unpack, in whatever order they are read

_RANK = np.dtype([("high", ">u8"), ("low", ">u8")])

T = TypeVar("T", bound=tuple[Any, ...])


class Listing(Generic[T]):
    """Named tuples of texts, numbers, None or lists of these, by number. Picklable, and read by any threads at once.

    They are packed in blocks, in which a million samples take about 90 MB. A lone surrogate, as in a file name that is
    not UTF-8, stays. The block that was taken last is kept unpacked, as most read one row after another, so nobody may
    change what is in a row.
    """

    def __init__(self, kind: Callable[..., T], rows: Iterable[T] = ()) -> None:
        self._kind, self._blocks, self._count = kind, list[bytes](), 0
        self._last: tuple[int, list[T]] = -1, []
        plain = map(tuple, rows)
        while block := list(islice(plain, _BLOCK_ROWS)):
            self._blocks.append(marshal.dumps(block))
            self._count += len(block)

    def only(self, rows: Iterable[int]) -> Listing[T]:
        """Returns these rows, in this order."""
        return Listing(self._kind, map(self.__getitem__, rows))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> T:
        number = index // _BLOCK_ROWS
        last, block = self._last  # at once, as another thread may set it
        if last != number:
            block = list(starmap(self._kind, marshal.loads(self._blocks[number])))
            self._last = number, block
        return block[index % _BLOCK_ROWS]

    def __iter__(self) -> Iterator[T]:
        return map(self.__getitem__, range(len(self)))


def check_same_classes(named: Mapping[str, tuple[str, ...]], advice: str) -> None:
    """Raises SourceError, which ends with an advice, if several lists of class names differ."""
    first = next(iter(named), "")
    for name, own in named.items():
        if own != named[first]:
            odd = sorted(set(own) ^ set(named[first])) or ["in another order"]
            raise SourceError(f"{name} and {first} have different classes ({', '.join(odd[:5])}); {advice}")


def checked_names(
    option: str, names: list[str] | None, is_valid: Callable[[str], object] = str.strip
) -> tuple[str, ...]:
    """Returns the names in an option, () if it is not given.

    Raises:
        RecipeError: unless they are different and valid, by default not blank.
    """
    found = tuple(names or ())
    if names == [] or not all(map(is_valid, found)) or len(set(found)) < len(found):
        raise RecipeError(f"{option} is {names!r:.80}; write a list of different names")
    return found


def held_out(samples: Iterable[tuple[str, Hashable]], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Selects a share in (0, 1) of the samples, of which id and stratum are given, the same of every stratum: bool [N].

    In each stratum the samples are ranked by a hash of seed and id, and the first round(fraction x size) are taken, but
    at least one and never all (none of a single sample). The selection does not depend on the order of the files.
    """
    numbers: dict[Hashable, int] = {}
    strata, digests = array("q"), bytearray()
    for sample, stratum in samples:
        strata.append(numbers.setdefault(stratum, len(numbers)))
        digests += hashlib.blake2b(f"{seed}\0{sample}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
    stratum_of, rank = np.frombuffer(strata, np.int64), np.frombuffer(digests, _RANK)
    sizes = np.bincount(stratum_of)
    shares = np.minimum(np.rint(fraction * sizes).clip(1), sizes - 1).astype(np.int64)
    order = np.lexsort((rank["low"], rank["high"], stratum_of))
    places = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # in its stratum, of the ordered
    taken = np.zeros(len(order), np.bool_)
    taken[order[places < np.repeat(shares, sizes)]] = True
    return taken


def similar_names(names: Iterable[str], kind: str = "classes") -> Iterator[str]:
    """Yields notes on names of classes, or of another kind, that are probably the same."""
    same: dict[str, list[str]] = {}
    for name in names:
        plain = unicodedata.normalize("NFKC", name).casefold().strip().strip("\"'").strip()
        same.setdefault(plain, []).append(name)
    for group in same.values():
        if len(group) > 1:
            yield (
                f"{' and '.join(map(ascii, group))} are {kind} of their own, but differ only in case, quotes, spaces "
                "or their Unicode form"
            )


def value_at(value: Any, path: str) -> Any:
    """Returns the value in nested tables that a path of names with dots leads to; in a list, that of each element.

    Raises:
        ValueError: if there is none.
    """
    for part in filter(None, path.split(".")):
        if isinstance(value, list):
            value = [value_at(each, part) for each in value]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            raise ValueError(f"has no value {part!r}")
    return value


class Item(NamedTuple):
    """One sample of a source of files.

    Attributes:
        files: names of its files in the order in which they are read, its image first.
        revision: text that changes when what is read does.
        fault: why it cannot be read, or "".
        own: what its source knows of it.
        name: its name, or "" for that of its image.
    """

    files: Sequence[str]
    revision: str
    fault: str = ""
    own: Any = None
    name: str = ""


class Beside(NamedTuple):
    """What a row has beside its image: fields, losses of the sample, and the names of fields that are lists."""

    fields: Mapping[str, FieldValue]
    losses: Mapping[str, int] = {}
    lists: frozenset[str] = frozenset()


def size_of(image: FieldValue) -> tuple[int, int]:
    """Returns (height, width) of an image [C, H, W]; raises ValueError if a tensor is none."""
    if image.ndim != 3:
        raise ValueError(f"it is a tensor of {list(image.shape)}, and no image, which its mask or boxes need")
    return image.shape[-2], image.shape[-1]


class ListedSplit(ABC):
    """Split of listed images; the class of a source adds :meth:`beside`.

    Attributes:
        place: folder or URL that names of files are relative to.
        decoder: decodes images to pixels.
        items: the samples.
        classes: class names by index.
    """

    def __init__(
        self,
        place: Path | RemoteFiles,
        decoder: Decoder,
        items: Listing[Item],
        classes: tuple[str, ...],
        notes: tuple[str, ...] = (),
        *,
        boxes: bool = False,
    ) -> None:
        self.place, self.decoder, self.items, self.classes, self._boxes = place, decoder, items, classes, boxes
        self._notes = (*notes, *similar_names(classes))

    @property
    def root(self) -> Path:
        """Folder that names of files are relative to; UsageError if it is in object storage."""
        return local_root(self.place)

    def part(self, samples: Sequence[int]) -> Self:
        own = copy(self)
        own.items = self.items.only(samples)
        return own

    def __len__(self) -> int:
        return len(self.items)

    def has_boxes(self) -> bool:
        return self._boxes

    def notes(self) -> tuple[str, ...]:
        """Returns notes for the summary of the build."""
        return self._notes

    def add_notes(self, notes: tuple[str, ...]) -> None:
        """Adds notes for the summary of the build."""
        self._notes += notes

    def id(self, index: int) -> str:
        """Returns the name of a sample."""
        item = self.items[index]
        return item.name or item.files[0]

    def revision(self, index: int) -> str:
        """Returns text that changes when what :meth:`read` gives does."""
        return self.items[index].revision

    def files(self, index: int) -> Sequence[str]:
        """Returns the names of a sample's files in the order in which they are read, its image first."""
        return self.items[index].files

    def place_of(self, index: int) -> Place:
        """Returns where the files of a sample are: by default in :attr:`place`."""
        return self.place

    def fetch_ahead(self, samples: Sequence[int]) -> None:
        for index in samples:
            if isinstance(place := self.place_of(index), RemoteFiles):
                place.fetch_ahead(self.files(index))

    def reader(self, index: int) -> SampleFiles:
        """Returns the reader of a sample's files; raises SampleError if the sample is known to be wrong."""
        if fault := self.items[index].fault:
            raise SampleError(self.id(index), fault)
        return SampleFiles(self.place_of(index), self.id(index))

    def checksum(self, index: int) -> str:
        files = self.reader(index)
        if not isinstance(files.place, RemoteFiles):
            for name in self.files(index):
                files.read(name)
        return files.checksum

    def image_size(self, index: int) -> tuple[int, int] | None:
        return self.reader(index).size(self.files(index)[0], self.decoder)

    @abstractmethod
    def beside(self, index: int, files: SampleFiles, image: FieldValue) -> Beside:
        """Returns what the row of a sample has beside its image, uint8 [C, H, W].

        Raises:
            ValueError: if it is wrong; the message says what.
        """

    def read(self, index: int) -> Sample:
        """Reads the image as ``images`` uint8 [C, H, W], or other tensors as ``features``, and what is beside it.

        Raises:
            SampleError: if a file is missing or wrong.
        """
        files = self.reader(index)
        pixels, jpeg, losses = files.image(self.files(index)[0], self.decoder, boxes=self._boxes)
        size = size_of(pixels) if dtype_name(pixels.dtype) == "uint8" and pixels.ndim == 3 else None
        with files.naming():
            fields, more, lists = self.beside(index, files, pixels)
        fields = {"features" if size is None else "images": pixels, **fields}
        losses = {**losses, **more}
        return Sample(files.sample, fields, size, losses, encoded=jpeg, lists=lists, checksum=files.checksum)


_READ = 8
"""Samples that are read several times, spread over the dataset."""


def spread_indices(size: int) -> list[int]:
    """Returns the numbers of some samples from the first to the last."""
    return sorted({index * (size - 1) // (_READ - 1) for index in range(_READ)})


class ValuesSplit(ListedSplit):
    """Split of images with values of any kind beside them, to which the values of some samples give a meaning.

    The class of a source adds :meth:`values`.

    Attributes:
        fields: field -> where its value is in a sample.
    """

    def __init__(
        self,
        place: Path | RemoteFiles,
        decoder: Decoder,
        items: Listing[Item],
        classes: tuple[str, ...],
        notes: tuple[str, ...],
        *,
        fields: Mapping[str, str],
    ) -> None:
        super().__init__(place, decoder, items, classes, notes, boxes="boxes" in fields)
        self.fields = fields

    @abstractmethod
    def values(self, index: int, files: SampleFiles) -> Mapping[str, Any]:
        """Returns the values of a sample by field; raises ValueError if one is missing."""

    def part(self, samples: Sequence[int]) -> Self:
        _ = self.schema  # of samples of the whole split
        return super().part(samples)

    @lazy_property
    def schema(self) -> Schema | None:
        """Meaning of the fields, by samples that are spread over the split; None without any.

        Raises:
            ValueError: if no sample can be read, or they cannot be stored.
        """
        if not self.fields:
            return None
        from mmload.sources.schema import Schema  # torch, which a build that has nothing to do does not need

        samples = []
        for index in spread_indices(len(self)):
            with suppress(SampleError, ValueError):  # raised again when the sample is read
                samples.append(self.values(index, self.reader(index)))
        with naming("", SampleError):
            samples = samples or [self.values(0, self.reader(0))]
        return Schema(samples, self.decoder, {name: name for name in self.fields})

    def beside(self, index: int, files: SampleFiles, image: FieldValue) -> Beside:
        if self.schema is None:
            return Beside({})
        from mmload.sources.schema import check_classes

        fields = self.schema(self.values(index, files), {"images": image})
        check_classes(fields, self.classes)
        return Beside(fields, {}, frozenset(self.schema.lists))


S = TypeVar("S", bound=ListedSplit)


def with_held_out(
    splits: Mapping[str, S], stratum: Callable[[Item], Hashable], fraction: float | None, seed: int
) -> dict[str, S]:
    """Returns the splits with a new split ``val``, the same share of every stratum of ``train``; without one as given.

    ``stratum`` returns the group of an item, usually its class; :func:`held_out` selects.

    Raises:
        RecipeError: if there is no ``train``, or a ``val`` already.
        SourceError: if no stratum has two samples.
    """
    if fraction is None:
        return dict(splits)
    if "train" not in splits or any(name.startswith("val") for name in splits):
        raise RecipeError(
            f"val_fraction takes val out of train, and the source has the splits {', '.join(splits)}; "
            "leave val_fraction out"
        )
    train = splits["train"]
    taken = held_out(((train.id(row), stratum(item)) for row, item in enumerate(train.items)), fraction, seed)
    if not taken.any():
        raise SourceError(
            "no class has two samples, so val_fraction has none to move to val; leave it out, or put samples "
            "into a val folder"
        )
    parts = {name: train.part(np.flatnonzero(own).tolist()) for name, own in (("train", ~taken), ("val", taken))}
    return parts | {name: split for name, split in splits.items() if name != "train"}


def note_doubles(
    splits: Mapping[str, ListedSplit], others: tuple[str, ...] = (), kind: str = "image", more: str = ""
) -> None:
    """Adds a note to each split on images that it has several times, or an earlier split has too.

    ``kind`` names the files, and ``more`` ends the first note. The first split gets ``others``, notes on all of them.
    """
    next(iter(splits.values())).add_notes(others)
    earlier: dict[str, npt.NDArray[np.int64]] = {}
    for name, split in splits.items():
        own, count = unique_hashes(split.files(index)[0] for index in range(len(split)))
        if again := count - len(own):
            split.add_notes((f"{counted(again, kind)} listed more than once{more}",))
        for other, hashes in earlier.items():
            if shared := len(np.intersect1d(own, hashes, assume_unique=True)):
                split.add_notes((f"{counted(shared, kind)} also in split {other}",))
        earlier[name] = own


def unique_hashes(texts: Iterable[str]) -> tuple[npt.NDArray[np.int64], int]:
    """Returns the different hashes of some texts, int64 [n] and sorted, and how many texts there are.

    A set of a million texts would take 130 MB.
    """
    hashes = np.fromiter(map(hash, texts), np.int64)
    return np.unique(hashes), len(hashes)


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
    name = _in_one_line(sample)
    return _ESCAPED + name[1:] if _is_comment(name) else name


def _in_one_line(name: str) -> str:
    return name if name.isprintable() else one_line(name)  # which looks at each character


def originals_of(name: str) -> list[str]:
    """Returns the ids that a name in a list may stand for: the name itself, or what its escapes stand for."""
    found = [name, _COMMENT + name.removeprefix(_ESCAPED)]
    with suppress(UnicodeDecodeError):  # a backslash that is none of an escape
        found.append(name.encode("latin-1", "backslashreplace").decode("unicode_escape"))
    return [each for each in dict.fromkeys(found) if listed(each) == name]


def line_of(sample: str, reason: str = "", split: str = "") -> str:
    """Returns a line of a list, without its end; without a split it is about the one that has the sample."""
    return "\t".join((listed(sample), one_line(reason), split)).rstrip("\t")


def read_entries(path: str | Path) -> list[Entry]:
    """Reads the entries of a list.

    Raises:
        RecipeError: if it cannot be read, or a line has more than three fields.
    """
    try:
        text = read_regular(path, most=MOST_BYTES).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise RecipeError(
            f"cannot read the list {path} ({error.strerror}); give a file with one name per line"
        ) from error
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
        entries.append(Entry(number, _in_one_line(name), reason, split.strip()))
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
    wanted, known = _pairs(excluded), _pairs(before)
    found = _indices(splits, wanted | known, {entry.name for entry in entries})
    gone = known.difference(found)
    if missing := wanted.difference(found, gone):
        _raise_missing(*min(missing), splits)
    chosen, of_found, of_gone = wanted | known, _by_name(found), _by_name(gone)
    for entry in entries:
        there = _meant(entry, of_found)
        if there or not _meant(entry, of_gone):
            _check_is_one(entry, there, f"{file}, line {entry.line}: {entry.name!r}", splits)
            chosen.add(there[0])
    left_out = defaultdict[str, set[int]](set)
    for split, sample in chosen.intersection(found):
        left_out[split].update(found[split, sample])
    remaining = {name: _without(name, split, left_out[name]) for name, split in splits.items()}
    return remaining, _by_split(chosen), _by_split(gone)


_Pair = tuple[str, str]
"""Split and id of a sample."""


def _pairs(samples: Excluded) -> set[_Pair]:
    return {(split, sample) for split, ids in samples.items() for sample in ids}


def _by_split(pairs: Iterable[_Pair]) -> dict[str, list[str]]:
    """Returns split -> ids of its samples, sorted."""
    found = defaultdict[str, list[str]](list)
    for split, sample in sorted(pairs):
        found[split].append(sample)
    return dict(found)


def _indices(
    splits: Mapping[str, SourceSplit], wanted: AbstractSet[_Pair], names: AbstractSet[str]
) -> dict[_Pair, list[int]]:
    """Returns the numbers of the samples that are wanted by split and id, or by their names in a list.

    A source may list a sample twice. If none is wanted, no sample is looked at.
    """
    found = defaultdict[_Pair, list[int]](list)
    for name, split in splits.items():
        for index in range(len(split) if wanted or names else 0):
            pair = name, split.id(index)
            if pair in wanted or (names and listed(pair[1]) in names):
                found[pair].append(index)
    return found


def _by_name(pairs: Iterable[_Pair]) -> dict[str, list[_Pair]]:
    """Returns name in a list -> the samples that are listed so."""
    named = defaultdict[str, list[_Pair]](list)
    for pair in pairs:
        named[listed(pair[1])].append(pair)
    return named


def _meant(entry: Entry, named: Mapping[str, Sequence[_Pair]]) -> list[_Pair]:
    """Returns those of some samples that an entry names."""
    return [pair for pair in named.get(entry.name, ()) if entry.split in ("", pair[0])]


def _raise_missing(name: str, sample: str, splits: Mapping[str, SourceSplit]) -> NoReturn:
    """Raises RecipeError on a sample that a recipe excludes, and that is not there."""
    if name not in splits:
        raise RecipeError(f"exclude names the split {name!r}; the source has {choices(splits)}")
    raise RecipeError(
        f"exclude names {sample!r}, which is not a sample of split {name}; mmload info DATASET --row N shows how they "
        "are named"
    )


def _without(name: str, split: SourceSplit, left_out: AbstractSet[int]) -> SourceSplit:
    """Returns a split without some samples."""
    if len(left_out) == len(split):
        raise RecipeError(f"exclude names all {counted(len(split), 'sample')} of split {name}; leave at least one")
    return only(split, np.delete(np.arange(len(split)), list(left_out))) if left_out else split


def _check_is_one(entry: Entry, there: Sequence[_Pair], where: str, splits: Mapping[str, SourceSplit]) -> None:
    """Checks that an entry names exactly one sample; ``there`` are those that it names."""
    if entry.split not in ("", *splits):
        raise RecipeError(f"{where} names the split {entry.split!r}; the source has {choices(splits)}")
    if len(there) > 1:
        raise RecipeError(
            f"{where} exists in the splits {choices(dict(there))}; add the split as a third field, one line per split"
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
        return notes_of(self._split)

    def id(self, index: int) -> str:
        return self._split.id(int(self._remaining[index]))

    def revision(self, index: int) -> str:
        """Returns a sample's revision; the first one's includes that of the complete split's first sample."""
        own = self._split.revision(int(self._remaining[index]))
        return own if index or not self._remaining[0] else f"{self._split.revision(0)} {own}"

    def read(self, index: int) -> Sample:
        return self._split.read(int(self._remaining[index]))
