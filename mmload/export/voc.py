"""Writes rows with boxes, masks or several classes as a VOCdevkit: PNGs, XML annotations, palette masks, lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from mmload.errors import UsageError
from mmload.export.chosen_rows import (
    Choice,
    ChosenSplit,
    Exported,
    ExportRow,
    Progress,
    class_names,
    in_parallel,
    png_of,
    png_of_mask,
)
from mmload.export.new_folder import (
    begin_export,
    distinct_names,
    mode_of,
    new_folder,
    recipe_text,
    row_stem,
    write_recipes,
)
from mmload.store.dataset import Dataset, Split

YEAR = "VOC2012"
"""The year's folder, as programs that read VOC expect one."""

_FOLDERS = {
    "detection": ("Annotations", "ImageSets/Main"),
    "classification": ("Annotations", "ImageSets/Main"),
    "segmentation": ("SegmentationClass", "ImageSets/Segmentation"),
}
"""Task -> the folders of what is known of its images, and of its lists."""

_BACKGROUND = "background"
_MASK_CLASSES = 254  # with the background; 255 is void
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_KNOWN = {"boxes", "labels", "difficult", "counts", "images"}


def to_voc(
    dataset: Dataset,
    out: str | Path,
    choice: Choice | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Writes a dataset as ``OUT/VOCdevkit/VOC2012``, with the stored pixels as PNGs.

    Boxes, or the classes of rows that have several, are in ``Annotations``, masks in ``SegmentationClass``. Boxes are
    written as VOC counts: from 1, with the last pixel; fractions stay. For each task there is a recipe that builds the
    same rows again: ``mmload build --config OUT/detection.toml OUT NEW``.

    Args:
        dataset: dataset of rows with boxes, masks, or a vector of present (1) and absent (0) classes.
        out: the folder to make; missing or empty.
        choice: rows to export; None: all.
        threads: how many encode; None: the cores available.
        progress: called with (rows done, rows in all).

    Raises:
        UsageError: if the destination is taken, there are no such rows, or VOC has no place for what they have.
        MmloadError: if the folder cannot be written.
    """
    place, chosen = begin_export(dataset, out, choice)
    tasks = _tasks(chosen)
    names = {split.name: _names(split, tasks) for split, _ in chosen}
    stored = {split.name: len(split) for split, _ in chosen}
    stems: dict[str, list[str]] = {name: [] for name in stored}
    with new_folder(place) as folder:
        year = folder / "VOCdevkit" / YEAR
        for name in ("JPEGImages", *(name for task in tasks for name in _FOLDERS[task])):
            (year / name).mkdir(parents=True)

        def write(row: ExportRow) -> tuple[str, str]:
            stem = f"{row.split}_{row_stem(row.id, row.number, stored[row.split])}"
            (year / "JPEGImages" / f"{stem}.png").write_bytes(png_of(row.fields["images"]))
            if "segmentation" in tasks:
                (year / "SegmentationClass" / f"{stem}.png").write_bytes(png_of_mask(row.fields["masks"]))
            if tasks != ["segmentation"]:
                text = _annotation(stem, row, names[row.split])
                (year / "Annotations" / f"{stem}.xml").write_text(text, encoding="utf-8")
            return row.split, stem

        for split, stem in in_parallel(chosen, write, threads=threads, progress=progress):
            stems[split].append(stem)
        for split, own in stems.items():
            for task in tasks:
                (year / _FOLDERS[task][1] / f"{split}.txt").write_text("\n".join([*own, ""]), encoding="utf-8")
        recipes = _recipes(chosen, tasks, names)
        again = write_recipes(folder, place, {f"{task}.toml": text for task, text in recipes.items()})
    notes = tuple(_notes(chosen, tasks, names, recipes))
    return Exported(out=Path(out), rows=sum(map(len, stems.values())), notes=notes, next=again)


def _tasks(chosen: Sequence[ChosenSplit]) -> list[str]:
    """Returns which of detection, classification and segmentation all rows are for; raises UsageError if none."""
    tasks = [list(_tasks_of(split)) for split, _ in chosen]
    common = [task for task in tasks[0] if all(task in others for others in tasks)]
    if not common:
        path = chosen[0].split.path
        raise UsageError(f"rows of {path} have no boxes, masks or vectors of classes; export them to imagefolder")
    return common


def _tasks_of(split: Split) -> Iterator[str]:
    fields = split.fields
    targets = fields.get("targets")
    if {"boxes", "labels", "counts"} <= fields.keys():
        yield "detection"
    elif targets is not None and split.classes and targets.shape == (len(split.classes),):
        yield "classification"
    masks = fields.get("masks")
    if masks is not None and masks.dtype == "uint8" and masks.shape == fields["images"].shape[1:]:
        yield "segmentation"


def _names(split: Split, tasks: Sequence[str]) -> tuple[str, ...]:
    """Returns the class names of objects as XML can hold them."""
    names = class_names(split, "labels" if "detection" in tasks else "")
    plain = all(name and _NO_XML.sub("", name).strip() == name for name in names)
    return names if plain and len(set(names)) == len(names) else distinct_names(names)


def _annotation(stem: str, row: ExportRow, names: Sequence[str]) -> str:
    channels, height, width = row.fields["images"].shape
    lines = ["<annotation>", f"  <folder>{YEAR}</folder>", f"  <filename>{escape(stem)}.png</filename>"]
    lines.append(f"  <size><width>{width}</width><height>{height}</height><depth>{channels}</depth></size>")
    for name, difficult, box in _objects(row, names):
        lines += ["  <object>", f"    <name>{escape(name)}</name>", f"    <difficult>{difficult:d}</difficult>"]
        if box is not None:
            sides = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
            lines.append(f"    <bndbox>{''.join(f'<{side}>{value}</{side}>' for side, value in sides)}</bndbox>")
        lines.append("  </object>")
    return "\n".join([*lines, "</annotation>", ""])


def _objects(row: ExportRow, names: Sequence[str]) -> Iterator[tuple[str, bool, list[str] | None]]:
    """Class, difficult flag and sides of each object; without boxes, an object of each class."""
    fields = row.fields
    if "boxes" not in fields:
        targets, ignored = fields["targets"], fields.get("ignored", np.zeros(len(names), np.bool_))
        if not np.isin(targets, (0, 1)).all():
            raise UsageError(f"row {row.number} of split {row.split!r} has soft targets; export to huggingface")
        for name, is_present, only_difficult in zip(names, targets, ignored, strict=True):
            if is_present or only_difficult:
                yield name, not is_present, None
        return
    count = int(fields["counts"])
    difficult = fields.get("difficult", np.zeros(count, np.bool_))
    for box, label, hard in zip(fields["boxes"][:count], fields["labels"][:count], difficult[:count], strict=True):
        yield names[int(label)], bool(hard), _sides(box)


def _sides(box: npt.NDArray[Any]) -> list[str]:
    """Returns sides counted from 1 and with the last pixel, as in VOC; exact: added in float64."""
    x0, y0, x1, y1 = map(float, box)
    return [f"{side:.17g}" for side in (x0 + 1, y0 + 1, x1, y1)]


def _recipes(chosen: Sequence[ChosenSplit], tasks: Sequence[str], names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns task -> the recipe that builds it again, where there is one."""
    mode, own = mode_of(chosen), {split.classes for split, _ in chosen}
    if mode is None or len(set(names.values())) > 1 or len(own) > 1:
        return {}
    recipes = {}
    for task in tasks:
        classes = next(iter(names.values()))
        if task == "segmentation":
            classes = own.pop() or (_BACKGROUND, *map(str, range(1, _MASK_CLASSES)))
            if classes[0].lower() != _BACKGROUND or len(set(classes)) < len(classes):
                continue
        source = {"kind": "voc", "task": task, "image_set": [split.name for split, _ in chosen], "classes": classes}
        recipes[task] = recipe_text(f"{task}.toml", source, chosen, mode)
    return recipes


def _notes(
    chosen: Sequence[ChosenSplit],
    tasks: Sequence[str],
    names: Mapping[str, Sequence[str]],
    recipes: Mapping[str, str],
) -> Iterator[str]:
    written = _KNOWN | ({"masks"} if "segmentation" in tasks else set())
    written |= {"targets", "ignored"} if "classification" in tasks else set()
    omitted = sorted({name for split, _ in chosen for name in split.fields} - written)
    if omitted:
        yield f"VOC has no place for {', '.join(omitted)}: left out"
    for split, _ in chosen:
        named = class_names(split, "labels" if "detection" in tasks else "")
        changed = [name for name, own in zip(named, names[split.name], strict=True) if name != own]
        if changed:
            yield f"XML cannot hold the names of some classes of {split.name}: {changed[0]!a} and others were changed"
    for task in tasks:
        if task not in recipes:
            yield (
                f"no {task}.toml: it would build other rows (more than 3 channels, classes that differ between splits, "
                "or masks whose class 0 is not the background)"
            )
