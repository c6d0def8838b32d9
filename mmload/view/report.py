"""Looks at every row of a dataset once: brightness, outliers, copies, and how often classes and boxes occur.

Brightness, outliers and copies are computed from thumbnails of 16 x 16 grays and a few sums: 1 KiB per row, made in one
pass over its pixels. :mod:`mmload.view.report_page` writes the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.errors import one_line
from mmload.records import Progress, has_images
from mmload.runtime.resources import in_threads
from mmload.sources.listed_split import line_of
from mmload.store.checksum import crc32
from mmload.store.dataset import Dataset, Split, labels_of
from mmload.view.duplicates import SIDE, Copies, Floats, Numbers, copies, groups, reduce

DARK, LIGHT = 12.0, 243.0
"""Mean grays below and above which a row is called nearly black and nearly white."""

ONE_COLOR = 4.0
"""Standard deviation of grays below which a row is called one color."""

NARROW = 3.0
"""The longer side of an original over the shorter one from which on its aspect is called extreme."""

BINS = 16

SIDES = (0, 8, 16, 32, 64, 96, 128, 256, 512)
"""Edges of the sizes: roots of areas in pixels. Boxes below 32 are small for COCO's evaluation, from 96 on large."""

ASPECTS = (0.0, 0.2, 0.33, 0.5, 0.8, 1.25, 2.0, 3.0, 5.0)
"""Edges of width over height."""

PER_IMAGE = (0, 1, 2, 3, 5, 9, 17, 33, 65)
"""Edges of the numbers of boxes of an image."""

