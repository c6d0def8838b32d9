"""Answers the page of ``mmload browse``, with data and pictures: splits, rows, a photograph, its draws, marks.

It takes the parts of an address and returns a :class:`PageReply`. It knows nothing of tokens, hosts and connections:
:mod:`mmload.view.browse_server` checks those first.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from mmload.errors import MmloadError, UsageError, choices, one_line
from mmload.pictures.contact_sheet import Cell, annotated, name_in_legend, shown_classes
from mmload.pictures.drawing import encoded
from mmload.records import has_images
from mmload.sources.exclusion import originals_of
from mmload.store.dataset_folder import open_folder
from mmload.store.row_cells import class_field
from mmload.view.browse_rows import Rows, SplitRows
from mmload.view.facts import Originals
from mmload.view.marks import REASONS, Marks

if TYPE_CHECKING:
    from mmload.augment import Views
    from mmload.augment.collate import Collate

DRAWS = 20
"""Draws of a row."""

MOST_ROWS = 200
"""Rows of one page."""

_THUMBNAIL, _LARGE, _DRAWN, _PHOTOGRAPH = 160, 512, 224, 1024  # pixels of a side
_NEIGHBORS = 7  # rows in the batch of a draw beside it, so that steps that mix samples have something to mix
_KEPT = 4  # rows whose draws are remembered
_STATIC = {
    "": ("browse.html", "text/html"),
    "style.css": ("browse.css", "text/css"),
    "script.js": ("browse.js", "text/javascript"),
}
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
        self._folder, manifest = open_folder(dataset)
        self._splits = {name: SplitRows(self._folder, name, record) for name, record in manifest.splits.items()}
        self._marks = Marks(marks, self._folder.path)
        self._originals = Originals(source, manifest.recipe)
        self._augmentation, self._collate_for, self._seed = augmentation, collate_for, seed
        self._drawn: OrderedDict[tuple[str, int], list[tuple[str, bytes]]] = OrderedDict()
        self._drawing = Lock()
        self._gets: Mapping[str, Callable[[Mapping[str, str]], PageReply]] = {
            "api/about": self._about,
            "api/rows": self._rows,
            "api/row": self._row,
            "api/draws": self._draw_names,
            "image/thumbnail": lambda query: self._stored(query, _THUMBNAIL),
            "image/stored": lambda query: self._stored(query, _LARGE),
            "image/source": self._photograph,
            "image/draw": self._draw,
        }

    def get(self, place: str, query: Mapping[str, str]) -> PageReply:
        """Answers a place with the values of its query; errors are replies, too."""
        if place in _STATIC:
            file, kind = _STATIC[place]
            return PageReply(200, f"{kind}; charset=utf-8", (files("mmload.view") / file).read_bytes())
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
            for name, split in self._splits.items()
        ]
        return _json(
            {
                "name": self._folder.path.name,
                "splits": splits,
                "augmentation": self._augmentation,
                "draws": DRAWS,
                "marks": str(self._marks.path),
                "marked": len(self._marks),
                "reasons": REASONS,
            }
        )

    def _rows(self, query: Mapping[str, str]) -> PageReply:
        """Lists some rows of a split, of one class or of all, or of those that are marked."""
        split = self._split(query)
        offset, count = _number(query, "offset", 0), min(_number(query, "count", 48), MOST_ROWS)
        if "marked" in query:
            chosen: Rows | range = self._marked(split)
        elif "class" in query:
            chosen = split.of_class(_number(query, "class"))
        else:
            chosen = range(split.record.rows)
        numbers = np.asarray(chosen[offset : offset + count], np.int64)
        sources = [split.source(row) for row in numbers.tolist()]
        rows = [
            {"row": row, "name": name, "id": source.id, "mark": self._marks.reason(source.id, split.owner)}
            for row, name, source in zip(numbers.tolist(), split.names(numbers), sources, strict=True)
        ]
        return _json({"total": len(chosen), "rows": rows, "marked": len(self._marks)})

    def _row(self, query: Mapping[str, str]) -> PageReply:
        """Describes one row: where it is from, its classes, boxes and mask."""
        split, row = self._split(query), _number(query, "row")
        source = split.source(row)
        body: dict[str, Any] = {
            "row": row,
            "id": source.id,
            "size": source.size,
            "name": split.names(np.array([row]))[0],
            "mark": self._marks.reason(source.id, split.owner),
            "source": self._originals.missing(source.id),
            "shape": list(split.record.fields["images"].shape) if has_images(split.record.fields) else None,
            "boxes": None,
            "legend": [],
        }
        if has_images(split.record.fields):
            cell = split.cell(row)
            legend = (name_in_legend(index, split.record.classes) for index in shown_classes([cell]))
            body["legend"] = [{"name": name, "color": f"#{bytes(color).hex()}"} for name, color in legend]
            body["boxes"] = None if cell.boxes is None else len(cell.boxes)
            body["mask"] = cell.mask is not None
        return _json(body)

    def _stored(self, query: Mapping[str, str], side: int) -> PageReply:
        """Draws the stored picture, with its boxes and mask unless ``plain`` is set."""
        split = self._split(query)
        cell = split.cell(_number(query, "row"))
        if "plain" in query:
            cell = Cell(image=cell.image)
        return _png(annotated(cell, side, split.record.classes))

    def _photograph(self, query: Mapping[str, str]) -> PageReply:
        picture = self._originals.picture(self._split(query).source(_number(query, "row")).id)
        picture.thumbnail((_PHOTOGRAPH, _PHOTOGRAPH))
        return _png(picture)

    def _draw_names(self, query: Mapping[str, str]) -> PageReply:
        return _json({"names": [name for name, _ in self._draws_of(query)]})

    def _draw(self, query: Mapping[str, str]) -> PageReply:
        """Sends draw ``number`` of a row."""
        drawn, number = self._draws_of(query), _number(query, "number")
        if number >= len(drawn):
            raise UsageError(f"draw {number} does not exist; give a number below {len(drawn)}")
        return PageReply(200, "image/png", drawn[number][1])

    def _draws_of(self, query: Mapping[str, str]) -> list[tuple[str, bytes]]:
        """Returns the draws of a row, all of them made for the first request."""
        split, row = self._split(query), _number(query, "row")
        with self._drawing:
            key = (split.name, row)
            if key not in self._drawn:
                self._drawn[key] = self._draws(split, row)
                while len(self._drawn) > _KEPT:
                    self._drawn.popitem(last=False)
            return self._drawn[key]

    def _draws(self, split: SplitRows, row: int) -> list[tuple[str, bytes]]:
        """Makes the names and pictures of the draws of a row: in one epoch after the other, of views all."""
        from mmload.store.dataset import Dataset
        from mmload.view.training import drawn_cells

        split.source(row)  # it exists
        collate = self._collate_for(max(1, len(split.record.classes)))
        if collate is None:
            raise UsageError("start mmload browse with --recipe NAME or --augment STEPS to see draws")
        rows = [row, *(other for other in range(row + 1, row + _NEIGHBORS + 1) if other < split.record.rows)]
        rows += [other for other in range(row - 1, row - _NEIGHBORS - 1, -1) if other >= 0][
            : _NEIGHBORS + 1 - len(rows)
        ]
        views = len(getattr(collate, "collates", (collate,)))
        cells = drawn_cells(
            Dataset(self._folder.path)[split.name], collate, rows, draws=-(-DRAWS // views), seed=self._seed
        )[0][:DRAWS]
        return [(cell.detail, _png(annotated(cell, _DRAWN, split.record.classes)).body) for cell in cells]

    def _mark(self, body: bytes) -> PageReply:
        try:
            change = json.loads(body)
            name, row, reason = change["split"], change["row"], change["reason"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UsageError("send JSON with split, row and reason") from error
        if type(row) is not int or not (reason is None or reason in REASONS):
            raise UsageError(f"row is {row!r:.40} and reason {reason!r:.40}; reasons are {', '.join(REASONS)}, or null")
        split = self._split({"split": str(name)})
        sample = split.source(row).id
        others = (each for name, each in self._splits.items() if name != split.owner and not each.record.subset_of)
        alone = not any(other.samples.rows_of(sample) for other in others)
        self._marks.set(sample, split.owner, reason, alone=alone)
        return _json({"mark": self._marks.reason(sample, split.owner), "marked": len(self._marks)})

    def _marked(self, split: SplitRows) -> Rows:
        """Finds the rows of a split that are marked."""
        names = self._marks.of_split(split.owner, list(self._splits))
        ids = [each for name in names for each in originals_of(name)]
        return np.array(sorted({row for each in ids for row in split.samples.rows_of(each)}), np.int64)

    def _split(self, query: Mapping[str, str]) -> SplitRows:
        name = query.get("split", "")
        if name not in self._splits:
            raise UsageError(f"split {name!r:.80} does not exist; use one of {choices(self._splits)}")
        return self._splits[name]


def _answered(answer: Callable[[], PageReply]) -> PageReply:
    """Returns a reply, or an error as one."""
    try:
        return answer()
    except UsageError as error:
        return _error(400, str(error))
    except MmloadError as error:
        return _error(500, str(error))
    except Exception as error:  # shown in the page: the server goes on
        return _error(500, f"{type(error).__name__}: {error} (this is a bug in mmload)")


def _json(body: object, status: int = 200) -> PageReply:
    return PageReply(status, "application/json", json.dumps(body).encode("ascii"))


def _error(status: int, text: str) -> PageReply:
    return _json({"error": one_line(text)}, status)


def _png(picture: Image.Image) -> PageReply:
    return PageReply(200, "image/png", encoded(picture, "PNG"))


def _number(query: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not _NUMBER.fullmatch(text):
        raise UsageError(f"{name} is {text!r:.40}; give an integer from 0")
    return int(text)
