"""A dataset of Hugging Face: what ``datasets.load_dataset`` or ``load_from_disk`` opens, by name or from a folder.

Columns are told by their features. Images stay encoded until mmload decodes them, so a JPEG is decoded as that of any
other source.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
from msgspec import Meta

from mmload.errors import RecipeError, SampleError, SourceError, UsageError, choices
from mmload.runtime.files import read_regular
from mmload.sources import TIME_MARK, Table, Text, one_or_more
from mmload.sources.decode import Decoder
from mmload.sources.files import MOST_BYTES, SampleFiles
from mmload.sources.listed_split import Item, Listing, ValuesSplit, check_same_classes, value_at
from mmload.sources.objects import read_mask

_BOXES = ("bbox", "bboxes", "boxes")
_LABELS = ("category", "categories", "category_id", "label", "labels", "class", "classes", "class_id")
_VALUES = "values"
"""Name that the values of a row beside its pictures are read by, for their checksum."""


@dataclass
class HuggingFaceSource:
    """A dataset of the package ``datasets``.

    Attributes:
        root: its name, such as ``ethz/food101``; a folder of it, as ``save_to_disk`` or a repository has it; or a file
            of Parquet.
        decoder: decodes images to pixels.
        split: split or splits, with slices such as ``train[:10%]``; None: all.
        name: configuration of the dataset; None: the only one.
        fields: field -> column, with dots for one in another: ``{boxes = "objects.bbox"}``. None: the first column of
            images; ``targets`` of a ClassLabel; ``boxes`` and ``labels`` of columns of such names.
        box_format: how boxes are written, in pixels: "xyxy" (two corners), "xywh" (a corner, width and height, as in
            COCO) or "cxcywh".

    Raises:
        RecipeError: if an option is invalid.
        UsageError: if ``datasets`` is not installed.
    """

    root: str | Path
    decoder: Decoder
    _: KW_ONLY
    split: Annotated[
        str | Annotated[list[str], Meta(min_length=1)] | None, Meta(description="a split, or a list of them")
    ] = None
    name: Text = None
    fields: Table = None
    box_format: Annotated[
        Literal["xyxy", "xywh", "cxcywh"] | None, Meta(description="one of xyxy, xywh and cxcywh")
    ] = None

    def __post_init__(self) -> None:
        try:
            import datasets  # noqa: F401
        except ImportError as error:
            raise UsageError("kind huggingface needs datasets; run: pip install datasets") from error

    def splits(self) -> Mapping[str, HuggingFaceSplit]:
        """Opens the dataset.

        Raises:
            SourceError: if it cannot be opened, or has no images.
            RecipeError: if fields name no column, or the format of boxes has to be given.
        """
        splits = {name: HuggingFaceSplit(self, dataset) for name, dataset in self._opened()}
        named = {name: split.classes for name, split in splits.items() if split.classes}
        check_same_classes(named, "give all splits the same ClassLabel")
        return splits

    def _opened(self) -> Iterator[tuple[str, Any]]:
        """Yields each split and its dataset."""
        import datasets

        root, wanted = str(self.root), one_or_more(self.split)
        try:
            if any((Path(root) / file).is_file() for file in ("dataset_dict.json", "state.json")):
                found = _by_split(datasets.load_from_disk(root), "train")
                yield from ((name, found[name]) for name in wanted or found)
                return
            files = {"path": "parquet", "data_files": root} if root.endswith(".parquet") else {"path": root}
            every: list[str | None] = [*wanted] or [None]
            for split in every:
                found = datasets.load_dataset(**files, name=self.name, split=split)
                yield from _by_split(found, re.split(r"\W", str(split))[0]).items()
        except Exception as error:  # it raises nearly anything
            reason = " ".join(str(error.__cause__ or error).split())[:300]
            raise SourceError(f"datasets cannot open {root} ({type(error).__name__}: {reason})") from error


def _by_split(found: Any, split: str) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {split: found}


class _Row:
    """Row of a dataset, whose pictures are read as files."""

    def __init__(self, row: Mapping[str, Any], pictures: Sequence[str]) -> None:
        self.row, self._pictures = row, pictures

    def read(self, name: str, sample: str) -> bytes:
        """Reads a picture, or all other values as text."""
        if name == _VALUES:
            return repr([self.row[column] for column in sorted(self.row) if column not in self._pictures]).encode()
        cell = value_at(self.row, name) or {}
        if cell.get("bytes") is not None:
            return bytes(cell["bytes"])
        try:
            return read_regular(cell.get("path") or "", most=MOST_BYTES)
        except OSError as error:
            raise SampleError(sample, f"its {name} has neither bytes nor a file ({error.strerror})") from error


class HuggingFaceSplit(ValuesSplit):
    """One split: rows in order."""

    def __init__(self, source: HuggingFaceSource, dataset: Any) -> None:
        import datasets

        leaves = dict(leaves_of(dataset.features))
        pictures = [column for column, feature in leaves.items() if isinstance(feature, datasets.Image)]
        fields = _guessed(leaves) if source.fields is None else dict(source.fields)
        if not pictures:
            raise SourceError(f"{source.root} has no column of images; it has {choices(leaves)}: use the kind python")
        fields.setdefault("images", pictures[0])
        for field, column in fields.items():
            if column not in leaves:
                raise RecipeError(f"fields names {column!r} for {field}; {source.root} has {choices(leaves)}")
        if "boxes" in fields and source.box_format is None:
            raise RecipeError(
                f"{fields['boxes']} are boxes; say how they are written: --set box_format=xywh (a corner, width "
                "and height, as in COCO), xyxy or cxcywh"
            )
        masks = [fields["masks"]] if fields.get("masks") in pictures else []
        self._pictures, self._format = [fields["images"], *masks], source.box_format
        used = set(fields.values())
        columns = sorted({column.split(".")[0] for column in used})
        self._dataset = dataset.select_columns(columns).with_format("arrow")  # pictures stay encoded
        of_classes = (leaves[fields[field]] for field in ("targets", "labels") if field in fields)
        names = next(map(class_names_of, of_classes), ())
        notes = f"columns that are not stored: {', '.join(sorted(leaves.keys() - used))}; name those to store in fields"
        times = " ".join(f"{TIME_MARK}{os.stat(file['filename']).st_mtime_ns}" for file in dataset.cache_files)
        files = (*self._pictures, _VALUES)
        super().__init__(
            Path(str(source.root)),
            source.decoder,
            Listing(Item, (Item(files, times, name=str(row)) for row in range(len(dataset)))),
            names,
            () if leaves.keys() <= used else (notes,),
            fields={field: column for field, column in fields.items() if field != "images"},
        )

    def fetch_ahead(self, samples: Sequence[int]) -> None:
        pass

    def place_of(self, index: int) -> _Row:
        columns = self._dataset[int(self.items[index].name)].to_pydict()
        return _Row({name: values[0] for name, values in columns.items()}, self._pictures)

    def values(self, index: int, files: SampleFiles) -> dict[str, Any]:
        values = {field: value_at(cast(_Row, files.place).row, column) for field, column in self.fields.items()}
        if "boxes" in values:
            values["boxes"] = _corners(values["boxes"], self._format)
        for mask in self._pictures[1:]:
            values["masks"] = read_mask(files, mask)
        files.read(_VALUES)
        return values


def leaves_of(feature: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the columns of a dataset and their features, with dots for those in others."""
    inner = getattr(feature, "feature", None)  # of a list
    table = feature if isinstance(feature, Mapping) else inner
    if not isinstance(table, Mapping):
        yield name, feature
        return
    for column, each in table.items():
        yield from leaves_of(each, f"{name}.{column}" if name else column)