_AT_ONCE = 65536  # samples' names
_VARIABLE_AT_ONCE = 16  # variable-size rows, or masks, one after the other
_IMAGE_BYTES = 4 * 2**20  # of images that are read at a time
_LABEL_BYTES = 16 * 2**20  # of labels that are read at a time


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A row that stands out, why, and how much: the greatest strength is reported first."""

    split: str
    row: int
    reason: str
    strength: float


@dataclass(frozen=True, kw_only=True)
class CopiedPicture:
    """A picture that several rows show.

    Attributes:
        rows: (split, row) of all of them; the first two are those that are compared, in two splits if there are such.
        correlation: correlation of the first two.
        equal: whether every pixel of the first two is the same.
    """

    rows: list[tuple[str, int]]
    correlation: float
    equal: bool

    @property
    def is_across(self) -> bool:
        """Whether it is in two splits."""
        return self.rows[0][0] != self.rows[1][0]


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """Findings in all rows of a dataset.

    Attributes:
        brightness: split -> rows in each of 16 bins of their mean gray.
        sizes: split -> (height, width) of the originals, int64 [N, 2]; 0 where it is not known.
        outliers: the most conspicuous first.
        copied: pictures that several rows show: those in two splits first, then equal rows, then the most alike ones.
        complete: whether these are all.
        classes: split -> the counts of :func:`class_rows`.
        boxes: split -> its boxes, where rows have boxes.
    """

    brightness: dict[str, npt.NDArray[np.int64]]
    sizes: dict[str, npt.NDArray[np.int64]]
    outliers: list[Outlier]
    copied: list[CopiedPicture]
    complete: bool
    classes: dict[str, dict[str, list[int]]]
    boxes: dict[str, BoxFacts]


def report(dataset: Dataset, *, progress: Progress = lambda done, total: None) -> DatasetReport:
    """Looks at every row of every split that has uint8 images and is no subset."""
    splits = {name: split for name, split in dataset.built_splits.items() if has_images(split.fields) and len(split)}
    starts = np.cumsum([0, *(len(split) for split in splits.values())]).tolist()
    grays = np.empty((starts[-1], SIDE, SIDE), np.float32)
    checksums = np.empty(starts[-1], np.uint32)
    outliers, brightness, sizes = list[Outlier](), dict[str, Numbers](), dict[str, Numbers]()
    for (name, split), start, stop in zip(splits.items(), starts, starts[1:], strict=False):
        small = thumbnails(
            split,
            grays[start:stop],
            lambda rows, _, before=start: progress(before + rows, len(grays)),  # type: ignore[misc]
        )
        checksums[start:stop], sizes[name] = small.checksums, _sizes(split)
        outliers += _outliers(name, small, sizes[name])
        brightness[name] = np.histogram(small.mean, bins=BINS, range=(0, 256))[0].astype(np.int64)
    pairs = copies(grays, checksums, starts=starts[:-1])
    return DatasetReport(
        brightness=brightness,
        sizes=sizes,
        outliers=sorted(outliers, key=lambda one: -one.strength),
        copied=_copied(pairs, list(splits), np.array(starts)),
        complete=pairs.complete,
        classes={name: class_rows(split) for name, split in dataset.built_splits.items()},
        boxes={name: boxes for name, split in dataset.built_splits.items() if (boxes := box_facts(split)) is not None},
    )


def findings_list(dataset: Dataset, found: DatasetReport) -> str:
    """Returns copies, but the first row of each picture, and outliers as a list of samples to exclude or save."""
    reasons = [(place, "copy") for one in found.copied for place in one.rows[1:]]
    reasons += [((one.split, one.row), one.reason) for one in found.outliers]
    first = dict(reversed(reasons))
    lines = [line_of(dataset[split].source(row).id, reason, split) for (split, row), reason in sorted(first.items())]
    return "\n".join([f"# Found in {one_line(dataset.path.name)}", *lines, ""])


def _sizes(split: Split) -> npt.NDArray[np.int64]:
    sizes = np.zeros((len(split), 2), np.int64)
    for start in range(0, len(split), _AT_ONCE):
        sources = split.source(slice(start, start + _AT_ONCE))
        sizes[start : start + _AT_ONCE] = [source.size or (0, 0) for source in sources]
    return sizes


def _outliers(name: str, small: Thumbnails, sizes: npt.NDArray[np.int64]) -> list[Outlier]:
    longer, shorter = sizes.max(1), np.maximum(sizes.min(1), 1)
    aspects = np.where(longer > 0, longer / shorter, 1)
    reasons: tuple[tuple[str, Any], ...] = (
        ("nearly black", (DARK - small.mean) / DARK),
        ("nearly white", (small.mean - LIGHT) / (255 - LIGHT)),
        ("one color", (ONE_COLOR - small.std) / ONE_COLOR),
        ("extreme aspect", (aspects - NARROW) / NARROW),
    )
    return [
        Outlier(split=name, row=int(row), reason=reason, strength=float(strength[row]))
        for reason, strength in reasons
        for row in np.flatnonzero(strength > 0)
    ]


def _copied(found: Copies, names: list[str], starts: Numbers) -> list[CopiedPicture]:
    """Groups pairs of rows by the picture that they show, by the splits that begin at these rows."""
    split = np.searchsorted(starts, np.arange(starts[-1]), "right") - 1
    group = groups(found.pairs, int(starts[-1]))  # of each row the first one of its picture
    across = split[found.pairs[:, 0]] != split[found.pairs[:, 1]]
    order = np.lexsort((-found.correlation, ~found.equal, ~across))  # the first pair of a picture is the one to show
    _, first = np.unique(group[found.pairs[order, 0]], return_index=True)
    rows = np.unique(found.pairs)
    rows = rows[np.argsort(group[rows], kind="stable")]
    members = np.split(rows, np.unique(group[rows], return_index=True)[1][1:])

    def named(row: int) -> tuple[str, int]:
        return names[split[row]], int(row - starts[split[row]])

    pictures = []
    for number in np.argsort(first).tolist():
        pair = order[first[number]]
        first_two = found.pairs[pair].tolist()
        shown = [*first_two, *(row for row in members[number].tolist() if row not in first_two)]
        correlation, equal = float(found.correlation[pair]), bool(found.equal[pair])
        pictures.append(CopiedPicture(rows=list(map(named, shown)), correlation=correlation, equal=equal))
    return pictures


@dataclass(frozen=True, kw_only=True)
class Thumbnails:
    """Numbers of all rows of a split that are found with their thumbnails.

    Attributes:
        mean: float32 [N], mean gray of the row.
        std: float32 [N], standard deviation of its grays.
        checksums: uint32 [N], of its pixels and shape: CRC-32.
    """

    mean: Floats
    std: Floats
    checksums: npt.NDArray[np.uint32]


def thumbnails(split: Split, grays: Floats, progress: Progress) -> Thumbnails:
    """Writes the thumbnails of all rows, mean grays of blocks from 0 to 255, into ``grays``, float32 [N, 16, 16].

    It reads every image once.
    """
    spec, rows = split.fields["images"], len(split)
    mean, std, checksums = np.empty(rows, np.float32), np.empty(rows, np.float32), np.empty(rows, np.uint32)
    at_once = _VARIABLE_AT_ONCE if spec.variable_size else max(1, _IMAGE_BYTES // spec.row_bytes)

    def reduced(start: int) -> int:
        stop = min(start + at_once, rows)
        for first, images in _images(split, start, stop):
            part = slice(first, first + len(images))
            grays[part], mean[part], std[part] = reduce(images)
            of_shape = crc32(repr(images.shape[1:]).encode())
            checksums[part] = [crc32(image, of_shape) for image in images]
        return stop

    for stop in in_threads(range(0, rows, at_once), reduced):
        progress(stop, rows)
    return Thumbnails(mean=mean, std=std, checksums=checksums)


def _images(split: Split, start: int, stop: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yields rows as contiguous images [n, C, H, W] of one size, and the number of the first."""
    if split.fields["images"].variable_size:
        for row, image in enumerate(split.reader.rows("images", np.arange(start, stop)), start):
            yield row, image[None]
    else:
        yield start, split.reader.array("images", np.arange(start, stop))


