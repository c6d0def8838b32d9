"""Makes a FiftyOne dataset: images and masks as PNGs in a folder, labels in FiftyOne's database.

``fiftyone`` is imported on first use: ``pip install '.[fiftyone]'`` in a clone.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmload.errors import MmloadError, UsageError, utf8_text
from mmload.export.chosen_rows import Choice, ExportRow, class_names
from mmload.export.png_export import Exported, PngExport, check_installed, is_mask, png_of_mask
from mmload.records import Progress
from mmload.store.dataset import Dataset

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
    check_installed("fiftyone", "fiftyone")
    export = PngExport(dataset, out, choice, threads, progress)
    made = _new_dataset(name or export.place.name)
    try:
        with export.writing(*export.names, *(f"masks/{name}" for name in export.names)):
            made.add_samples(_samples(export), progress=False, num_samples=export.made.rows)
        made.default_classes = list(map(utf8_text, export.chosen[0].split.classes))
        made.default_mask_targets = dict(enumerate(made.default_classes))
        made.persistent = True
    except BaseException:
        made.delete()
        raise
    export.note_omitted("FiftyOne", _USED)
    export.made.next.append(shlex.join(["fiftyone", "app", "launch", made.name]))
    return export.made


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


def _samples(export: PngExport) -> Iterator[Any]:
    """Yields a sample for each row, whose files are written into the folder."""
    names = {
        split.name: [list(map(utf8_text, class_names(split, field))) for field in ("targets", "labels")]
        for split, _ in export.chosen
    }

    def write(row: ExportRow) -> tuple[ExportRow, str]:
        file = f"{row.split.name}/{row.name}_{row.digits}.png"
        export.write_image(file, row)
        if is_mask(row.split.fields.get("masks")):
            (export.folder / "masks" / file).write_bytes(png_of_mask(row.fields["masks"]))
        return row, file

    for row, file in export.results(write):
        yield _sample(row, file, export.place, *names[row.split.name])


def _sample(row: ExportRow, file: str, place: Path, names: Sequence[str], labels: Sequence[str]) -> Any:
    import fiftyone as fo

    fields = row.fields
    sample = fo.Sample(filepath=str(place / file), tags=[row.split.name], row=row.number, source=utf8_text(row.id))
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
    if is_mask(row.split.fields.get("masks")):
        sample["mask"] = fo.Segmentation(mask_path=str(place / "masks" / file))
    return sample


def _detections(row: ExportRow, names: Sequence[str]) -> Iterator[Any]:
    import fiftyone as fo

    fields = row.fields
    _, height, width = fields["images"].shape
    for index, box in enumerate(fields["boxes"].tolist()):
        x0, y0, x1, y1 = box
        relative = [x0 / width, y0 / height, (x1 - x0) / width, (y1 - y0) / height]
        more = {"difficult": bool(fields["difficult"][index])} if "difficult" in fields else {}
        yield fo.Detection(label=names[int(fields["labels"][index])], bounding_box=relative, **more)
