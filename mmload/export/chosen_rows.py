"""Chooses the rows of a dataset that an export takes, and reads them on several threads, in order."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from mmload.errors import UsageError, choices
from mmload.pictures.drawing import color_of, png
from mmload.records import VOID
from mmload.runtime.resources import check_threads, in_threads
from mmload.store.dataset import Dataset, Split
from mmload.store.row_cells import rows_of_class


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export that is complete.

    Attributes:
        out: its folder.
        rows: number of rows written.
        notes: notes on differences from the dataset, one sentence each.
        next: suggested next steps, lines of a shell or of Python.
    """

    out: Path
    rows: int
    notes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()


_LEVEL = 1  # of masks: a quarter of level 6's time

CHANNELS = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's mode of an image with so many channels."""


def png_of(image: npt.NDArray[Any]) -> bytes:
    """Encodes an image, uint8 [C, H, W] with 1 to 4 channels, as PNG: gray, gray and alpha, RGB, RGB and alpha."""
    return png(image.transpose(1, 2, 0))


def png_of_mask(mask: npt.NDArray[Any]) -> bytes:
    """Encodes a mask, uint8 [H, W], as PNG: a palette image whose indices are the classes."""
    image = Image.fromarray(np.ascontiguousarray(mask)).convert("L")
    image.putpalette(_PALETTE)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=_LEVEL)
    return file.getvalue()


_COLORS = [(0, 0, 0), *(color_of(index) for index in range(1, VOID)), (255, 255, 255)]
_PALETTE = [level for color in _COLORS for level in color]
"""The background black, void white, each class in the color that contact sheets give it."""


Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""

T = TypeVar("T")

_CHUNK_BYTES = 4 * 2**20
_VARIABLE_ROWS = 16  # variable-size images
_MOST_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Rows to export.

    Attributes:
        split: only this split; None: all but subsets.
        of_class: only rows of the class of this name, or with a box of it; None: all.
        limit: number of rows per split, from the first; None: all.

    Raises:
        UsageError: if the limit is not a positive integer.
    """

    split: str | None = None
    of_class: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise UsageError(f"limit is {self.limit!r}; give a positive number of rows")


class ChosenSplit(NamedTuple):
    """Rows of a split, int64 [n] in ascending order; at least one."""

    split: Split
    rows: Tensor


class ExportRow(NamedTuple):
    """A stored row: its split and number, the id of its sample in the source, its fields as arrays; lists unpadded."""

    split: str
    number: int
    id: str
    fields: Mapping[str, npt.NDArray[Any]]


def chosen_rows(dataset: Dataset, choice: Choice | None) -> list[ChosenSplit]:
    """Returns the rows that an export takes, split by split; None: all.

    Raises:
        UsageError: if there is no such split or class, or no such row.
    """
    choice = choice or Choice()
    splits = list(dataset.built_splits.values()) if choice.split is None else [dataset[choice.split]]
    chosen = []
    for split in splits:
        rows = (
            torch.arange(len(split), device="cpu")
            if choice.of_class is None
            else torch.from_numpy(rows_of_class(split, choice.of_class))
        )
        if len(rows):
            chosen.append(ChosenSplit(split, rows[: choice.limit]))
    if not chosen:
        of_class = "" if choice.of_class is None else f" of class {choice.of_class!r}"
        raise UsageError(f"{dataset.path} has no row{of_class} in {choices(split.name for split in splits)}")
    return chosen


def check_images(chosen: Iterable[ChosenSplit]) -> None:
    """Checks that all rows have images that a PNG can hold.

    Raises:
        UsageError: if they do not.
    """
    advice = "export to huggingface instead"
    for split, _ in chosen:
        spec = split.fields.get("images")
        where = f"split {split.name!r} of {split.path}"
        if spec is None or spec.dtype != "uint8" or len(spec.shape) != 3:
            raise UsageError(f"{where} has no uint8 images; it has {choices(split.fields)}; {advice}")
        if spec.shape[0] > 4:
            raise UsageError(f"images of {where} have {spec.shape[0]} channels, a PNG has 1 to 4; {advice}")


def in_parallel(
    chosen: Iterable[ChosenSplit],
    make: Callable[[ExportRow], T],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[T]:
    """Yields the result of ``make`` for each row, in order; reads and makes rows on several threads.

    ``progress`` is called from the caller's thread.

    Raises:
        UsageError: if the number of threads is invalid.
        StoreError: if a row cannot be read.
    """
    check_threads(threads)
    chosen = list(chosen)
    total, done = sum(len(rows) for _, rows in chosen), 0

    def made(part: tuple[Split, Tensor]) -> list[T]:
        return [make(row) for row in _read(*part)]

    chunks = ((split, part) for split, rows in chosen for part in _parts(rows, _chunk_rows(split)))
    for results in in_threads(chunks, made, threads):
        yield from results
        done += len(results)
        if progress is not None:
            progress(done, total)


def class_names(split: Split, field: str) -> tuple[str, ...]:
    """Returns the names of the classes that an integer field counts; their numbers if the split has no such names.

    Without the field, ``targets`` or ``labels``, they are the split's. Of a split with both, they may be the other's.
    """
    if field not in split.fields or not len(split):
        return split.classes
    most = int(split.reader.gather(field, torch.arange(len(split), device="cpu")).max())
    if most < len(split.classes):
        return split.classes
    return tuple(f"{index:0{len(str(most))}d}" for index in range(most + 1))


def _parts(rows: Tensor, most: int) -> Iterator[Tensor]:
    return (rows[start : start + most] for start in range(0, len(rows), most))


def _chunk_rows(split: Split) -> int:
    if any(spec.variable_size for spec in split.fields.values()):
        return _VARIABLE_ROWS
    row = sum(spec.row_bytes for spec in split.fields.values())
    return min(_MOST_ROWS, max(1, _CHUNK_BYTES // max(1, row)))


def _read(split: Split, rows: Tensor) -> Iterator[ExportRow]:
    split.check_changed()
    columns = {name: split.reader.rows(name, rows.numpy()) for name in split.fields}
    counts = {name: split.reader.lists(name).counts(rows.numpy()) for name in split.fields if is_list(split, name)}
    sources = split.source(rows)
    for place, number in enumerate(rows.tolist()):
        fields = {name: np.asarray(values[place]) for name, values in columns.items()}
        fields |= {name: fields[name][: own[place]] for name, own in counts.items()}
        yield ExportRow(split.name, number, sources[place].id, fields)


def is_list(split: Split, field: str) -> bool:
    """Returns whether rows differ in their number of elements of a field."""
    return split.record.fields[field].is_list
