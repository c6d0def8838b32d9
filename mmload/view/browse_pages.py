"""Answers the page of ``mmload browse``, with data and pictures: splits, rows, a photograph, its draws, marks.

It takes the parts of an address and returns a :class:`PageReply`. It knows nothing of tokens, hosts and connections:
:mod:`mmload.view.browse_server` checks those first.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.errors import MmloadError, SampleError, UsageError, one_line
from mmload.pictures.contact_sheet import Cell, annotated, name_in_legend, name_of_target, shown_classes
from mmload.pictures.drawing import data_url, encoded, name_of
from mmload.records import has_images
from mmload.sources.files import inner_name
from mmload.sources.listed_split import originals_of
from mmload.store.dataset import Dataset, Split, cells_of_rows, class_field, labels_of, members_of
from mmload.view.facts import table_of
from mmload.view.marks import REASONS, Marks

if TYPE_CHECKING:
    from mmload.augment import Views
    from mmload.augment.collate import Collate

Numbers = npt.NDArray[np.int64]

DRAWS = 20
"""Draws of a row."""

MOST_ROWS = 200
"""Rows of one page."""

_THUMBNAIL, _LARGE, _DRAWN, _PHOTOGRAPH = 160, 512, 224, 1024  # pixels of a side
_NEIGHBORS = 7  # rows in the batch of a draw beside it, so that steps that mix samples have something to mix
_CACHED = 8  # classes whose rows are cached
_NUMBER = re.compile(r"[0-9]{1,18}")


class PageReply(NamedTuple):
    """Reply to a browser: a status, the kind of content, and the content."""

    status: int
    kind: str
    body: bytes


class Pages:
    """Answers for one dataset. Thread-safe.

    Without a source photographs are not shown, and without an augmentation no draws, which a collate of ``collate_for``
    makes, given the number of classes.

    Raises:
        StoreError: if there is no dataset that can be opened.
        RecipeError: if the marks' file is no list.
    """

    def __init__(
        self,
        dataset: Path,
        marks: Path,
        *,
        source: Path | None = None,
        augmentation: str = "",
        collate_for: Callable[[int], Collate | Views | None] = lambda classes: None,
        seed: int = 0,
    ) -> None:
        self._dataset = Dataset(dataset)
        self._marks = Marks(marks, self._dataset.path)
        self._originals = Originals(source, self._dataset.manifest.recipe)
        self._augmentation, self._collate_for, self._seed = augmentation, collate_for, seed
        self._members = lru_cache(_CACHED)(_members)
        self._gets: Mapping[str, Callable[[Mapping[str, str]], PageReply]] = {
            "": lambda query: _static("browse.html", "text/html"),
            "style.css": lambda query: _static("browse.css", "text/css"),
            "script.js": lambda query: _static("browse.js", "text/javascript"),
            "api/about": self._about,
            "api/rows": self._rows,
            "api/row": self._row,
            "api/draws": self._draws,
            "image/thumbnail": lambda query: self._stored(query, _THUMBNAIL),
            "image/stored": lambda query: self._stored(query, _LARGE),
            "image/source": self._photograph,
        }

    def get(self, place: str, query: Mapping[str, str]) -> PageReply:
        """Answers a place with the values of its query; errors are replies, too."""
        found = self._gets.get(place)
        if found is None:
            return _error(404, f"there is nothing at {place!r:.80}")
        return _answered(lambda: found(query))

    def post(self, place: str, body: bytes) -> PageReply:
        """Marks a row, or takes its mark away: ``api/marks`` with JSON of ``split``, ``row`` and ``reason`` or null."""
        if place != "api/marks":
            return _error(404, f"nothing can be sent to {place!r:.80}")
        return _answered(lambda: self._mark(body))

    def _about(self, query: Mapping[str, str]) -> PageReply:
        """Describes the dataset and its splits."""
        splits = [
            {
                "name": name,
                "rows": split.record.rows,
                "classes": [
                    {"name": each, "rows": split.record.class_counts[index] if any(split.record.class_counts) else None}
                    for index, each in enumerate(split.record.classes)
                ],
                "filter": class_field(split.record) is not None,
                "images": has_images(split.record.fields),
            }
            for name, split in self._dataset.items()
        ]
        return _json(
            {
                "name": self._dataset.path.name,
                "splits": splits,
                "augmentation": self._augmentation,
                "draws": DRAWS,
                "marks": str(self._marks.path),
                "marked": len(self._marks.current()),
                "reasons": REASONS,
            }
        )

    def _rows(self, query: Mapping[str, str]) -> PageReply:
        """Lists some rows of a split, of one class or of all, or of those that are marked."""
        split = self._dataset[query.get("split", "")]
        offset, count = _number(query, "offset", 0), min(_number(query, "count", 48), MOST_ROWS)
        if "marked" in query:
            chosen: Numbers | range = self._marked(split)
        elif "class" in query:
            chosen = self._members(split, _number(query, "class"))
        else:
            chosen = range(len(split))
        marks = self._marks.current()
        numbers = np.asarray(chosen[offset : offset + count], np.int64)
        described = zip(numbers.tolist(), _class_texts(split, numbers), split.source(numbers), strict=True)
        rows = [
            {"row": row, "name": name, "id": source.id, "mark": marks.reason(source.id, _owner(split))}
            for row, name, source in described
        ]
        return _json({"total": len(chosen), "rows": rows, "marked": len(marks)})

    def _row(self, query: Mapping[str, str]) -> PageReply:
        """Describes one row: where it is from, its classes, boxes and mask."""
        split, row = self._row_of(query)
        source = split.source(row)
        body: dict[str, Any] = {
            "row": row,
            "id": source.id,
            "size": source.size,
            "name": _class_texts(split, np.array([row]))[0],
            "mark": self._marks.current().reason(source.id, _owner(split)),
            "source": self._originals.missing(source.id),
            "shape": None,
            "boxes": None,
            "legend": [],
        }
        fields = split.record.fields
        if has_images(fields):
            (cell,) = cells_of_rows(split, [row])
            legend = (name_in_legend(index, split.record.classes) for index in shown_classes([cell]))
            body["legend"] = [{"name": name, "color": f"#{bytes(color).hex()}"} for name, color in legend]
            body["shape"] = list(fields["images"].shape)
            body["boxes"] = len(cell.boxes) if {"boxes", "labels"} <= fields.keys() else None
            body["mask"] = cell.mask is not None
        return _json(body)

    def _stored(self, query: Mapping[str, str], side: int) -> PageReply:
        """Draws the stored picture, with its boxes and mask unless ``plain`` is set."""
        split, row = self._row_of(query)
        (cell,) = cells_of_rows(split, [row])
        if "plain" in query:
            cell = Cell(image=cell.image)
        return _png(annotated(cell, side, split.record.classes))

    def _photograph(self, query: Mapping[str, str]) -> PageReply:
        split, row = self._row_of(query)
        picture = self._originals.picture(split.source(row).id)
        picture.thumbnail((_PHOTOGRAPH, _PHOTOGRAPH))
        return _png(picture)

    def _draws(self, query: Mapping[str, str]) -> PageReply:
        """Sends the draws of a row: in one epoch after the other, of views all."""
        from mmload.augment.collate import collates_of
        from mmload.view.training import drawn_cells

        split, row = self._row_of(query)
        collate = self._collate_for(max(1, len(split.classes)))
        if collate is None:
            raise UsageError("start mmload browse with --augment STEPS to see draws")
        later = range(row + 1, min(row + 1 + _NEIGHBORS, len(split)))
        earlier = range(row - 1, max(row - 1 - _NEIGHBORS + len(later), -1), -1)
        views = len(collates_of(collate))
        rows = [row, *later, *earlier]
        cells = drawn_cells(split, collate, rows, draws=-(-DRAWS // views), seed=self._seed)[0][:DRAWS]
        pictures = ((cell.detail, annotated(cell, _DRAWN, split.classes)) for cell in cells)
        return _json({"draws": [{"name": name, "picture": data_url(picture, "PNG")} for name, picture in pictures]})

    def _mark(self, body: bytes) -> PageReply:
        try:
            change = json.loads(body)
            name, row, reason = change["split"], change["row"], change["reason"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UsageError("send JSON with split, row and reason") from error
        if type(row) is not int or not (reason is None or reason in REASONS):
            raise UsageError(f"row is {row!r:.40} and reason {reason!r:.40}; reasons are {', '.join(REASONS)}, or null")
        split, row = self._row_of({"split": str(name), "row": str(row)})
        sample, owner = split.source(row).id, _owner(split)
        others = (each for name, each in self._dataset.built_splits.items() if name != owner)
        alone = not any(other.samples.rows_of(sample) for other in others)
        marks = self._marks.set(sample, owner, reason, alone=alone)
        return _json({"mark": marks.reason(sample, owner), "marked": len(marks)})

    def _marked(self, split: Split) -> Numbers:
        """Finds the rows of a split that are marked."""
        names = self._marks.current().of_split(_owner(split), list(self._dataset))
        ids = [each for name in names for each in originals_of(name)]
        return np.array(sorted({row for each in ids for row in split.samples.rows_of(each)}), np.int64)

    def _row_of(self, query: Mapping[str, str]) -> tuple[Split, int]:
        split, row = self._dataset[query.get("split", "")], _number(query, "row")
        if row >= len(split):
            raise UsageError(f"row {row} is not in split {split.name}, which has {len(split):,}")
        return split, row


class Originals:
    """Files of a source, its folder or its list: the photographs that rows were made of, below its folder only."""

    def __init__(self, root: Path | None, recipe: Mapping[str, Any]) -> None:
        self._folder = str(table_of(recipe, "source").get("folder", ""))
        self._oriented = table_of(recipe, "decode").get("exif_orient") is True
        self._root = None if root is None else root.resolve() if root.is_dir() else root.resolve().parent

    def picture(self, sample: str) -> Image.Image:
        """Reads the photograph of a sample, in RGB.

        Raises:
            UsageError: if the source was not given, or has no such file.
            SampleError: if the file cannot be read or is no image.
        """
        from mmload.sources.decode import Decoder
        from mmload.sources.files import SampleFiles

        root, name = self._place(sample)
        pixels = np.asarray(SampleFiles(root, sample).image(name, Decoder(exif_orient=self._oriented))[0])
        return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))

    def missing(self, sample: str) -> str:
        """Returns why there is no photograph of a sample; empty if there is a file."""
        try:
            self._place(sample)
        except (UsageError, SampleError) as error:
            return str(error)
        return ""

    def _place(self, sample: str) -> tuple[Path, str]:
        """Returns the folder and the name of a sample's file, below the source's folder, with its links followed."""
        if self._root is None:
            raise UsageError("start mmload browse with --source ROOT to see the original image")
        for folder in ("", "VOCdevkit", self._folder):
            name = inner_name(os.path.join(folder, sample))
            if name is None:
                continue
            real = os.path.realpath(self._root / name)
            if real.startswith(os.path.join(self._root, "")) and os.path.isfile(real):
                return self._root, os.path.relpath(real, self._root)
        raise UsageError(
            f"file {sample} does not exist in {self._root}; give the folder that the dataset was built from"
        )


def _owner(split: Split) -> str:
    """Returns the name of the split that rows are in: its own, or of a subset that of its split."""
    return split.record.subset_of or split.name


def _class_texts(split: Split, rows: Numbers) -> list[str]:
    """Returns the classes of rows as text; of boxes each class once."""
    if "targets" in split.fields:
        return [name_of_target(target, split.classes) for target in split.reader.array("targets", rows)]
    if "labels" in split.fields:
        labels = labels_of(split.reader, split.record, rows)
        return [", ".join(name_of(each, split.classes) for each in np.unique(own[own >= 0]).tolist()) for own in labels]
    return [""] * len(rows)


def _members(split: Split, index: int) -> Numbers:
    """Returns the rows of a class, ascending."""
    field = class_field(split.record)
    if field is None or not 0 <= index < len(split.classes):
        raise UsageError(f"split {split.name} has no class {index} to choose rows by")
    return members_of(split.reader, split.record, field, index)


def _answered(answer: Callable[[], PageReply]) -> PageReply:
    """Returns a reply, or an error as one."""
    try:
        return answer()
    except MmloadError as error:
        return _error(400 if isinstance(error, UsageError) else 500, str(error))
    except Exception as error:  # shown in the page: the server goes on
        return _error(500, f"{type(error).__name__}: {error} (this is a bug in mmload)")


def _json(body: object, status: int = 200) -> PageReply:
    return PageReply(status, "application/json", json.dumps(body).encode("ascii"))


def _error(status: int, text: str) -> PageReply:
    return _json({"error": one_line(text)}, status)


def _static(file: str, kind: str) -> PageReply:
    return PageReply(200, f"{kind}; charset=utf-8", (files("mmload.view") / file).read_bytes())


def _png(picture: Image.Image) -> PageReply:
    return PageReply(200, "image/png", encoded(picture, "PNG"))


def _number(query: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = query.get(name, "" if default is None else str(default))
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{name} is {text!r:.40}; give an integer from 0")
    return int(text)
