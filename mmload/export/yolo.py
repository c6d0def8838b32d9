"""Writes rows with boxes in YOLO's layout: PNGs, a text file of labels for each, and ``data.yaml``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError
from mmload.export.chosen_rows import Choice, ChosenSplit, ExportRow, common_class_names
from mmload.export.coco import check_boxes, objects_of
from mmload.export.png_export import Exported, PngExport
from mmload.pictures.instance_masks import parts_of
from mmload.records import SEGMENTS, Progress
from mmload.store.dataset import Dataset

Array = npt.NDArray[Any]

RECIPE = "yolo.toml"
_SPLITS = ("train", "val", "test")
_FIELDS = {
    "keypoints": {"boxes", "keypoints", "keypoint_flips"},
    "rotated": {"boxes", "corners"},
    "instances": {"boxes", "rings", "polygons"},
    "detection": {"boxes"},
}
"""Task -> the fields that its label files have, beside labels."""

_CORNERS = [[0, 1], [2, 1], [2, 3], [0, 3]]
"""Places of x and y of the corners among the sides of a box."""


def to_yolo(
    dataset: Dataset,
    out: str | Path,
    choice: Choice | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Writes a dataset as ``OUT/data.yaml``, ``OUT/images/SPLIT`` and ``OUT/labels/SPLIT``.

    Labels are keypoints, corners of rotated boxes, polygons or boxes, whichever the dataset has first of these. Numbers
    have all their digits: ``mmload build --config OUT/yolo.toml OUT NEW`` builds the same rows again. Of a dataset
    with masks, an object with several polygons gets one around the same pixels, points are rounded to 9 decimals, and
    boxes are those around the polygons.

    Args:
        dataset: dataset of rows with boxes, in splits train, val and test.
        out: the folder to make; missing or empty.
        choice: rows to export; None: all.
        threads: how many encode; None: the cores available.
        progress: called with (rows done, rows in all).

    Raises:
        UsageError: if the destination is taken, there are no such rows, or splits have other names or classes.
        MmloadError: if the folder cannot be written.
    """
    export = PngExport(dataset, out, choice, threads, progress)
    check_boxes(export.chosen)
    _check_splits(export.chosen)
    task, names = _task(export.chosen), common_class_names(export.chosen, "labels")

    def write(row: ExportRow) -> Counter[str]:
        stem = f"{row.split.name}/{row.digits}_{row.name}"  # the number first, as a source sorts files by name
        export.write_image(f"images/{stem}.png", row)
        lines, changed = _lines(row, task)
        (export.folder / "labels" / f"{stem}.txt").write_text("".join(lines), encoding="ascii")
        return changed

    changes: Counter[str] = Counter()
    with export.writing(*(f"{top}/{split.name}" for top in ("images", "labels") for split, _ in export.chosen)):
        for changed in export.results(write):
            changes += changed
        (export.folder / "data.yaml").write_text(_description(export.chosen, task, names), encoding="utf-8")
        export.note_omitted("YOLO", {"images", "labels", "counts"} | _FIELDS[task] | _empty(export.chosen))
        export.write_recipe(RECIPE, {"kind": "yolo", "task": task}, "mmload decodes files to gray or RGB only")
        export.made.notes.extend(f"{count:,} objects {what}" for what, count in changes.items())
    return export.made


def _task(chosen: Sequence[ChosenSplit]) -> str:
    """Returns the first task for which all rows have the fields."""
    return next(
        task
        for task, fields in _FIELDS.items()
        if all(fields - {"keypoint_flips"} <= split.fields.keys() for split, _ in chosen)
    )


def _check_splits(chosen: Sequence[ChosenSplit]) -> None:
    """Raises UsageError if YOLO has no place for a split."""
    odd = next((split.name for split, _ in chosen if split.name not in _SPLITS), None)
    if odd is not None:
        raise UsageError(f"YOLO has the splits {', '.join(_SPLITS)}, and not {odd}; export one of these with --split")


def _lines(row: ExportRow, task: str) -> tuple[list[str], Counter[str]]:
    """Returns the lines of a label file, and how many objects could not be written as they are."""
    fields, changed = row.fields, Counter[str]()
    height, width = fields["images"].shape[1:]
    scale = np.array([width, height], np.float64)
    boxes = fields["boxes"].astype(np.float64)
    centers = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2 / scale, (boxes[:, 2:] - boxes[:, :2]) / scale], 1)
    polygons: dict[int, list[Array]] = {}
    for box, points in parts_of(fields, "rings", "polygons"):
        polygons.setdefault(box, []).append(points.astype(np.float64))
    lines = []
    for number, label in enumerate(fields["labels"].tolist()):
        if task == "rotated":
            numbers = fields["corners"][number].astype(np.float64) / scale
        elif task == "instances":
            own = polygons.get(number) or [boxes[number][_CORNERS]]
            changed["have no polygon: their boxes are written"] += number not in polygons
            changed["have several polygons: they are joined to one"] += len(own) > 1
            numbers = _joined(own) / scale
        elif task == "keypoints":
            points = fields["keypoints"][number].astype(np.float64) / [*scale, 1]
            numbers = np.concatenate([centers[number], points.reshape(-1)])
        else:
            numbers = centers[number]
        lines.append(f"{label} {' '.join(map(_number, numbers.reshape(-1).tolist()))}\n")
    return lines, +changed


def _joined(polygons: Sequence[Array]) -> Array:
    """Joins polygons by lines between their nearest points, there and back, so that the lines enclose no pixel.

    Ultralytics' ``merge_multi_segment`` joins the polygons of COCO in this way.
    """
    outline = polygons[0]
    for each in polygons[1:]:
        nearest = [int(((outline - point) ** 2).sum(1).argmin()) for point in each]
        start = int(((outline[nearest] - each) ** 2).sum(1).argmin())
        around, place = np.roll(each, -start, 0), nearest[start]
        outline = np.concatenate([outline[: place + 1], around, around[:1], outline[place:]])
    return outline


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _description(chosen: Sequence[ChosenSplit], task: str, names: Sequence[str]) -> str:
    """Returns the text of ``data.yaml``."""
    lines = ["path: .", *(f"{split.name}: images/{split.name}" for split, _ in chosen), "names:"]
    lines += [f"  {index}: {_quoted(name)}" for index, name in enumerate(names)]
    if task == "keypoints":
        split = chosen[0].split
        points, objects = split.fields["keypoints"].shape[1], objects_of(split)
        lines += [f"kpt_shape: [{points}, 3]", *([f"flip_idx: {list(objects.flip)}"] if objects.flip else [])]
        if objects.keypoints:
            lines.append(f"kpt_names: {{0: [{', '.join(map(_quoted, objects.keypoints))}]}}")
    return "\n".join([*lines, ""])


def _empty(chosen: Sequence[ChosenSplit]) -> set[str]:
    """Returns the fields of run lengths if no row has any."""
    files = (file for split, _ in chosen for shard in split.record.shards for file in shard.files.items())
    return (
        set()
        if any(file.bytes for name, file in files if name.removesuffix(".bytes") in SEGMENTS[1])
        else set(SEGMENTS[1])
    )


def _quoted(text: str) -> str:
    """Returns a text as YAML, in quotes and in one line."""
    import yaml

    quoted: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=sys.maxsize)
    return quoted.rstrip("\n")
