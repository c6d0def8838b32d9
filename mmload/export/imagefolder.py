"""Writes rows as an ImageFolder of PNGs, ``OUT/SPLIT/CLASS/NAME_ROW.png``, and a list of their classes and ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from mmload.errors import UsageError, counted
from mmload.export.chosen_rows import Choice, ChosenSplit, ExportRow, common_class_names, has_class_numbers
from mmload.export.new_folder import distinct_names
from mmload.export.png_export import Exported, PngExport, without_surrogates
from mmload.records import Progress
from mmload.store.dataset import Dataset

LIST, RECIPE = "labels.jsonl", "recipe.toml"
_MOST_CLASSES = 1_000_000
_SHOWN = 3


def to_imagefolder(
    dataset: Dataset,
    out: str | Path,
    choice: Choice | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Writes a dataset as an ImageFolder of PNGs with the stored pixels.

    ``OUT/labels.jsonl`` lists path, class number, split and id in the source of each row, in the dataset's order.
    ``mmload build --config OUT/recipe.toml OUT NEW`` builds the same rows again.

    Args:
        dataset: each of its rows has one class.
        out: the destination; missing or empty.
        choice: rows to export; None: all.
        threads: number of encoding threads; None: the cores available.
        progress: called with (finished rows, all rows).

    Raises:
        UsageError: if the destination is not empty, no row is chosen, or rows have no images or no single class.
        MmloadError: if the folder cannot be written.
    """
    export = PngExport(dataset, out, choice, threads, progress)
    _check_targets(export.chosen)
    classes = common_class_names(export.chosen, "targets")
    folders = distinct_names(classes)

    def write(row: ExportRow) -> dict[str, str | int]:
        label = int(row.fields["targets"])
        path = f"{row.split.name}/{folders[label]}/{row.name}_{row.digits}.png"
        export.write_image(path, row)
        return {"path": path, "label": label, "split": row.split.name, "id": row.id, "row": row.number}

    lines: list[str] = []
    written_ids: set[tuple[str | int, ...]] = set()
    with export.writing(*map("/".join, product(export.names, folders))):  # classes without rows, too
        for entry in export.results(write):
            sample, number = (entry["split"], entry["id"]), entry.pop("row")
            if sample in written_ids:
                entry["id"] = f"{entry['id']}#{number}"
            written_ids.add(sample)
            lines.append(json.dumps(entry))
        (export.folder / LIST).write_text("\n".join([*lines, ""]), encoding="ascii")
        export.note_omitted("an ImageFolder", {"images", "targets"})
        export.made.notes.extend(_renamed(classes, folders))
        names = list(map(without_surrogates, classes))
        is_named = len(set(names)) == len(names) and all(map(str.strip, names))
        source = {"kind": "list", "file": LIST, "classes": names} if is_named else None
        why_none = "mmload decodes files to gray or RGB only, and class names have to differ and be more than spaces"
        export.write_recipe(RECIPE, source, why_none)
    return export.made


def _check_targets(chosen: Sequence[ChosenSplit]) -> None:
    """Raises UsageError unless rows have one class each."""
    for split, rows in chosen:
        where = f"rows of split {split.name!r} of {split.path}"
        if not has_class_numbers(split, "targets"):
            other = "coco" if "boxes" in split.fields else "huggingface"
            raise UsageError(f"{where} have no single class, as an ImageFolder needs; export them to {other}")
        targets = split.reader.array("targets", rows)
        if int(targets.min()) < 0 or int(targets.max()) >= _MOST_CLASSES:
            raise UsageError(
                f"{where} have targets from {targets.min()} to {targets.max()}, which are not classes; "
                "export them to huggingface"
            )


def _renamed(classes: Sequence[str], folders: Sequence[str]) -> Iterator[str]:
    """Yields notes on classes whose folders have other names, or other numbers by their names."""
    renamed = [f"{name!r} is {folder}" for name, folder in zip(classes, folders, strict=True) if name != folder]
    if renamed:
        yield f"{counted(len(renamed), 'class', 'classes')} with other folder names: {', '.join(renamed[:_SHOWN])}"
    if list(folders) != sorted(folders):
        yield f"an ImageFolder numbers classes by their sorted folders, not as the dataset does; {LIST} has its numbers"