def _guessed(leaves: Mapping[str, Any]) -> dict[str, str]:
    """Returns field -> column, by features and names."""
    fields: dict[str, str] = {}
    for column, feature in leaves.items():
        around, _, name = column.rpartition(".")
        if class_names_of(feature) and not hasattr(feature, "feature") and not around:
            fields.setdefault("targets", column)
        elif name in _BOXES and "boxes" not in fields:
            fields["boxes"] = column
            labels = [each for each in leaves if each in {f"{around}.{label}".lstrip(".") for label in _LABELS}]
            if labels and labels[0] != fields.get("targets"):
                fields["labels"] = labels[0]
    return fields


def class_names_of(feature: Any) -> tuple[str, ...]:
    """Returns the names of a ClassLabel, or of a list of them; none of another feature."""
    return tuple(getattr(getattr(feature, "feature", feature), "names", None) or ())


def _corners(boxes: Any, form: str | None) -> list[list[float]]:
    """Returns boxes as x0, y0, x1, y1."""
    rows = np.array(boxes, np.float64).reshape(-1, 4)
    if form == "cxcywh":
        rows[:, :2] -= rows[:, 2:] / 2
    if form != "xyxy":
        rows[:, 2:] += rows[:, :2]
    corners: list[list[float]] = rows.tolist()
    return corners
