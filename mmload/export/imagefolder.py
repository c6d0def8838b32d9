"""Writes rows as an ImageFolder of PNGs, ``OUT/SPLIT/CLASS/NAME_ROW.png``, and a list of their classes and ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

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
from mmload.store.dataset import Dataset

LIST, RECIPE = "labels.jsonl", "recipe.toml"
_MOST_CLASSES = 1_000_000
_SHOWN = 3
_SURROGATES = re.compile("[\ud800-\udfff]")  # bytes of names that are no text


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
    place, chosen = begin_export(dataset, out, choice)
    classes = _classes(chosen)
    folders = distinct_names(classes)
    stored = {split.name: len(split) for split, _ in chosen}
    lines: list[str] = []
    written_ids: set[tuple[str, str]] = set()
    with new_folder(place) as folder:
        for split in stored:
            for name in folders:  # also for a class without rows, so that no class number changes
                (folder / split / name).mkdir(parents=True)

        def write(row: ExportRow) -> tuple[str, ExportRow]:
            target = int(row.fields["targets"])
            path = f"{row.split}/{folders[target]}/{row_stem(row.id, row.number, stored[row.split])}.png"
            (folder / path).write_bytes(png_of(row.fields["images"]))
            return path, row._replace(fields={"targets": row.fields["targets"]})

        for path, row in in_parallel(chosen, write, threads=threads, progress=progress):
            name = row.id if (row.split, row.id) not in written_ids else f"{row.id}#{row.number}"
            written_ids.add((row.split, row.id))
            entry = {"path": path, "label": int(row.fields["targets"]), "split": row.split, "id": name}
            lines.append(json.dumps(entry))
        (folder / LIST).write_text("\n".join(lines) + "\n", encoding="ascii")
        recipe = _recipe(chosen, _recipe_classes(classes, folders))
        again = write_recipes(folder, place, {RECIPE: recipe})
    notes = tuple(_notes(chosen, classes, folders, recipe is not None))
    return Exported(out=Path(out), rows=len(lines), notes=notes, next=again)


def _classes(chosen: Sequence[ChosenSplit]) -> tuple[str, ...]:
    """Returns the class names of all splits; raises UsageError unless rows have one class each, of the same names."""
    for split, rows in chosen:
        where = f"rows of split {split.name!r} of {split.path}"
        spec = split.fields.get("targets")
        if spec is None or spec.shape != () or spec.dtype != "int64":
            other = "voc" if {"boxes", "masks"} & set(split.fields) else "huggingface"
            raise UsageError(f"{where} have no single class, as an ImageFolder needs; export them to {other}")
        targets = split.reader.gather("targets", rows)
        if int(targets.min()) < 0 or int(targets.max()) >= _MOST_CLASSES:
            raise UsageError(
                f"{where} have targets from {targets.min()} to {targets.max()}, which are not classes; "
                "export them to huggingface"
            )
    names = {class_names(split, "targets") for split, _ in chosen}
    if len({split.classes for split, _ in chosen}) > 1:
        raise UsageError(
            f"the splits of {chosen[0].split.path} have different classes; export one of them: give a split"
        )
    return max(names, key=len)


def _recipe_classes(classes: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Returns the class names as a recipe can hold them: text; the folder's name in place of a blank one."""
    pairs = zip(classes, folders, strict=True)
    return [_SURROGATES.sub("\ufffd", name) if name.strip() else folder for name, folder in pairs]


def _recipe(chosen: Sequence[ChosenSplit], classes: Sequence[str]) -> str | None:
    """Returns a recipe that builds the export; None if no recipe can: mixed channels, or equal class names."""
    mode = mode_of(chosen)
    if mode is None or len(set(classes)) < len(classes):
        return None
    return recipe_text(RECIPE, {"kind": "list", "file": LIST, "classes": classes}, chosen, mode)


def _notes(
    chosen: Sequence[ChosenSplit], classes: Sequence[str], folders: Sequence[str], has_recipe: bool
) -> Iterator[str]:
    omitted = sorted({name for split, _ in chosen for name in split.fields} - {"images", "targets"})
    if omitted:
        yield f"an ImageFolder has no place for {', '.join(omitted)}: left out"
    renamed = [f"{name!r} is {folder}" for name, folder in zip(classes, folders, strict=True) if name != folder]
    if renamed:
        more = f" and {len(renamed) - _SHOWN:,} more" if len(renamed) > _SHOWN else ""
        yield f"classes whose names cannot be folder names: {', '.join(renamed[:_SHOWN])}{more}"
    if has_recipe and (blank := [repr(name) for name in classes if not name.strip()]):
        yield f"a recipe cannot hold blank names: in {RECIPE} {', '.join(blank[:_SHOWN])} has its folder's name, too"
    if list(folders) != sorted(folders):
        yield f"an ImageFolder numbers classes by their sorted folders, not as the dataset does; {LIST} has its numbers"
    if not has_recipe:
        yield f"no {RECIPE}: mmload decodes files to gray or RGB only, and class names have to differ"
