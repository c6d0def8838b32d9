"""Makes a FiftyOne dataset: images and masks as PNGs in a folder, labels in FiftyOne's database.

``fiftyone`` is imported on first use: ``pip install '.[fiftyone]'`` in a clone.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmload.errors import MmloadError, UsageError, utf8_text
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
from mmload.export.new_folder import begin_export, new_folder, row_stem
from mmload.store.dataset import Dataset, Split

_USED = {"images", "targets", "boxes", "labels", "difficult", "counts", "masks"}


def to_fiftyone(
    dataset: Dataset,
    out: str | Path,
    choice: Choice | None = None,
    *,
    name: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Writes a dataset's images as PNGs, and adds a persistent dataset of them to FiftyOne.

    A sample has its split as a tag, ``row``, ``source`` (the id in the source), and of ``label`` (Classification, of a
    vector of classes Classifications), ``boxes`` (Detections) and ``mask`` (Segmentation) what its row has.

    Args:
        dataset: dataset to convert.
        out: the folder of the files; missing or empty.
        choice: rows to export; None: all.
        name: name of FiftyOne's dataset; None: the folder's.
        threads: how many encode; None: the cores available.
        progress: called with (rows done, rows in all).

    Raises:
        UsageError: if FiftyOne is not installed or has such a dataset, the destination is taken, or there are no such
            rows.
        MmloadError: if the folder cannot be written, or FiftyOne's database does not answer.
    """
    check_installed()
    place, chosen = begin_export(dataset, out, choice)
    made = _new_dataset(name or place.name)
    try:
        with new_folder(place) as folder:
            samples = _samples(chosen, folder, place, threads, progress)
            made.add_samples(samples, progress=False, num_samples=sum(len(rows) for _, rows in chosen))
        made.default_classes = list(map(utf8_text, chosen[0].split.classes))
        made.default_mask_targets = dict(enumerate(made.default_classes))
        made.persistent = True
    except BaseException:
        made.delete()
        raise
    omitted = sorted({field for split, _ in chosen for field in split.fields} - _USED)
    notes = (f"FiftyOne got no {', '.join(omitted)}: left out",) if omitted else ()
    next_ = (shlex.join(["fiftyone", "app", "launch", made.name]),)
    return Exported(out=Path(out), rows=len(made), notes=notes, next=next_)


def _new_dataset(name: str) -> Any:
    """Creates a dataset of FiftyOne that disappears with this process until it is persistent."""
    import fiftyone

    try:
        if not fiftyone.dataset_exists(name):
            return fiftyone.Dataset(name)
    except Exception as error:  # its database may raise nearly anything
        why = str(error).split("\n")[0] or type(error).__name__
        raise MmloadError(f"FiftyOne cannot make a dataset ({why}); see that its database runs") from error
    raise UsageError(f"FiftyOne has a dataset {name!r} already; give another name, or delete that one")


def check_installed() -> None:
    """Raises UsageError if FiftyOne is not installed."""
    if find_spec("fiftyone") is None:
        raise UsageError("FiftyOne is not installed; in a clone of mmload run: pip install '.[fiftyone]'")


def _samples(
    chosen: Sequence[ChosenSplit], folder: Path, place: Path, threads: int | None, progress: Progress | None
) -> Iterator[Any]:
    """Yields a sample for each row; writes their files into ``folder``, which will be moved to ``place``."""
    stored = {split.name: len(split) for split, _ in chosen}
    names = {split.name: (_names(split, "targets"), _names(split, "labels")) for split, _ in chosen}
    for split in stored:
        (folder / split).mkdir()
        (folder / "masks" / split).mkdir(parents=True)

    def write(row: ExportRow) -> tuple[ExportRow, str]:
        file = f"{row.split}/{row_stem(row.id, row.number, stored[row.split])}.png"
        (folder / file).write_bytes(png_of(row.fields["images"]))
        if _has_mask(row):
            (folder / "masks" / file).write_bytes(png_of_mask(row.fields["masks"]))
        return row, file

    for row, file in in_parallel(chosen, write, threads=threads, progress=progress):
        yield _sample(row, file, place, *names[row.split])


def _sample(row: ExportRow, file: str, place: Path, names: Sequence[str], labels: Sequence[str]) -> Any:
    import fiftyone as fo

    fields = row.fields
    sample = fo.Sample(filepath=str(place / file), tags=[row.split], row=row.number, source=utf8_text(row.id))
    target = fields.get("targets")
    if target is not None and target.ndim == 0 and 0 <= target < len(names) and target == int(target):
        sample["label"] = fo.Classification(label=names[int(target)])
    elif target is not None and target.shape == (len(names),):
        classifications = [
            fo.Classification(label=name, confidence=float(p)) for name, p in zip(names, target, strict=True) if p
        ]
        sample["label"] = fo.Classifications(classifications=classifications)
    if "boxes" in fields and "labels" in fields:
        sample["boxes"] = fo.Detections(detections=list(_detections(row, labels)))
    if _has_mask(row):
        sample["mask"] = fo.Segmentation(mask_path=str(place / "masks" / file))
    return sample


def _detections(row: ExportRow, names: Sequence[str]) -> Iterator[Any]:
    import fiftyone as fo

    fields = row.fields
    _, height, width = fields["images"].shape
    count = int(fields["counts"]) if "counts" in fields else len(fields["boxes"])
    for index in range(count):
        x0, y0, x1, y1 = map(float, fields["boxes"][index])
        relative = [x0 / width, y0 / height, (x1 - x0) / width, (y1 - y0) / height]
        more = {"difficult": bool(fields["difficult"][index])} if "difficult" in fields else {}
        yield fo.Detection(label=names[int(fields["labels"][index])], bounding_box=relative, **more)


def _has_mask(row: ExportRow) -> bool:
    mask = row.fields.get("masks")
    return mask is not None and mask.dtype == "uint8" and mask.ndim == 2


def _names(split: Split, field: str) -> tuple[str, ...]:
    spec = split.fields.get(field)
    numbers = spec is not None and spec.dtype == "int64" and len(spec.shape) == (field == "labels")
    return tuple(map(utf8_text, class_names(split, field if numbers else "")))
