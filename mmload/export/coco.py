"""Writes rows with boxes in COCO's layout: PNGs, and for each split a JSON file with boxes, masks and keypoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmload.errors import UsageError
from mmload.export.chosen_rows import Choice, ChosenSplit, ExportRow, class_names
from mmload.export.png_export import Exported, PngExport
from mmload.pictures.instance_masks import parts_of
from mmload.records import SEGMENTS, ObjectsRecord, Progress, mirrored_names
from mmload.store.dataset import Dataset, Split

RECIPE = "coco.toml"
_KNOWN = {"images", "boxes", "labels", "counts", "iscrowd", "area", "keypoints", "keypoint_flips", "image_ids"}
_KNOWN |= {name for pair in SEGMENTS for name in pair}


def to_coco(
    dataset: Dataset,
    out: str | Path,
    choice: Choice | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Writes a dataset as ``OUT/SPLIT/NAME.png`` and ``OUT/annotations/instances_SPLIT.json``.

    Numbers in the files are exact: ``mmload build --config OUT/coco.toml OUT NEW`` builds the same rows again. Masks
    are polygons or uncompressed run lengths, as they are stored. Rows keep the numbers of their images, and classes
    those of their categories, if the dataset has them; else they are numbered from 1.

    Args:
        dataset: dataset of rows with boxes.
        out: the folder to make; missing or empty.
        choice: rows to export; None: all.
        threads: how many encode; None: the cores available.
        progress: called with (rows done, rows in all).

    Raises:
        UsageError: if the destination is taken, or there are no such rows.
        MmloadError: if the folder cannot be written.
    """
    export = PngExport(dataset, out, choice, threads, progress)
    check_boxes(export.chosen)
    bodies: dict[str, dict[str, Any]] = {
        split.name: {"images": [], "annotations": [], "categories": _categories(split)} for split, _ in export.chosen
    }

    def write(row: ExportRow) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
        name = f"{row.name}_{row.digits}.png"
        export.write_image(f"{row.split.name}/{name}", row)
        number = int(row.fields.get("image_ids", row.number + 1))
        height, width = row.fields["images"].shape[1:]
        image = {"id": number, "file_name": name, "height": height, "width": width}
        return row.split.name, image, list(_annotations(row, number, bodies[row.split.name]["categories"]))

    with export.writing("annotations", *bodies):
        for split, image, annotations in export.results(write):
            body = bodies[split]
            body["images"].append(image)
            first = len(body["annotations"]) + 1
            body["annotations"] += [{"id": first + place, **each} for place, each in enumerate(annotations)]
        for name, body in bodies.items():
            _check_numbers(name, body)
            (export.folder / _file(name)).write_text(json.dumps(body), encoding="ascii")
        export.note_omitted("COCO", _KNOWN)
        described = [objects_of(split) for split, _ in export.chosen]
        if any(objects.flip not in ((), mirrored_names(objects.keypoints)) for objects in described):
            export.made.notes.append(
                "COCO tells by left and right in the names of keypoints which ones a flip exchanges, and these do not"
            )
        why_none = "it would build other rows (more than 3 channels, or splits of different tasks)"
        export.write_recipe(RECIPE, _source(export.chosen), why_none)
    return export.made


def check_boxes(chosen: Sequence[ChosenSplit]) -> None:
    """Raises UsageError unless all rows have boxes, labels and counts."""
    for split, _ in chosen:
        if not {"boxes", "labels", "counts"} <= split.fields.keys():
            what = f"rows of split {split.name!r} of {split.path} have no boxes"
            raise UsageError(f"{what}; export them to imagefolder or huggingface")


def objects_of(split: Split) -> ObjectsRecord:
    """Returns the description of the objects of a split, empty if it has none."""
    return split.record.objects or ObjectsRecord()


def _file(split: str) -> str:
    return f"annotations/instances_{split}.json"


def _categories(split: Split) -> list[dict[str, Any]]:
    """Returns the categories of a split, with the keypoints of all if it has keypoints."""
    objects, names = objects_of(split), class_names(split, "labels")
    numbers = objects.category_ids or tuple(range(1, len(names) + 1))
    more: dict[str, Any] = {}
    if "keypoints" in split.fields:
        more["keypoints"] = list(objects.keypoints) or [
            str(point) for point in range(split.fields["keypoints"].shape[1])
        ]
        more["skeleton"] = [[first + 1, second + 1] for first, second in objects.skeleton]
    return [{"id": number, "name": name, **more} for number, name in zip(numbers, names, strict=True)]


def _annotations(row: ExportRow, image: int, categories: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the objects of a row, without their numbers."""
    fields, segmentation = row.fields, _segmentation(row.fields)
    corners = fields["boxes"].astype(np.float64)
    boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1)
    areas = fields.get("area", boxes[:, 2] * boxes[:, 3])
    crowds = fields.get("iscrowd", np.zeros(len(boxes), np.int64))
    for number, label in enumerate(fields["labels"].tolist()):
        made = {"image_id": image, "category_id": categories[label]["id"], "bbox": boxes[number].tolist()}
        made |= {"area": float(areas[number]), "iscrowd": int(crowds[number])}
        if "rings" in fields:
            made["segmentation"] = segmentation.get(number, [])
        if "keypoints" in fields:
            points = fields["keypoints"][number]
            made["keypoints"] = [int(each) if each.is_integer() else each for each in points.reshape(-1).tolist()]
            made["num_keypoints"] = int((points[:, 2] > 0).sum())
        yield made


def _segmentation(fields: Mapping[str, Any]) -> dict[int, Any]:
    """Returns the masks of a row's boxes: lists of polygons, or run lengths."""
    found: dict[int, Any] = {}
    for box, points in parts_of(fields, "rings", "polygons"):
        found.setdefault(box, []).append(points.reshape(-1).tolist())
    size = list(fields["images"].shape[1:])
    masks = {box: {"size": size, "counts": runs.tolist()} for box, runs in parts_of(fields, "run_boxes", "runs")}
    return found | masks


def _check_numbers(name: str, body: Mapping[str, Any]) -> None:
    """Raises UsageError if two rows of a split are of one image: COCO tells images by their numbers."""
    numbers = [image["id"] for image in body["images"]]
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"split {name} has several rows of one image by image_ids; export them to huggingface")


def _source(chosen: Sequence[ChosenSplit]) -> dict[str, Any] | None:
    """Returns the source of the recipe that builds the export again; None if none can."""
    tasks, names = {_task(split) for split, _ in chosen}, [split.name for split, _ in chosen]
    if len(tasks) > 1:
        return None
    return {
        "kind": "coco",
        "task": tasks.pop(),
        "annotations": {name: _file(name) for name in names},
        "images": dict(zip(names, names, strict=True)),
    }


def _task(split: Split) -> str:
    return "keypoints" if "keypoints" in split.fields else "instances" if "rings" in split.fields else "detection"
