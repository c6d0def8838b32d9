"""Open dataset: its splits by name, each a map-style dataset of rows; and subsets and concatenations of splits.

Opening compares the manifest with the sizes of the files, which is O(shards), not O(rows). It never writes, and needs
neither the source nor Pillow. torch is imported only for batches and tensors: without it, a contact sheet takes a
quarter of the time.

A Loader reads subsets and concatenations, as torch.utils.data makes them, by row number, not item by item. Rows are
numbered as in the Split or ConcatDataset beneath the outermost Subsets. These numbers are the ids of batches and seed
the samples' random draws, so a row of a subset is augmented as it is without the subset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Never, TypeAlias, cast, overload

import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, MmloadError, UsageError, choices, counted, utf8_text
from mmload.lazy import lazy_property
from mmload.records import FieldSpec
from mmload.store.dataset_folder import ROW, Folder, MappedRows, OpenedFile, Places, open_folder, row_map
from mmload.store.manifest import SplitRecord
from mmload.store.row_numbers import (
    Numbers,
    is_single_row,
    row_blocks,
    row_number,
    row_numbers,
    rows_digest,
    sections_of,
    shown_rows,
)
from mmload.store.row_reader import FieldRows, LocalFiles, RowReader
from mmload.store.row_sources import RowSource, Samples

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor
    from torch.utils.data import Subset

    from mmload.batch import Batch
    from mmload.pictures.contact_sheet import Cell

    Rows: TypeAlias = Sequence[int] | Sequence[bool] | slice | Tensor | npt.NDArray[Any]
    """Selection of several rows."""
    from torch import Tensor


_NAMED = 8  # classes that a message names


class Dataset(Mapping[str, "Split"]):
    """Splits of an open dataset by name, at a path or in an open folder.

    Use :func:`mmload.open`.

    Raises:
        StoreError, VersionError, DamagedError: as :func:`~mmload.store.dataset_folder.open_folder`.
    """

    split_type: ClassVar[Callable[..., Split]]

    def __init__(self, place: str | Path | Folder, version: int | None = None) -> None:
        self.folder = place if isinstance(place, Folder) else open_folder(place, version)[0]
        self.path, self.manifest = self.folder.path, self.folder.manifest
        splits = self.manifest.splits.items()
        self._splits = {name: self.split_type(self.folder, name, record) for name, record in splits}

    def __getitem__(self, name: str) -> Split:
        if name not in self._splits:
            raise UsageError(f"{self.folder.title} has no split {name!r}; it has {choices(self._splits)}")
        return self._splits[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the split, or the default if there is none of that name."""
        return self._splits.get(name, default)  # the method of Mapping waits for a KeyError

    def __contains__(self, name: object) -> bool:
        return name in self._splits

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    @property
    def built_splits(self) -> dict[str, Split]:
        """Splits of the source by name: all but subsets, whose rows are theirs."""
        return {name: self._splits[name] for name in self.manifest.built_splits}

    def add_field(self, name: str, values: Any, **more: Any) -> Dataset:
        """Returns the dataset with a field more, in its next version; see :func:`mmload.add_field`."""
        import mmload

        return mmload.add_field(self, name, values, **more)

    def remove_field(self, name: str, **more: Any) -> Dataset:
        """Returns the dataset without a field that was added, in its next version; see :func:`mmload.remove_field`."""
        import mmload

        return mmload.remove_field(self, name, **more)

    def save_subset(self, name: str, rows: Rows | Sequence[str], **more: Any) -> Dataset:
        """Returns the dataset with rows saved under a name, in its next version; see :func:`mmload.save_subset`."""
        import mmload

        return mmload.save_subset(self, name, rows, **more)

    def remove_subset(self, name: str) -> Dataset:
        """Returns the dataset without a subset, in its next version; see :func:`mmload.remove_subset`."""
        import mmload

        return mmload.remove_subset(self, name)

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook: the splits, with a few rows of each."""
        return "".join(split._repr_html_() for split in self.values())

    def __repr__(self) -> str:
        return f"Dataset({self.folder.title!r}: {', '.join(f'{n} {len(s):,}' for n, s in self._splits.items())})"


class Split:
    """Split of an open dataset: a map-style dataset for ``torch.utils.data``. Picklable, thread-safe.

    ``split[i]`` is one row, ``split[2:8]``, ``split[[5, 1]]`` and ``split[mask]`` are batches; all are
    :class:`~mmload.batch.Batch`.

    Files are opened lazily, and always belong to the dataset that was opened: if it has been replaced or overwritten
    since, reads either return the old rows or raise a StoreError.

    Attributes:
        folder: folder of the dataset.
        name: name of the split.
        record: its manifest entry.
        files: files of its shards.
        reader: reads its rows by their numbers, contiguous int64 [B], which it does not check; :meth:`rows` does.
        samples: the samples that its rows were made of.
    """

    files_type: ClassVar[Callable[..., LocalFiles]] = LocalFiles
    in_chunks: ClassVar[bool] = False  # of object storage

    def __init__(self, folder: Folder, name: str, record: SplitRecord) -> None:
        self.folder = folder
        self.name = name
        self.record = record
        self.files = self.files_type(folder, name, record)
        self.reader = RowReader(self.files.field, record.fields)
        self.samples = Samples(folder, name, record)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuses the attributes by which torchvision's datasets are given transforms, as nothing would apply them.

        Raises:
            UsageError: if the attribute is one of them.
        """
        if name in ("transform", "target_transform", "transforms"):
            raise UsageError(
                f"a split applies no {name}: give the Loader collate=Collate(...) of the steps of mmload.augment, or a "
                "DataLoader collate_fn="
            )
        super().__setattr__(name, value)

    @property
    def path(self) -> Path:
        """Folder of the dataset."""
        return self.folder.path

    @property
    def version(self) -> int:
        """Number of the dataset's version."""
        return self.folder.manifest.version

    @property
    def digest(self) -> int:
        """63-bit digest of the samples that the rows are made of, the same in builds to other sizes and in copies."""
        record = self.record
        made_of = record.rows, record.samples.crc32, record.classes, record.class_counts
        return int.from_bytes(sha256(repr(made_of).encode()).digest()[:8], "little") >> 1

    @lazy_property
    def fields(self) -> dict[str, FieldSpec]:
        """Name -> dtype and row shape of each stored field; lists are padded to the most elements of a row."""
        stored = self.record.fields
        return {name: self.reader.spec(name) if spec.is_list else spec for name, spec in stored.items()}

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by index."""
        return self.record.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name -> index, as torchvision's datasets have it."""
        return {name: index for index, name in enumerate(self.classes)}

    @lazy_property
    def targets(self) -> list[Any]:
        """Class index of every row, as torchvision's datasets list them; lists of floats in a multi-label split.

        Raises:
            AttributeError: if the split has no targets.
        """
        if "targets" not in self.fields:
            raise AttributeError(f"{self!r} has no targets")
        numbers = row_numbers(slice(None), len(self), self._name_in_messages)
        targets: list[Any] = self.reader.gather("targets", numbers).tolist()
        return targets

    if not TYPE_CHECKING:  # as mypy would accept every name

        def __getattr__(self, name: str) -> Never:
            """Raises AttributeError, which says how to read a field."""
            if name.startswith("_") or "record" not in vars(self):  # copy and pickle look for their methods
                raise AttributeError(name)
            field = "targets" if name == "labels" and name not in self.fields else name
            hint = f"; read that field as split[:].{field}" if field in self.fields else ""
            raise AttributeError(f"{self!r} has no {name}{hint}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "targets"}

    @property
    def mean(self) -> tuple[float, ...]:
        """Per-channel mean of the stored images' pixels, borders left out, in [0, 1], for ``Normalize``."""
        return self.record.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Per-channel standard deviation of the same pixels, in [0, 1], for ``Normalize``."""
        return self.record.std

    def __len__(self) -> int:
        return self.record.rows

    def __getitem__(self, index: Rows | int) -> Batch:
        if not is_single_row(index):
            return self.rows(index)  # type: ignore[arg-type]  # not a single row
        row: Batch = self.rows([row_number(index, len(self), self._name_in_messages)])[0]
        return row

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Returns several rows; ``torch.utils.data.DataLoader`` calls this for each batch."""
        return self.rows(indices)

    def rows(self, rows: Rows) -> Batch:
        """Returns several rows.

        Args:
            rows: their numbers as a list, array or tensor; a slice; or a mask of one boolean per row. Negative numbers
                count from the end.

        Returns:
            A batch. With variable-size images it is a lazy stack, which a Collate takes: ``batch[i].images`` is uint8
            [C, H, W], ``batch.get("images", as_list=True)`` lists them, and ``batch.images`` is an error unless all
            have one size.

        Raises:
            IndexError: if a row is out of range, or a mask has another length than the split.
            TypeError: if they are neither integers nor booleans.
        """
        import torch

        from mmload.batch import make_batch, make_variable_size_batch  # tensordict: to open a dataset does not need it

        numbers = row_numbers(rows, len(self), self._name_in_messages)
        with noting_rows("reading", self, numbers):
            fields = {n: self.reader.gather(n, numbers) for n, spec in self.fields.items() if not spec.variable_size}
            if len(fields) == len(self.fields):
                return make_batch(fields, len(numbers), ids=torch.from_numpy(numbers))
            others = [name for name in self.fields if name not in fields]
            own = {name: list(map(torch.from_numpy, self.reader.rows(name, numbers))) for name in others}
            return make_variable_size_batch(fields, own, torch.from_numpy(numbers))

    def check_files(self) -> None:
        """Checks that no file that was opened has changed: one ``stat`` each.

        Raises:
            DamagedError, StoreError: if one was truncated or written to.
        """
        self.files.check()

    def subset(self, rows: Rows) -> Subset[Batch]:
        """Returns a ``torch.utils.data`` dataset of some rows, which are chosen as for :meth:`rows`."""
        from torch.utils.data import Subset

        numbers = row_numbers(rows, len(self), self._name_in_messages)
        return Subset(self, numbers)  # type: ignore[arg-type]  # map-style by its methods

    @overload
    def source(self, row: int) -> RowSource: ...

    @overload
    def source(self, row: Rows) -> list[RowSource]: ...

    def source(self, row: Rows | int) -> RowSource | list[RowSource]:
        """Returns the sample that a row was made of: its id in its source, usually a path, and its original size.

        Args:
            row: a row number; or several rows, chosen as for :meth:`rows`, for a list.

        Raises:
            IndexError, TypeError: as :meth:`rows`.
            DamagedError: if ``samples.jsonl`` is not what the manifest says.
        """
        if is_single_row(row):
            return self.samples.source(row_number(row, len(self), self._name_in_messages))
        return self.samples.sources(row_numbers(row, len(self), self._name_in_messages))

    @overload
    def row_of(self, name: str) -> int: ...  # type: ignore[overload-overlap]  # a str is a sequence of str, too

    @overload
    def row_of(self, name: Sequence[str]) -> Tensor: ...

    def row_of(self, name: str | Sequence[str]) -> int | Tensor:
        """Returns the row that was made from a sample; the inverse of :meth:`source`.

        Args:
            name: id of a sample; or several ids, for int64 [B].

        Raises:
            UsageError: if no row was made from it, or several were.
            DamagedError: if ``samples.jsonl`` is not what the manifest says.
        """
        if isinstance(name, str):
            return self.samples.row_of(name)
        import torch

        return torch.tensor([self.samples.row_of(each) for each in name], dtype=torch.int64, device="cpu")

    def table(self) -> Any:
        """Returns a ``pyarrow.Table`` with one row per row; without pyarrow, a ``pandas.DataFrame``.

        Columns: ``row``; ``id`` of the sample; ``class``, its name, with class targets; ``height`` and ``width`` of the
        source's image, 0 if unknown; ``stored_height`` and ``stored_width`` with variable-size images; and every
        field of one value per row, by its name, or as ``field_NAME`` if the name is one of those above.

        Raises:
            UsageError: if neither is installed.
            DamagedError, StoreError: as :meth:`rows` and :meth:`source`.
        """
        return table_of(self.reader, self.record, self.source(slice(None)))

    def preview(self, rows: Rows | None = None, *, columns: int = 8, count: int = 48, seed: int = 0) -> Image.Image:
        """Returns a contact sheet of stored rows, with boxes and masks, classes, row numbers. A notebook shows it.

        Args:
            rows: chosen as for :meth:`rows`; None: as many of each class as possible, drawn at random.
            columns: number of columns.
            count: number of rows that are drawn.
            seed: seed of that draw.

        Raises:
            UsageError: if the split has no images, or no row is chosen.
            ValueError: if there is less than one column, or there are more than 1024 rows.
            IndexError, TypeError: as :meth:`rows`.
        """
        from mmload.pictures.contact_sheet import contact_sheet

        cells = cells_of_rows(self, first_rows(self, count, seed=seed) if rows is None else rows)
        return contact_sheet(cells, columns, title=f"{self.path.name}, {self.name}", classes=self.classes)

    def _repr_html_(self) -> str:
        """Returns the split for a notebook: its description and a few rows."""
        from mmload.pictures.drawing import figure

        try:
            shown = figure(self.preview(count=16), f"rows of split {self.name}") if len(self) else ""
        except MmloadError:  # no images
            shown = ""
        return f"<div><code>{escape(repr(self))}</code>{shown}</div>"

    @property
    def _name_in_messages(self) -> str:
        return f"split {self.name!r}"

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {spec}" for name, spec in self.record.fields.items())
        return f"Split({self.name!r} of {self.folder.title!r}: {counted(len(self), 'row')} of {shown})"


Dataset.split_type = Split


@contextmanager
def noting_rows(doing: str, split: object, rows: Numbers) -> Iterator[None]:
    """Adds what was done with which rows to an error that is not mmload's own, such as a MemoryError.

    A DataLoader reports the notes of its workers' errors.
    """
    try:
        yield
    except MmloadError:
        raise
    except Exception as error:
        error.add_note(f"while {doing} {split!r}: {shown_rows(rows)}")
        raise


@dataclass(frozen=True)
class View:
    """Rows of a split or a concatenation, and which of them: int64 [N], or None for all."""

    rows: AnySplit
    chosen: Numbers | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.chosen is None else len(self.chosen)

    @property
    def subset(self) -> int | None:
        """Digest of the chosen rows in their order; None: all rows."""
        return None if self.chosen is None else rows_digest(self.chosen)

    def ids(self, positions: Numbers) -> Numbers:
        """Returns the row number at each position, int64 [B]."""
        return positions if self.chosen is None else self.chosen[positions]


def view_of(dataset: object) -> View:
    """Returns what a loader reads for a Split, a Subset or a ConcatDataset, nested in any way.

    Raises:
        TypeError: if it contains anything else, such as a subclass of Subset or ConcatDataset, which may do more.
        UsageError: if the splits have different fields or classes.
        IndexError: if a subset has rows that do not exist.
    """
    from torch.utils.data import ConcatDataset, Subset

    if isinstance(dataset, Split):
        return View(dataset)
    if type(dataset) is ConcatDataset:
        return View(Joined([view_of(part) for part in dataset.datasets]))
    if type(dataset) is Subset:
        view = view_of(dataset.dataset)
        rows = row_numbers(dataset.indices, len(view), "the subset's dataset")
        return View(view.rows, view.ids(rows))
    raise TypeError(
        "a Loader reads a path, a Dataset, a Split, or a Subset or ConcatDataset of splits, "
        f"not {type(dataset).__name__}; torch's DataLoader takes any dataset"
    )


class Joined:
    """Rows of a ConcatDataset, with the attributes of a Split that a loader needs.

    Attributes:
        parts: what is joined, in its order.
        sources: the splits or concatenations that the parts are of, each of them once.
        name: name for messages.
        record: the record of the first source, whose fields and classes are those of all.
        fields: name -> dtype and row shape, the same for all but for the padding of lists.
        classes: class names by index.
        reader: reads rows by their number in the concatenation.
        version: None, as there may be several datasets.
        in_chunks: False, as the chunks of a concatenation have no common numbers.
    """

    version: int | None = None
    in_chunks = False

    def __init__(self, parts: Sequence[View]) -> None:
        self.parts, self.sources = parts, list(dict.fromkeys(part.rows for part in parts))
        first, self._starts = self.sources[0], np.cumsum([0, *map(len, parts)])
        self._of_parts = np.array([self.sources.index(part.rows) for part in parts])
        has_subset = any(part.chosen is not None for part in parts)
        self._numbers = np.concatenate([part.ids(np.arange(len(part))) for part in parts]) if has_subset else None
        for other in self.sources[1:]:
            _check_alike(first, other)
        self.record: SplitRecord = first.record
        self.classes: tuple[str, ...] = first.classes
        self.name: str = " + ".join(source.name for source in self.sources)
        self.reader = RowReader(partial(JoinedRows, self), self.record.fields)
        self.fields: dict[str, FieldSpec] = {name: self.reader.spec(name) for name in first.fields}

    @property
    def digest(self) -> int:
        """63-bit digest of the samples that the rows are made of."""
        made_of = [(part.rows.digest, part.subset) for part in self.parts]
        return int.from_bytes(sha256(repr(made_of).encode()).digest()[:8], "little") >> 1

    def __len__(self) -> int:
        return int(self._starts[-1])

    def check_files(self) -> None:
        """Checks that no file that was opened has changed; raises what a split does."""
        for source in self.sources:
            source.check_files()

    def by_source(self, rows: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yields the index of each source with some of the rows, which of them these are, and their numbers there."""
        owners = sections_of(rows, self._starts[:-1])
        numbers = rows - self._starts[owners] if self._numbers is None else self._numbers[rows]
        sources = self._of_parts[owners]
        for source in sorted(set(sources.tolist())):  # np.unique gives the interpreter lock away
            owned = np.flatnonzero(sources == source)
            yield source, owned, numbers[owned]

    def __repr__(self) -> str:
        return f"{counted(len(self), 'row')} of {', '.join(map(repr, self.sources))}"


AnySplit: TypeAlias = Split | Joined
"""Rows that a loader can read."""


class JoinedRows:
    """Rows of one field of several splits, by their numbers in a concatenation. Thread-safe."""

    def __init__(self, joined: Joined, name: str) -> None:
        self._joined = joined
        self._fields = [cast(FieldRows | JoinedRows, source.reader.field(name)) for source in joined.sources]
        self.spec: FieldSpec = self._fields[0].spec
        self._first_files = np.cumsum([0, *(field.shards for field in self._fields)]).tolist()
        self.shards: int = self._first_files[-1]

    def __len__(self) -> int:
        return len(self._joined)

    def opened(self) -> list[OpenedFile]:
        """Returns the open files of the rows."""
        return [file for field in self._fields for file in field.opened()]

    def mapped(self, ranks: int = 1) -> MappedRows | None:
        return row_map(self.opened, self.spec, ranks)

    def located(self, rows: Numbers) -> Places:
        places = np.empty(len(rows), ROW)
        for source, owned, numbers in self._joined.by_source(rows):
            found = self._fields[source].located(numbers)
            found["file"] += self._first_files[source]
            places[owned] = found
        return places

    def fill(self, places: Places, out: memoryview, starts: Numbers) -> None:
        sources = np.searchsorted(self._first_files, places["file"], "right") - 1
        for source in sorted(set(sources.tolist())):
            owned = np.flatnonzero(sources == source)
            own = places[owned]
            own["file"] -= self._first_files[source]
            self._fields[source].fill(own, out, starts[owned])

    def damaged(self, row: int, reason: str) -> DamagedError:
        ((source, _, numbers),) = self._joined.by_source(np.array([row]))
        return self._fields[source].damaged(int(numbers[0]), reason)


def _check_alike(first: AnySplit, other: AnySplit) -> None:
    for what in ("fields", "classes"):  # as stored: lists of any length are alike
        if getattr(first.record, what) != getattr(other.record, what):
            raise UsageError(
                f"{first!r} and {other!r} have different {what}: they cannot be joined; build them with the same recipe"
            )


def cells_of_rows(split: Split, rows: Any) -> list[Cell]:
    """Returns stored rows as cells of a :func:`~mmload.pictures.contact_sheet.contact_sheet`.

    Raises:
        UsageError: if the split has no uint8 images, or no row is chosen.
        IndexError, TypeError: as :meth:`~mmload.store.dataset.Split.rows`.
    """
    from mmload.pictures.contact_sheet import SHOWN, cells_of

    where = f"split {split.name!r} of {split.folder.title}"
    spec = split.fields.get("images")
    if spec is None or spec.dtype != "uint8":
        raise UsageError(f"{where} has no uint8 images to show; it has {choices(split.fields)}")
    numbers = row_numbers(rows, len(split), f"split {split.name!r}")
    if not len(numbers):
        raise UsageError(f"no row of {where} is chosen, so there is nothing to show")
    shown = {name: split.reader.rows(name, numbers) for name in SHOWN if name in split.fields}
    cells = []
    for place, row in enumerate(numbers):  # one by one, as no array holds images of several sizes
        fields = {"ids": row[None], **{name: rows[place][None] for name, rows in shown.items()}}
        cells += cells_of(fields, split.classes, skeleton=skeleton_of(split.record))
    return cells


def skeleton_of(record: SplitRecord) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of keypoints that a line joins; empty without keypoints."""
    return () if record.objects is None else record.objects.skeleton


def first_rows(split: Split, count: int, *, seed: int = 0, of_class: str | None = None) -> Numbers:
    """Returns at most ``count`` rows for a first look, int64 [n]: as many of each class as possible, drawn at random.

    They are sorted by class, or of one class.

    Raises:
        UsageError: as :func:`rows_of_class`.
    """
    from mmload.pictures.contact_sheet import first_to_see

    if of_class is not None:
        members = rows_of_class(split, of_class)
        chosen: Numbers = members[first_to_see(None, len(members), count, seed)]
        return chosen
    spec = split.fields.get("targets")
    targets = None
    if spec is not None and spec.shape == () and split.classes:
        targets = split.reader.array("targets", np.arange(len(split)))
    return first_to_see(targets, len(split), count, seed)


def rows_of_class(split: Split, name: str) -> Numbers:
    """Returns the rows of the class of a name, or with a box of it, ascending: int64 [n].

    Raises:
        UsageError: if there is no such class, or rows have no classes.
    """
    where = f"split {split.name!r} of {split.folder.title}"
    if name not in split.classes:
        more = f", ... ({len(split.classes) - _NAMED:,} more)" if len(split.classes) > _NAMED else ""
        raise UsageError(f"{where} has no class {name!r}; it has {', '.join(split.classes[:_NAMED]) or 'none'}{more}")
    field = class_field(split.record)
    if field is None:
        raise UsageError(f"rows of {where}, {counted(len(split), 'row')} of {choices(split.fields)}, have no classes")
    return members_of(split.reader, split.record, field, split.classes.index(name))


def class_field(record: SplitRecord) -> str | None:
    """Returns the field that says which of a split's classes a row has; None if there is none."""
    targets, labels = record.fields.get("targets"), record.fields.get("labels")
    if targets is not None and targets.shape in ((), (len(record.classes),)):
        return "targets" if record.classes else None
    return "labels" if labels is not None and len(labels.shape) == 1 and record.classes else None


def members_of(reader: RowReader, record: SplitRecord, field: str, index: int) -> Numbers:
    """Returns the rows of a class, ascending: those with its index, a share of it in a vector, or a box of it."""
    found = [np.empty(0, np.int64)]
    for rows in row_blocks(record.rows):
        if field == "labels":
            is_member = (labels_of(reader, record, rows) == index).any(1)
        else:
            targets = reader.array(field, rows)
            is_member = targets[:, index] > 0 if targets.ndim == 2 else targets == index
        found.append(rows[is_member])
    return np.concatenate(found)


def labels_of(reader: RowReader, record: SplitRecord, rows: Numbers) -> npt.NDArray[Any]:
    """Returns the classes of the boxes of rows, [n, boxes]; -1 behind the boxes that they have."""
    labels, counts = reader.array("labels", rows), record.fields.get("counts")
    if counts is None or counts.shape != ():
        return labels
    return np.where(np.arange(labels.shape[1]) < reader.array("counts", rows)[:, None], labels, -1)


def table_of(reader: RowReader, record: SplitRecord, sources: Sequence[RowSource]) -> Any:
    """Returns a table with one row per row of a split; see :meth:`mmload.store.dataset.Split.table`.

    Raises:
        UsageError: if neither pyarrow nor pandas is installed.
    """
    columns = _columns(reader, record, sources)
    with suppress(ImportError):
        import pyarrow

        return pyarrow.table(columns)
    try:
        import pandas
    except ImportError as error:
        raise UsageError("a table needs pyarrow or pandas; run: pip install pyarrow") from error
    return pandas.DataFrame(columns)


def _columns(reader: RowReader, record: SplitRecord, sources: Sequence[RowSource]) -> Mapping[str, Any]:
    rows = np.arange(len(sources))
    columns: dict[str, Any] = {"row": rows, "id": [utf8_text(source.id) for source in sources]}
    single = {name: reader.array(name, rows) for name, spec in record.fields.items() if spec.shape == ()}
    targets = single.get("targets")
    if record.classes and targets is not None and targets.dtype.kind == "i":
        names = np.array([*record.classes, None], object)
        columns["class"] = names[np.where((targets >= 0) & (targets < len(record.classes)), targets, -1)]
    sizes = np.array([source.size or (0, 0) for source in sources], np.int64).reshape(-1, 2)
    columns |= {"height": sizes[:, 0], "width": sizes[:, 1]}
    images = record.fields.get("images")
    if images is not None and images.variable_size:
        stored = reader.image_sizes()
        columns |= {"stored_height": stored[:, 0], "stored_width": stored[:, 1]}
    return columns | {f"field_{name}" if name in columns else name: values for name, values in single.items()}