def class_rows(split: Split) -> dict[str, list[int]]:
    """Counts ``rows`` per class, from labels alone, and its ``boxes`` or ``pixels`` where rows have these.

    Returns nothing if the rows of a split have one class each, or none.
    """
    fields = split.fields
    if "labels" in fields and fields["labels"].dtype == "int64" and len(fields["labels"].shape) == 1:
        return _of_boxes(split)
    if "masks" in fields and fields["masks"].dtype == "uint8" and len(fields["masks"].shape) == 2:
        return _of_masks(split)
    targets = fields.get("targets")
    if targets is not None and targets.shape == (len(split.classes),) and split.classes:
        parts = (split.reader.array("targets", rows) > 0 for rows in _parts(split, "targets"))
        return {
            "rows": sum((part.sum(0, dtype=np.int64) for part in parts), np.zeros(targets.shape, np.int64)).tolist()
        }
    return {}


def _of_boxes(split: Split) -> dict[str, list[int]]:
    rows, boxes = np.zeros(len(split.classes), np.int64), np.zeros(len(split.classes), np.int64)
    for part in _parts(split, "labels"):
        labels = labels_of(split.reader, split.record, part)
        real = (labels >= 0) & (labels < len(rows))
        boxes += np.bincount(labels[real], minlength=len(rows))
        row, _ = np.nonzero(real)
        rows += np.bincount(np.unique(row * len(rows) + labels[real]) % max(1, len(rows)), minlength=len(rows))
    return {"rows": rows.tolist(), "boxes": boxes.tolist()}


def _of_masks(split: Split) -> dict[str, list[int]]:
    rows, pixels = np.zeros(256, np.int64), np.zeros(256, np.int64)
    for start in range(0, len(split), _VARIABLE_AT_ONCE):
        for mask in split.reader.rows("masks", np.arange(start, min(start + _VARIABLE_AT_ONCE, len(split)))):
            found = np.array(Image.fromarray(mask).histogram())  # 1 ns per pixel, where numpy takes 8
            rows += found > 0
            pixels += found
    known = min(256, len(split.classes)) or int(np.flatnonzero(pixels).max(initial=-1)) + 1
    return {"rows": rows[:known].tolist(), "pixels": pixels[:known].tolist()}


def _parts(split: Split, field: str) -> Iterator[Numbers]:
    """Yields row numbers in order, as many at a time as make up a few megabytes of a field."""
    at_once = max(1, _LABEL_BYTES // split.fields[field].row_bytes)
    for start in range(0, len(split), at_once):
        yield np.arange(start, min(start + at_once, len(split)))


@dataclass(frozen=True, kw_only=True)
class BoxFacts:
    """Boxes of a split.

    Attributes:
        sizes: int64 [n], boxes from each of :data:`SIDES` to the next one.
        aspects: int64 [n], boxes from each of :data:`ASPECTS` to the next one.
        per_image: int64 [n], images from each of :data:`PER_IMAGE` to the next one.
        most: largest number of boxes of an image.
    """

    sizes: Numbers
    aspects: Numbers
    per_image: Numbers
    most: int

    @property
    def total(self) -> int:
        """Number of boxes."""
        return int(self.sizes.sum())


def box_facts(split: Split) -> BoxFacts | None:
    """Counts the boxes of a split, from its labels alone; None if it has none."""
    boxes, counts = split.fields.get("boxes"), split.fields.get("counts")
    if boxes is None or counts is None or boxes.shape[1:] != (4,) or counts.shape != ():
        return None
    found = [np.zeros(len(edges), np.int64) for edges in (SIDES, ASPECTS, PER_IMAGE)]
    most = 0
    for rows in _parts(split, "boxes"):
        number = split.reader.array("counts", rows)
        corners = split.reader.array("boxes", rows)[np.arange(boxes.shape[0]) < number[:, None]]
        width, height = np.maximum(corners[:, 2:] - corners[:, :2], 1e-6).astype(np.float64).T
        for total, values, edges in zip(
            found, (np.sqrt(width * height), width / height, number), (SIDES, ASPECTS, PER_IMAGE), strict=True
        ):
            total += np.histogram(values, bins=[*edges, np.inf])[0]
        most = max(most, int(number.max(initial=0)))
    return BoxFacts(sizes=found[0], aspects=found[1], per_image=found[2], most=most)
