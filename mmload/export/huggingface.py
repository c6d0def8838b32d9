"""Makes a ``datasets.DatasetDict`` of Hugging Face: images and masks as PNGs, classes with their names.

``datasets`` is imported on first use: ``pip install '.[huggingface]'`` in a clone. Nothing is fetched or sent.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmload.errors import MmloadError, UsageError, utf8_text
from mmload.export.chosen_rows import (
    CHANNELS,
    Choice,
    ChosenSplit,
    Exported,
    ExportRow,
    Progress,
    chosen_rows,
    class_names,
    in_parallel,
    is_list,
    png_of,
    png_of_mask,
)
from mmload.export.new_folder import check_destination, new_folder
from mmload.records import FieldSpec
from mmload.store.dataset import Dataset, Split

if TYPE_CHECKING:
    from datasets import DatasetDict

_COLUMNS = {"images": "image", "targets": "label", "masks": "mask"}
"""Fields -> columns, where these are called otherwise: as Hugging Face's own datasets call them."""

_PADDED = ("boxes", "labels", "difficult")
"""Fields with ``counts`` entries in each row, where they are no lists; the rest is padding, which is left out."""


def to_huggingface(
    dataset: Dataset,
    choice: Choice | None = None,
    *,
    cache_dir: str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> DatasetDict:
    """Converts a dataset to a ``DatasetDict`` with ``image``, ``label``, ``boxes``, ``labels``, ``mask`` and others.

    Boxes are ``x0, y0, x1, y1`` in pixels, from 0, half-open. ``id`` is the sample's in its source, ``row`` the row.

    Args:
        dataset: dataset to convert.
        choice: rows to export; None: all.
        cache_dir: folder where ``datasets`` caches the rows; None: its own cache.
        threads: how many encode; None: the cores available.
        progress: called with (rows done, rows in all).

    Raises:
        UsageError: if ``datasets`` is not installed, or there are no such rows.
        MmloadError: if the rows cannot be written.
    """
    check_installed()
    import datasets
    from datasets.exceptions import DatasetGenerationError

    chosen = chosen_rows(dataset, choice)
    total, done, made = sum(len(rows) for _, rows in chosen), 0, {}
    for one in chosen:
        before = done

        def report(of_split: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + of_split, total)

        try:
            made[one.split.name] = datasets.Dataset.from_generator(
                _Rows(one, threads, report),
                features=_features(one.split),
                cache_dir=None if cache_dir is None else str(cache_dir),
                split=datasets.NamedSplit(one.split.name),
            )
        except DatasetGenerationError as error:
            cause = error.__cause__
            if isinstance(cause, MmloadError):
                raise cause from error
            raise MmloadError(f"datasets cannot write split {one.split.name} ({cause or error})") from error
        done += len(one.rows)
    return datasets.DatasetDict(made)


def save_huggingface(
    dataset: Dataset,
    out: str | Path,
    choice: Choice | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Writes :func:`to_huggingface` into a folder for ``datasets.load_from_disk``.

    Args:
        dataset: dataset to convert.
        out: the folder to make; missing or empty.
        choice: rows to export; None: all.
        threads: how many encode; None: the cores available.
        progress: called with (rows done, rows in all).

    Raises:
        UsageError: as :func:`to_huggingface`, and if the destination is taken.
        MmloadError: if it cannot be written.
    """
    check_installed()
    from datasets.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

    place = check_destination(Path(out), dataset.path)
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        with new_folder(place) as folder, tempfile.TemporaryDirectory(dir=folder.parent, prefix="cache-") as cache:
            made = to_huggingface(dataset, choice, cache_dir=cache, threads=threads, progress=progress)
            rows = sum(made.num_rows.values())
            made.save_to_disk(folder)
            del made  # closes the files of the cache
    finally:
        if shown:
            enable_progress_bar()
    quoted = json.dumps(str(out), ensure_ascii=False)
    return Exported(out=Path(out), rows=rows, next=(f"datasets.load_from_disk({quoted})",))


def check_installed() -> None:
    """Raises UsageError if ``datasets`` is not installed."""
    if find_spec("datasets") is None:
        raise UsageError(
            "Hugging Face datasets is not installed; in a clone of mmload run: pip install '.[huggingface]'"
        )


class _Rows:
    """The rows of a split for ``datasets``, which hashes it to name its cache: by the rows alone."""

    def __init__(self, chosen: ChosenSplit, threads: int | None, progress: Progress) -> None:
        self.chosen, self.threads, self.progress = chosen, threads, progress

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        split, rows = self.chosen
        return _hashed, (split.folder.identity, split.name, rows.tolist())

    def __call__(self) -> Iterator[dict[str, Any]]:
        make = {name: _column(self.chosen.split, name) for name in self.chosen.split.fields if name != "counts"}

        def columns(row: ExportRow) -> dict[str, Any]:
            count = int(row.fields["counts"]) if "counts" in row.fields else None
            made: dict[str, Any] = {"id": utf8_text(row.id), "row": row.number}
            for name, convert in make.items():
                values = row.fields[name][:count] if name in _PADDED and count is not None else row.fields[name]
                made[_COLUMNS.get(name, name)] = convert(values)
            return made

        yield from in_parallel([self.chosen], columns, threads=self.threads, progress=self.progress)


def _hashed(*values: object) -> tuple[object, ...]:
    return values


def _column(split: Split, field: str) -> Callable[[Any], Any]:
    """Returns the function that converts a field of a row to a value of its column."""
    spec = split.fields[field]
    if _is_image(field, spec):
        return lambda values: {"bytes": png_of(values), "path": None}
    if _is_mask(field, spec):
        return lambda values: {"bytes": png_of_mask(values), "path": None}
    return lambda values: np.asarray(values).tolist()


def _features(split: Split) -> Any:
    """Returns the columns and their types."""
    import datasets

    features: dict[str, Any] = {"id": datasets.Value("string"), "row": datasets.Value("int64")}
    for name, spec in split.fields.items():
        if name != "counts":
            features[_COLUMNS.get(name, name)] = _feature(split, name, spec)
    return datasets.Features(features)


def _feature(split: Split, field: str, spec: FieldSpec) -> Any:
    import datasets

    if _is_image(field, spec) or _is_mask(field, spec):
        return datasets.Image()
    of_class = spec.dtype == "int64" and (field, len(spec.shape)) in (("targets", 0), ("labels", 1))
    named = split.classes and len(set(split.classes)) == len(split.classes)
    of_class = bool(of_class and named and class_names(split, field) == split.classes)
    names = [*map(utf8_text, split.classes)]
    kind = "float32" if spec.dtype == "bfloat16" else spec.dtype
    feature: Any = datasets.ClassLabel(names=names) if of_class else datasets.Value(kind)
    for axis, size in reversed(list(enumerate(spec.shape))):
        varies = axis == 0 and (is_list(split, field) or (field in _PADDED and "counts" in split.fields))
        feature = datasets.List(feature, length=-1 if varies else size)
    return feature


def _is_image(field: str, spec: FieldSpec) -> bool:
    return field == "images" and spec.dtype == "uint8" and len(spec.shape) == 3 and spec.shape[0] in CHANNELS


def _is_mask(field: str, spec: FieldSpec) -> bool:
    return field == "masks" and spec.dtype == "uint8" and len(spec.shape) == 2
