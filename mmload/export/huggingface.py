"""Makes a ``datasets.DatasetDict`` of Hugging Face: images and masks as PNGs, classes with their names.

``datasets`` is imported on first use: ``pip install '.[huggingface]'`` in a clone. Nothing is fetched or sent.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmload.errors import MmloadError, utf8_text
from mmload.export.chosen_rows import (
    Choice,
    ChosenSplit,
    ExportRow,
    chosen_rows,
    class_names,
    differs_in_length,
    has_class_numbers,
    map_rows,
)
from mmload.export.new_folder import check_destination, new_folder
from mmload.export.png_export import Exported, check_installed, is_image, is_mask, png_of, png_of_mask
from mmload.records import Progress
from mmload.store.dataset import Dataset, Split

if TYPE_CHECKING:
    from datasets import DatasetDict

_COLUMNS = {"images": "image", "targets": "label", "masks": "mask"}
"""Fields -> columns, where these are called otherwise: as Hugging Face's own datasets call them."""


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
        progress: called with (rows done, rows in all) of each split.

    Raises:
        UsageError: if ``datasets`` is not installed, or there are no such rows.
        MmloadError: if the rows cannot be written.
    """
    check_installed("datasets", "huggingface")
    import datasets
    from datasets.exceptions import DatasetGenerationError

    made = {}
    for split, rows in chosen_rows(dataset, choice):
        features = {_COLUMNS.get(name, name): feature for name, (feature, _) in _columns(split).items()}
        try:
            made[split.name] = datasets.Dataset.from_generator(
                _Rows(ChosenSplit(split, rows), threads, progress),
                features=datasets.Features(
                    {"id": datasets.Value("string"), "row": datasets.Value("int64"), **features}
                ),
                cache_dir=None if cache_dir is None else str(cache_dir),
                split=datasets.NamedSplit(split.name),
            )
        except DatasetGenerationError as error:
            cause = error.__cause__
            if isinstance(cause, MmloadError):
                raise cause from error
            raise MmloadError(f"datasets cannot write split {split.name} ({cause or error})") from error
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
        progress: called with (rows done, rows in all) of each split.

    Raises:
        UsageError: as :func:`to_huggingface`, and if the destination is taken.
        MmloadError: if it cannot be written.
    """
    check_installed("datasets", "huggingface")
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
    return Exported(out=Path(out), rows=rows, next=[f"datasets.load_from_disk({quoted})"])


class _Rows:
    """The rows of a split for ``datasets``, which hashes it to name its cache: by the rows alone."""

    def __init__(self, chosen: ChosenSplit, threads: int | None, progress: Progress | None) -> None:
        self.chosen, self.threads, self.progress = chosen, threads, progress

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        split, rows = self.chosen
        return tuple, ((split.folder.identity, split.name, rows.tolist()),)

    def __call__(self) -> Iterator[dict[str, Any]]:
        convert = {name: column for name, (_, column) in _columns(self.chosen.split).items()}

        def values(row: ExportRow) -> dict[str, Any]:
            made = {_COLUMNS.get(name, name): column(row.fields[name]) for name, column in convert.items()}
            return {"id": utf8_text(row.id), "row": row.number, **made}

        yield from map_rows([self.chosen], values, threads=self.threads, progress=self.progress)


def _columns(split: Split) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Returns for each field the type of its column, and the function that converts the values of a row."""
    import datasets

    columns: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        name: (_feature(split, name), np.ndarray.tolist) for name in split.fields if name != "counts"
    }
    if is_image(split.fields.get("images")):
        columns["images"] = datasets.Image(), lambda image: {"bytes": png_of(image), "path": None}
    if is_mask(split.fields.get("masks")):
        columns["masks"] = datasets.Image(), lambda mask: {"bytes": png_of_mask(mask), "path": None}
    return columns


def _feature(split: Split, field: str) -> Any:
    import datasets

    spec, names = split.fields[field], split.classes
    feature: Any = datasets.Value("float32" if spec.dtype == "bfloat16" else spec.dtype)
    if has_class_numbers(split, field) and len(set(names)) == len(names) > 0 and class_names(split, field) == names:
        feature = datasets.ClassLabel(names=[*map(utf8_text, names)])
    for axis, size in reversed(list(enumerate(spec.shape))):
        feature = datasets.List(feature, length=-1 if axis == 0 and differs_in_length(split, field) else size)
    return feature
